"""RMS norm (Zhang and Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * (offset + weight), over the last dimension.

Arguments, their order and their defaults are those that users of Liger-Kernel 0.8.5 have, so that an import can be swapped.
"""

from __future__ import annotations

from torch import Tensor, nn

from frostline.kernels.norm.autograd import normalise
from frostline.kernels.norm.casting import initial, rms_of
from frostline.kernels.norm.checks import check


def rms_norm(
    X: Tensor, W: Tensor | None, eps: float, offset: float = 0.0, casting_mode: str | int = "llama", in_place: bool = True
) -> Tensor:
    """RMS norm over the last dimension.

    Sums are fp32 (fp64 for fp64) whatever the inputs are, and so is the accumulation of W's gradient. Only the gradients that
    are asked for are computed: with W frozen nothing of its gradient is allocated, accumulated or launched, and X's is the
    same bit for bit.

    Args:
        X: [..., D], bf16, fp16, fp32 or fp64.
        W: [D], any floating dtype, or None for a norm without a scale.
        eps: added to the mean square.
        offset: added to W.
        casting_mode: `llama` rounds the normalised values to X's dtype before they are multiplied, `gemma` and `none` do not.
        in_place: taken without effect. Writing X's gradient over the upstream one would corrupt it for whoever else reads it, a
            residual connection for example.

    Returns:
        The shape and dtype of X.

    Raises:
        TypeError, ValueError, RuntimeError: an argument that does not fit, in one line that names it.
    """
    del in_place
    check(X, (("W", W),), "X")
    return normalise(X, W, None, rms_of(eps, offset, casting_mode))


class RMSNorm(nn.Module):
    """`rms_norm` with a weight of its own.

    Args:
        hidden_size: D.
        eps, offset, casting_mode, in_place: as in `rms_norm`.
        init_fn: the weight begins as `ones` or `zeros`.
        row_mode: taken without effect; rows are laid out by their size.
        elementwise_affine: False for a norm without a weight.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        row_mode: bool | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        rms_of(eps, offset, casting_mode)  # refuses what cannot be here and not at the first call
        weight = initial(hidden_size, init_fn)
        self.weight = nn.Parameter(weight) if elementwise_affine else None
        self.elementwise_affine = elementwise_affine
        self.variance_epsilon, self.offset, self.casting_mode = eps, offset, casting_mode
        self.in_place, self.row_mode = in_place, row_mode

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The normalised rows of hidden_states [..., D]."""
        return rms_norm(hidden_states, self.weight, self.variance_epsilon, self.offset, self.casting_mode, self.in_place)

    def extra_repr(self) -> str:
        """What is printed of it."""
        shape = None if self.weight is None else tuple(self.weight.shape)
        return f"{shape}, eps={self.variance_epsilon}, offset={self.offset}, casting_mode={self.casting_mode}"
