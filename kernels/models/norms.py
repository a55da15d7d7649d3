"""The norms of a model on the package's kernels: the forwards that take their modules' place."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from frostline.kernels.norm import fused_add_rms_norm, layer_norm, rms_norm

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def rms_forward(self: Any, hidden_states: Tensor) -> Tensor:
    """An RMS norm computed in fp32 and rounded once, with a weight or without."""
    return _heads_first(hidden_states, getattr(self, "weight", None), self.eps, 0.0)


def centred_rms_forward(self: Any, x: Tensor) -> Tensor:
    """The same with 1 + weight."""
    return _heads_first(x, self.weight, self.eps, 1.0)


def layer_norm_forward(self: Any, input: Tensor) -> Tensor:
    """`nn.LayerNorm` over the last dimension."""
    if len(self.normalized_shape) > 1:
        return nn.LayerNorm.forward(self, input)
    return layer_norm(input, self.weight, self.bias, self.eps)


def add_and_norm(residual: Tensor, hidden_states: Tensor, norm: Any, patched: Any) -> tuple[Tensor, Tensor]:
    """(norm(residual + hidden_states), residual + hidden_states), in one kernel where the norm is no more than `patched`.

    A norm that somebody wrapped or put a hook on is called, or what hangs on it would be left out.
    """
    watched = any(getattr(norm, name) for name in _HOOKS)
    if watched or type(norm) is not patched:
        total = residual + hidden_states
        return norm(total), total
    weight: Tensor = norm.weight
    return fused_add_rms_norm(hidden_states, residual, weight, norm.eps, 1.0, "gemma", False)


def _heads_first(x: Tensor, weight: Tensor | None, eps: float, offset: float) -> Tensor:
    """Normalise the rows where they lie: a view with the heads moved to the front is walked as it was before, not copied."""
    if x.ndim == 4 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous():
        return rms_norm(x.transpose(1, 2), weight, eps, offset, "gemma", False).transpose(1, 2)
    return rms_norm(x, weight, eps, offset, "gemma", False)
