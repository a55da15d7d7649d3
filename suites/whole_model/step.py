"""A step of a model: forward and backward, checked against the unpatched model in higher precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from frostline.harness import Step
from frostline.suites.whole_model.model import Shape, watched

_LAST = 16  # tokens whose logits are compared


def step_of(
    patched: nn.Module, make_plain: Callable[[], nn.Module], inputs: Mapping[str, Any], shape: Shape, **more: Any
) -> Step:
    """The step of `patched`, checked by an unpatched model of the same weights: that is made when it is asked for.

    Compared are the logits of the last tokens and, of a model that is not large, gradients. Not the loss: it is one number,
    which plain code may be right about by luck.
    """

    def run() -> None:
        patched(**inputs).loss.backward()

    def reset() -> None:
        for parameter in patched.parameters():
            parameter.grad = None

    def outputs_of(model: nn.Module) -> dict[str, Tensor]:
        with torch.no_grad():
            logits = model(input_ids=inputs["input_ids"], use_cache=False, logits_to_keep=_LAST).logits
        if shape.is_large:
            return {"logits": logits}
        asked = dict(watched(model))
        gradients = torch.autograd.grad(model(**inputs).loss, list(asked.values()))
        return {"logits": logits, **{f"d_{name}": one for name, one in zip(asked, gradients, strict=True)}}

    def plain() -> nn.Module:
        model = make_plain()
        model.load_state_dict(patched.state_dict())
        return model

    wide = torch.float32 if shape.is_large else torch.float64
    return Step(
        run=run,
        reset=reset,
        outputs=lambda: outputs_of(patched),
        reference=lambda: outputs_of(plain().to(wide)),
        yardstick=lambda: outputs_of(plain()),
        **more,
    )
