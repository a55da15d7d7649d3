"""An implementation of the step as the harness measures and checks it."""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.harness import Step
from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.implementation import Implementation
from frostline.suites.policy_step.reference import Reference


def step_of(side: Implementation, batch: Batch, reference: Reference) -> Step:
    """Forward and backward of `side`, checked against `reference`."""

    def run() -> None:
        side.loss().backward()

    def outputs() -> dict[str, Tensor]:
        batch.reset()
        loss = side.loss()
        loss.backward()
        with torch.no_grad():
            logp = side.logp() * batch.mask
        return {"logp": logp, "loss": loss.detach(), **batch.take_gradients()}

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
