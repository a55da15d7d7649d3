"""The casting modes of RMS norms, named as Liger-Kernel and the models name them."""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.kernels.norm.layout import Norm

# Whether normalised values are rounded to the input's dtype before they meet the weight. `llama`: as Llama's own code does.
# `gemma`: all in fp32, rounded once. `none` asks for no casts; what a kernel holds in registers is fp32 whether or not it was
# asked for, so nothing is gained by rounding there, and it is computed as `gemma`.
_ROUNDED = {"llama": True, "gemma": False, "none": False}
_NUMBERED = {0: "llama", 1: "gemma", -1: "none"}


def rms_of(eps: float, offset: float, casting_mode: str | int) -> Norm:
    """The constants of an RMS norm.

    Raises:
        ValueError: no such casting mode, or an `eps` that is negative or no finite number.
    """
    mode = _NUMBERED.get(casting_mode, "") if isinstance(casting_mode, int) else casting_mode
    if mode not in _ROUNDED:
        raise ValueError(f"casting_mode: got {casting_mode!r}, wanted one of {', '.join(_ROUNDED)}")
    return Norm(_checked(eps), float(offset), centred=False, rounded=_ROUNDED[mode])


def layer_of(eps: float) -> Norm:
    """The constants of a layer norm, computed in fp32 and rounded once. Raises ValueError for `eps` as `rms_of` does."""
    return Norm(_checked(eps), 0.0, centred=True, rounded=False)


def _checked(eps: float) -> float:
    if not 0.0 <= eps < float("inf"):  # a root of less than nothing would be NaN, and reach the loss as that
        raise ValueError(f"eps: got {eps!r}, wanted a finite number of at least 0")
    return float(eps)


def initial(size: int, init_fn: str) -> Tensor:
    """A weight to begin with: `ones` or `zeros`.

    Raises:
        ValueError: another `init_fn`.
    """
    if init_fn not in ("ones", "zeros"):
        raise ValueError(f"init_fn: got {init_fn!r}, wanted 'ones' or 'zeros'")
    return torch.ones(size) if init_fn == "ones" else torch.zeros(size)
