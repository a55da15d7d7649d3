"""Matrix products with fp32 results and fp32 accumulation: the one place of the head that branches on the device.

A low-precision product on a GPU accumulates in fp32 inside the tensor cores, but torch rounds its result unless it is asked
for `out_dtype=torch.float32`, which exists on CUDA only and which torch's FLOP counter does not know. So that product is an op
of our own, `frostline::mm_wide`, with a fake and a FLOP formula. Elsewhere the operands are widened slab by slab.

`target_device("cuda")` makes tensors on the CPU take the branches that a GPU would take: the cost model runs fake CPU tensors
under it, and the tests run those branches on real numbers without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from frostline.kernels.traffic import size_of

HOPPER = (9, 0)
_target: ContextVar[str | None] = ContextVar("frostline_target_device", default=None)
_generation: ContextVar[tuple[int, int]] = ContextVar("frostline_target_generation", default=HOPPER)

# A widened slab of an operand on the CPU holds at most this many elements (16 MiB in fp32).
_SLAB_ELEMENTS = 1 << 22

# From this many output elements on, cuBLAS has output tiles enough to fill any GPU several times over and does not split the
# inner dimension, so a low-precision result is rounded once. Smaller outputs go through an fp32 result, which is cheap there.
_UNSPLIT_ELEMENTS = 1 << 24


@contextmanager
def target_device(kind: str, capability: tuple[int, int] = HOPPER) -> Iterator[None]:
    """Take the branches of device `kind` ("cuda" or "cpu") wherever the tensors are; on CUDA those of a GPU generation."""
    tokens = _target.set(kind), _generation.set(capability)
    try:
        yield
    finally:
        _target.reset(tokens[0])
        _generation.reset(tokens[1])


def target_capability() -> tuple[int, int]:
    """The generation that is assumed of a GPU where there is none to ask: that of `target_device`, else Hopper's."""
    return _generation.get()


def device_kind(tensor: Tensor) -> str:
    """The kind of device whose branches apply to `tensor`: "cuda", "cpu", ..."""
    return kind_of(tensor.device)


def kind_of(device: torch.device) -> str:
    """The kind of device whose branches apply to tensors on `device`."""
    return _target.get() or device.type


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64 (so that `gradcheck` works); everything else accumulates in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def mm_wide(a: Tensor, b: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    """`out = a @ b`, or `out += a @ b`, with products summed and kept in the dtype of `out`.

    Args:
        a: [M, K], any floating dtype no wider than that of `out`.
        b: [K, N], likewise.
        out: [M, N], float32 or float64, written in place.
        accumulate: add to what `out` holds.
    """
    if a.dtype == b.dtype == out.dtype:
        _mm(a, b, out, accumulate)
    elif device_kind(out) == "cuda" and a.dtype == b.dtype:
        torch.ops.frostline.mm_wide(a, b, out, accumulate)
    else:
        _mm_in_slabs(a, b, out, accumulate)


def mm_rounded(a: Tensor, b: Tensor, out: Tensor) -> None:
    """`out = a @ b`, summed in fp32 (float64) and rounded once to the dtype of `out`. Shapes as in `mm_wide`."""
    wide = accumulator_dtype(out.dtype)
    if out.dtype == wide:
        mm_wide(a, b, out)
    elif device_kind(out) == "cuda" and a.dtype == b.dtype == out.dtype and out.numel() >= _UNSPLIT_ELEMENTS:
        torch.mm(a, b, out=out)
    else:
        result = torch.empty(out.shape, dtype=wide, device=out.device)
        mm_wide(a, b, result)
        out.copy_(result)


def mm_rounded_workspace(rows: int, columns: int, dtype: torch.dtype, kind: str) -> int:
    """Bytes that `mm_rounded` allocates for a [rows, columns] result of `dtype` on a device of `kind`."""
    wide = accumulator_dtype(dtype)
    if dtype == wide or (kind == "cuda" and rows * columns >= _UNSPLIT_ELEMENTS):
        return 0
    return rows * columns * wide.itemsize


def slab_workspace(elements: int, dtype: torch.dtype, kind: str) -> int:
    """Bytes that widened operands of `dtype`, `elements` in all, take at a time on a device of `kind`."""
    wide = accumulator_dtype(dtype)
    return 0 if dtype == wide or kind == "cuda" else min(elements, _SLAB_ELEMENTS) * wide.itemsize


def _mm(a: Tensor, b: Tensor, out: Tensor, accumulate: bool) -> None:
    if accumulate:
        torch.addmm(out, a, b, out=out)
    else:
        torch.mm(a, b, out=out)


def _mm_in_slabs(a: Tensor, b: Tensor, out: Tensor, accumulate: bool) -> None:
    """Widen the operands and multiply; operands that are too large are halved along their longest dimension first."""
    (rows, inner), columns = a.shape, b.shape[1]
    widened = sum(x.numel() for x in (a, b) if x.dtype != out.dtype)
    longest = max(rows, inner, columns)
    if widened <= _SLAB_ELEMENTS or longest == 1:
        _mm(a.to(out.dtype), b.to(out.dtype), out, accumulate)
        return
    half = longest // 2
    if longest == inner:
        _mm_in_slabs(a[:, :half], b[:half], out, accumulate)
        _mm_in_slabs(a[:, half:], b[half:], out, True)
    elif longest == columns:
        _mm_in_slabs(a, b[:, :half], out[:, :half], accumulate)
        _mm_in_slabs(a, b[:, half:], out[:, half:], accumulate)
    else:
        _mm_in_slabs(a[:half], b, out[:half], accumulate)
        _mm_in_slabs(a[half:], b, out[half:], accumulate)


_library = torch.library.Library("frostline", "FRAGMENT")
_library.define("mm_wide(Tensor a, Tensor b, Tensor(a!) out, bool accumulate) -> ()")


def _mm_wide_cuda(a: Tensor, b: Tensor, out: Tensor, accumulate: bool) -> None:
    if accumulate:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)


def _mm_wide_fake(a: Tensor, b: Tensor, out: Tensor, accumulate: bool) -> None:
    """Nothing to do: the op allocates nothing that outlives it."""


_library.impl("mm_wide", _mm_wide_cuda, "CUDA")
_library.impl("mm_wide", _mm_in_slabs, "CPU")
_library.impl("mm_wide", _mm_wide_fake, "Meta")


def _mm_wide_flops(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """2 M K N: one multiplication and one addition for each term."""
    return 2 * a[0] * a[1] * b[1]


# In the form of `torch.utils.flop_counter`: each tensor argument is replaced by its shape. Registered there on import as well.
FLOP_FORMULAS: dict[Any, Callable[..., int]] = {torch.ops.frostline.mm_wide: _mm_wide_flops}
for _op, _formula in FLOP_FORMULAS.items():
    register_flop_formula(_op)(_formula)


def _mm_wide_bytes(a: Tensor, b: Tensor, out: Tensor, accumulate: bool) -> int:
    """Both operands are read; the result is written, and read before where it is added to."""
    return size_of(a, b, out) + (size_of(out) if accumulate else 0)


# Bytes that the op reads and writes on CUDA, from its arguments (`frostline.kernels.traffic`).
TRAFFIC: dict[Any, Callable[..., int]] = {torch.ops.frostline.mm_wide: _mm_wide_bytes}
