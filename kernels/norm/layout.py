"""What is normalised, and how."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Norm(NamedTuple):
    """The constants of a norm: y = (x - mean) / deviation * (offset + weight) + bias.

    Attributes:
        eps: added to the variance (mean square) before the root.
        offset: added to the weight.
        centred: the mean is taken off first (layer norm); else the deviation is the root of the mean square (RMS norm).
        rounded: the normalised values are rounded to the input's dtype before they meet the weight, as Llama's are.
    """

    eps: float
    offset: float
    centred: bool
    rounded: bool


class Needs(NamedTuple):
    """Which gradients are asked for: the input's, and the dtypes of the weight's and the bias's (None: not asked for)."""

    x: bool
    weight: torch.dtype | None
    bias: torch.dtype | None
