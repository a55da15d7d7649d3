"""Layer norm (Ba, Kiros and Hinton 2016): y = (x - mean) / sqrt(variance + eps) * W + B, over the last dimension.

Arguments, their order and their defaults are those that users of Liger-Kernel 0.8.5 have, so that an import can be swapped.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from frostline.kernels.norm.autograd import normalise
from frostline.kernels.norm.casting import initial, layer_of
from frostline.kernels.norm.checks import check


def layer_norm(X: Tensor, W: Tensor | None, B: Tensor | None, eps: float) -> Tensor:
    """Layer norm over the last dimension, computed in fp32 (fp64 for fp64) and rounded once.

    Only the gradients that are asked for are computed, those of W and B each on its own: of a frozen one nothing is allocated,
    accumulated or launched, and X's gradient is the same bit for bit.

    Args:
        X: [..., D], bf16, fp16, fp32 or fp64.
        W: [D], any floating dtype, or None.
        B: [D], any floating dtype, or None.
        eps: added to the variance.

    Returns:
        The shape and dtype of X.

    Raises:
        TypeError, ValueError, RuntimeError: an argument that does not fit, in one line that names it.
    """
    check(X, (("W", W), ("B", B)), "X")
    return normalise(X, W, B, layer_of(eps))


class LayerNorm(nn.Module):
    """`layer_norm` with a weight and a bias of its own.

    Args:
        hidden_size: D.
        eps: as in `layer_norm`.
        bias: how the bias begins, which there always is: random where True, zeros where False.
        init_fn: the weight begins as `ones` or `zeros`.
        impl, mode, backend: taken without effect; there is one implementation.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        bias: bool = False,
        init_fn: str = "ones",
        impl: str | None = None,
        mode: str | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        del impl, mode, backend
        self.hidden_size = hidden_size
        self.eps = self.variance_epsilon = eps
        self.weight = nn.Parameter(initial(hidden_size, init_fn))
        self.bias = nn.Parameter(torch.randn(hidden_size) if bias else torch.zeros(hidden_size))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The normalised rows of hidden_states [..., D]."""
        return layer_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)

    def extra_repr(self) -> str:
        """What is printed of it."""
        return f"{self.hidden_size}, eps={self.eps}"
