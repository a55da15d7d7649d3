"""Rotary embeddings and SwiGLU on a GPU, the host's side: memory, grids and launches of `kernels_triton`.

What follows from dtypes and alignment is made once and looked up by that key, as the norms do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from frostline.kernels.launch import Launcher
from frostline.kernels.layout import laid_out
from frostline.kernels.pointwise import kernels_triton as kernels

_BLOCK, _WARPS = 2048, 4  # of SwiGLU: two loads of 16 bytes a thread and operand, in bf16
_HEADS_ELEMENTS = 1024  # of a half, that a program of the rotation has
_WIDEST_STEP = 8  # elements: 16 bytes of the narrowest dtype
_NARROW = 2**31  # what a 32-bit scalar holds

_launchers: dict[tuple[Any, ...], Launcher] = {}


def rotate(
    q: Tensor | None, k: Tensor | None, cos: Tensor, sin: Tensor, transposed: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Rotate the halves of the last dimension; see `tiles`."""
    given = (q, k)
    reads = [None if x is None else x if x.stride(-1) == 1 else x.contiguous() for x in given]
    writes = [None if x is None else torch.empty_like(x) for x in reads]
    _rotate([x for x in reads if x is not None and x.numel()], reads, writes, (cos.contiguous(), sin.contiguous()), transposed)
    outs = [
        written if read is x or x is None or written is None else torch.empty_like(x).copy_(written)
        for x, read, written in zip(given, reads, writes, strict=True)
    ]
    return outs[0], outs[1]


def _rotate(
    there: Sequence[Tensor],
    reads: Sequence[Tensor | None],
    writes: Sequence[Tensor | None],
    table: tuple[Tensor, Tensor],
    transposed: bool,
) -> None:
    """Launch for what is `there` of (q, k): dense in the last dimension, as its result is. `table`: contiguous."""
    if not there:
        return
    batch, _, tokens, width = there[0].shape
    heads = [0 if x is None else x.shape[1] for x in reads]
    half = width // 2
    block = 1 << (half - 1).bit_length()
    per_program = max(1, min(_HEADS_ELEMENTS // block, 1 << (max(heads) - 1).bit_length()))
    blocks = [-(-count // per_program) for count in heads]
    strides = [stride for x in (*reads, *writes) for stride in ((0, 0, 0) if x is None else x.stride()[:3])]
    of_table = (0 if table[0].shape[0] == 1 else tokens * width, width)
    scalars = (tokens, *heads, blocks[0], *strides, *of_table)
    constants = {
        "HALF": half, "BLOCK": block, "HEADS": per_program, "STEP": _step(half, *strides), "HAS_Q": blocks[0] > 0,
        "HAS_K": blocks[1] > 0, "TRANSPOSED": transposed,
    }  # fmt: skip
    _launch(kernels.rotate_kernel, constants, batch * tokens, sum(blocks), (*reads, *writes, *table), scalars)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up; see `tiles`."""
    y = torch.empty_like(gate)
    _walk(kernels.swiglu_kernel, [gate, up], [y], {})
    return y


def swiglu_backward(
    dy: Tensor, gate: Tensor, up: Tensor, needs_gate: bool, needs_up: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients that are asked for; see `tiles`."""
    dgate, dup = (
        torch.empty_like(gate, dtype=x.dtype) if needed else None for x, needed in ((gate, needs_gate), (up, needs_up))
    )
    _walk(kernels.swiglu_backward_kernel, [dy, gate, up], [dgate, dup], {"NEED_GATE": needs_gate, "NEED_UP": needs_up})
    return dgate, dup


def _walk(kernel: Any, reads: Sequence[Tensor], writes: Sequence[Tensor | None], flags: Mapping[str, bool]) -> None:
    """Launch a kernel that goes through operands of one shape; what it writes lies alike, and dense."""
    like = next(out for out in writes if out is not None)
    count = like.numel()
    if not count:
        return
    if like.is_contiguous():
        laid = [laid_out(operand) for operand in reads]
    else:  # in the order in which it lies
        laid = [(x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x), count) for x in reads]
    columns = like.shape[-1] if like.is_contiguous() else count
    strides = [stride for _, stride in laid]
    if count < _NARROW and set(strides) == {columns}:  # one row of all there is
        columns, strides = count, [count] * len(laid)
    blocks = -(-columns // _BLOCK)
    constants = {"BLOCK": _BLOCK, "STEP": _step(columns, *strides), **flags}
    tensors = (*(x for x, _ in laid), *writes)
    _launch(kernel, constants, blocks * (count // columns), 1, tensors, (columns, blocks, *strides))


def _launch(
    kernel: Any,
    constants: Mapping[str, Any],
    across: int,
    down: int,
    tensors: tuple[Tensor | None, ...],
    scalars: tuple[int, ...],
) -> None:
    """Launch what was compiled for such arguments, or compile it. A scalar of 64 bits makes it another kernel."""
    wide = tuple(scalar >= _NARROW for scalar in scalars)
    dtypes = tuple(None if x is None else x.dtype for x in tensors)
    device = next(x.get_device() for x in tensors if x is not None)
    key = (kernel, tuple(constants.values()), dtypes, wide, device)
    launcher = _launchers.get(key)
    if launcher is None:
        launcher = _launchers[key] = Launcher(kernel, constants, _WARPS, device)
    launcher(across, down, tensors, scalars)


def _step(*sizes: int) -> int:
    """The power of two, up to a vector load's, that all sizes are multiples of."""
    bits = 0
    for size in sizes:
        bits |= size
    return min(bits & -bits, _WIDEST_STEP)
