"""Functions that torch composes of operators on a CPU and has one kernel for on CUDA: the kernel, for fake tensors on `cpu`.

torch decides by the device of the tensors, below where a dispatch mode could see the function. So a mode for functions asks for
the kernel by its name. What differs is what the backward keeps: RMSNorm composed saves its input in fp32, and its kernel the
input as it is (`rms_norm_symint` in ATen/native/layer_norm.cpp takes the kernel on CUDA); dropout composed saves what it
multiplied by in the dtype of its input, and its kernel a mask of bytes (`dropout` in ATen/native/Dropout.cpp). Attention is one
kernel on either, but CUDA's keeps the state of a random generator as well, used or not: two tensors of some bytes, which take a
block of the allocator each (`mha_fwd` in ATen/native/transformers/cuda/flash_attn/flash_api.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# An `OperatorWatch` has to leave it whole: on a CPU, where it is no kernel, torch composes it.
WHOLE = frozenset({torch.ops.aten._fused_rms_norm.default})


class CudaBranches(TorchFunctionMode):
    """A context in which torch's functions on `cpu` tensors do what they do on CUDA ones, for fake tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function, or what stands for it on CUDA."""
        instead = _INSTEAD.get(func)
        return (func if instead is None else instead)(*args, **(kwargs or {}))


def _rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    mixed = weight is not None and weight.dtype != input.dtype
    if mixed or input.is_complex() or suggest_memory_format(input) in (torch.channels_last, torch.channels_last_3d):
        return torch.rms_norm(input, list(normalized_shape), weight, eps)
    normed: Tensor = _FusedRmsNorm.apply(input, list(normalized_shape), weight, eps)  # type: ignore[no-untyped-call]  # untyped in torch
    return normed


class _FusedRmsNorm(torch.autograd.Function):
    """The kernel with its own backward; torch has a formula for it that only tensors on CUDA reach."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None) -> Tensor:
        """The shape and dtype of `input`."""
        with torch._C._AutoDispatchBelowAutograd():  # above it torch composes
            normed, rstd = torch.ops.aten._fused_rms_norm(input, normalized_shape, weight, eps)
        ctx.save_for_backward(input, rstd, weight)
        ctx.normalized_shape = normalized_shape
        result: Tensor = normed
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the input and the weight, of those that need one."""
        input, rstd, weight = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_input, of_weight = torch.ops.aten._fused_rms_norm_backward(
            grads[0], input, ctx.normalized_shape, rstd, weight, needed
        )
        return of_input, None, of_weight, None


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if inplace or not training or not 0 < p < 1 or not input.numel():
        return functional.dropout(input, p, training, inplace)
    dropped: Tensor = torch.native_dropout(input, p, training)[0]
    return dropped


def _torch_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return _dropout(input, p, train)


_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_FLASH_WIDTH = 256  # of a head, at most; a width that is no multiple of 8 is padded first


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    width = query.shape[-1]
    alike = all(one.dim() == 4 and one.dtype in _FLASH_DTYPES and one.shape[-1] == width for one in (query, key, value))
    possible = torch.backends.cuda.flash_sdp_enabled() and alike and not width % 8 and 0 < width <= _FLASH_WIDTH
    if not possible or attn_mask is not None or enable_gqa or not query.numel() * key.numel():
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    attended: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[
        0
    ]
    return attended


_INSTEAD: dict[Any, Callable[..., Any]] = {
    functional.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
    functional.dropout: _dropout,
    functional.scaled_dot_product_attention: _attention,
    torch.dropout: _torch_dropout,
}
