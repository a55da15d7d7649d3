"""Correct before fast: a step's outputs against its reference, with a bound taken from what plain code gets wrong.

The bound on the relative error ||out - ref|| / ||ref|| is a multiple of the yardstick's own error against the same
reference, so that it follows the dtype and the shape instead of a round number.
"""

from __future__ import annotations

import math
from typing import Any

from frostline.harness.declare import Step
from frostline.results.record import Verification

FLOOR = 1e-7  # a yardstick can be exact by luck (a loss of 0); float32 rounding is still no fault


def verify_step(step: Step) -> list[Verification]:
    """Run `step` once and compare every output that it and the reference name.

    Raises:
        ValueError: an output that the reference lacks, or the other way round, or of another shape.
    """
    assert step.outputs is not None and step.reference is not None
    if step.reset is not None:
        step.reset()
    step.run()
    outputs, reference = dict(step.outputs()), dict(step.reference())
    yardstick = dict(step.yardstick()) if step.yardstick is not None else {}
    if outputs.keys() != reference.keys():
        raise ValueError(f"outputs are {sorted(outputs)} and the reference's are {sorted(reference)}: they must be the same")
    return [_compare(name, outputs[name], reference[name], yardstick.get(name), step) for name in outputs]


def _compare(name: str, output: Any, reference: Any, yardstick: Any, step: Step) -> Verification:
    relative, maximum = _error(name, output, reference)
    if yardstick is None:
        return Verification(name, relative, maximum, step.tolerance)
    allowed = max(step.allowed_over_yardstick * _error(name, yardstick, reference)[0], FLOOR)
    if not math.isfinite(allowed):  # a yardstick that overflowed measures nothing
        allowed = step.tolerance
    return Verification(name, relative, maximum, allowed)


def _error(name: str, output: Any, reference: Any) -> tuple[float, float]:
    """Relative error in the 2-norm (absolute, where the reference is zero) and the largest absolute error.

    Both are formed in the reference's precision.
    """
    if hasattr(output, "detach"):
        if output.shape != reference.shape:
            raise ValueError(f"output {name!r} has shape {tuple(output.shape)}, the reference {tuple(reference.shape)}")
        if output.is_complex() and not reference.is_complex():
            raise ValueError(f"output {name!r} is complex, the reference is not")
        if output.numel() == 0:
            return 0.0, 0.0
        difference = output.detach().to(reference.dtype).sub_(reference.detach()) if output is not reference else 0 * reference
        scale = float(reference.detach().norm())
        norm, maximum = float(difference.norm()), float(difference.norm(math.inf))  # no copy of the size of it
    else:
        scale, norm = abs(float(reference)), abs(float(output) - float(reference))
        maximum = norm
    return norm / (scale or 1.0), maximum
