"""How a raw logit becomes the logit that softmax sees: scale, softcap, temperature.

    z = softcap * tanh(x * logit_scale / softcap) / temperature        (softcap given)
    z = x * logit_scale / temperature                                  (softcap=None)

with x the fp32 product (bias included). Two constants and a flag say it all, so tiles take those: `inner`, `outer`, `capped`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from torch import Tensor


@dataclass(frozen=True)
class Transform:
    """z = outer * tanh(inner * x) when `capped`, else z = outer * x."""

    inner: float = 1.0
    outer: float = 1.0
    capped: bool = False

    @staticmethod
    def of(temperature: float = 1.0, softcap: float | None = None, logit_scale: float = 1.0) -> Transform:
        """The transform of the user's three numbers.

        Raises:
            ValueError: a temperature or softcap that is not a positive finite number, or a scale that is not finite.
        """
        for name, value in (("temperature", temperature), ("softcap", softcap)):
            if value is not None and not (isinstance(value, Real) and math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: got {value!r}, wanted a positive number")
        if not (isinstance(logit_scale, Real) and math.isfinite(logit_scale)):
            raise ValueError(f"logit_scale: got {logit_scale!r}, wanted a finite number")
        if softcap is None:
            return Transform(outer=logit_scale / temperature)
        return Transform(inner=logit_scale / softcap, outer=softcap / temperature, capped=True)

    @property
    def steepest(self) -> float:
        """dz/dx where tanh is at zero: the constant part of the chain factor."""
        return self.inner * self.outer if self.capped else self.outer

    def slope(self, z: Tensor) -> Tensor:
        """dz/dx at the points whose transformed logits are `z`."""
        if not self.capped:
            return z.new_full((), self.outer).expand_as(z)
        return (1.0 - (z / self.outer).square()) * self.steepest
