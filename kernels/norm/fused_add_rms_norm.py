"""A residual addition and the RMS norm of its result in one pass, as a decoder layer does twice.

Arguments, their order and their defaults are those that users of Liger-Kernel 0.8.5 have, so that an import can be swapped.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from frostline.kernels.arguments import refuse_distributed
from frostline.kernels.norm.autograd import add_and_normalise
from frostline.kernels.norm.casting import initial, rms_of
from frostline.kernels.norm.checks import check


def fused_add_rms_norm(
    X: Tensor,
    R: Tensor,
    W: Tensor | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> tuple[Tensor, Tensor]:
    """`rms_norm(X + R, ...)` and X + R, which is what the next residual connection adds to.

    The gradient that reaches X + R from elsewhere is added in the same pass. What is frozen costs nothing, as in `rms_norm`.

    Args:
        X: [..., D], bf16, fp16, fp32 or fp64.
        R: the shape of X. Where dtypes differ both are taken in the wider one, as an addition would.
        W: [D], any floating dtype, or None.
        eps, offset, casting_mode, in_place: as in `rms_norm`. Neither X nor R is written to, nor any upstream gradient.

    Returns:
        (normalised, X + R), both of the shape of X.

    Raises:
        TypeError, ValueError, RuntimeError: an argument that does not fit, in one line that names it.
    """
    del in_place
    check(X, (("W", W),), "X")
    refuse_distributed(R, "R")
    if R.shape != X.shape:
        raise ValueError(f"R: got shape {tuple(R.shape)}, wanted {tuple(X.shape)}, that of X")
    if R.device != X.device:
        raise ValueError(f"R: got device {R.device}, wanted {X.device}, that of X")
    if R.dtype != X.dtype:
        wider = torch.promote_types(X.dtype, R.dtype)
        X, R = X.to(wider), R.to(wider)
    return add_and_normalise(X, R, W, rms_of(eps, offset, casting_mode))


class FusedAddRMSNorm(nn.Module):
    """`fused_add_rms_norm` with a weight of its own.

    Args:
        hidden_size: D.
        eps, offset, casting_mode, in_place: as in `fused_add_rms_norm`.
        init_fn: the weight begins as `ones` or `zeros`.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        init_fn: str = "ones",
        in_place: bool = False,
    ) -> None:
        super().__init__()
        rms_of(eps, offset, casting_mode)  # refuses what cannot be here and not at the first call
        self.weight = nn.Parameter(initial(hidden_size, init_fn))
        self.variance_epsilon, self.offset, self.casting_mode, self.in_place = eps, offset, casting_mode, in_place

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(normalised rows of hidden_states + residual, that sum)."""
        return fused_add_rms_norm(
            hidden_states, residual, self.weight, self.variance_epsilon, self.offset, self.casting_mode, self.in_place
        )

    def extra_repr(self) -> str:
        """What is printed of it."""
        return (
            f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}, offset={self.offset}, casting_mode={self.casting_mode}"
        )
