"""The step as the harness measures and checks it: by one of the sides, or its matrix products alone."""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.harness import Step
from frostline.suites.next_token.reference import Reference
from frostline.suites.next_token.sides import Side
from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.floor import Floor
from frostline.suites.policy_step.plain import Question as PolicyQuestion
from frostline.suites.policy_step.reference import Reference as PolicyReference


def step_of(side: Side, batch: Batch, reference: Reference) -> Step:
    """Forward and backward of `side`, checked against `reference`."""

    def run() -> None:
        side.loss().backward()

    def outputs() -> dict[str, Tensor]:
        batch.reset()
        loss = side.loss()
        loss.backward()
        gradients = batch.take_gradients()
        with torch.no_grad():
            losses = side.losses()
        return {"losses": losses, "loss": loss.detach(), **gradients}

    return Step(
        run=run,
        reset=batch.reset,
        outputs=outputs,
        reference=lambda: reference.outputs,
        yardstick=reference.yardstick,
        allowed_over_yardstick=side.allowed_over_yardstick,
        detail=side.detail,
        omit=side.omit,
    )


def floor_step(batch: Batch) -> Step:
    """The matrix products of plain cross entropy: the negated mean of log-probs, which a policy step has with this upstream."""
    upstream = -batch.mask.double() / batch.active
    reference = PolicyReference(batch, PolicyQuestion("dapo"), upstream)
    floor = Floor(batch, reference, again=False)
    return Step(
        run=floor.run,
        outputs=floor.outputs,
        reference=lambda: {leaf: reference.outputs[leaf] for leaf in batch.leaves},
        yardstick=reference.yardstick,
    )
