"""Rotary embeddings and SwiGLU in Triton. Contracts are in `tiles`, grids and memory in `tiles_triton`.

Numbers that change from batch to batch must not compile a kernel each, so none is specialized on; `STEP`, which all strides and
widths are multiples of, is what the compiler needs to know of them for wide loads. Offsets of rows are 64-bit.
"""

# Triton ships no annotations, and a kernel's arguments are pointers and blocks that Python's types do not describe:
# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped"

from __future__ import annotations

import triton
import triton.language as tl

_ROTATE_SCALARS = [
    "tokens", "q_heads", "k_heads", "q_blocks", "q_batch", "q_head", "q_token", "k_batch", "k_head", "k_token",
    "q_out_batch", "q_out_head", "q_out_token", "k_out_batch", "k_out_head", "k_out_token",
    "table_batch", "table_token",
]  # fmt: skip


@triton.jit
def _rotate_heads(
    x, out, cos_1, sin_1, cos_2, sin_2, batch, first, token, heads, x_batch, x_head, x_token, out_batch, out_head, out_token,
    HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Rotate `HEADS` heads of one token from `first` on."""
    head = first + tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK)
    inside = (head < heads)[:, None]
    if HALF != BLOCK:
        inside = inside & (column < HALF)[None, :]
    head = head.to(tl.int64)
    x += tl.multiple_of(batch * x_batch + token * x_token, STEP)
    out += tl.multiple_of(batch * out_batch + token * out_token, STEP)
    read = tl.multiple_of(head * x_head, STEP)[:, None] + column[None, :]
    written = tl.multiple_of(head * out_head, STEP)[:, None] + column[None, :]
    low = tl.load(x + read, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(x + read + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + written, (low * cos_1 - high * sin_1).to(out.dtype.element_ty), mask=inside)
    tl.store(out + written + HALF, (high * cos_2 + low * sin_2).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_ROTATE_SCALARS)
def rotate_kernel(
    q, k, q_out, k_out, cos, sin, tokens, q_heads, k_heads, q_blocks, q_batch, q_head, q_token, k_batch, k_head, k_token,
    q_out_batch, q_out_head, q_out_token, k_out_batch, k_out_head, k_out_token, table_batch, table_token,
    HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, STEP: tl.constexpr, HAS_Q: tl.constexpr, HAS_K: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """A program for each token of the batch (across) and block of heads (down): those of q first, then those of k."""
    batch = (tl.program_id(0) // tokens).to(tl.int64)
    token = (tl.program_id(0) % tokens).to(tl.int64)
    block = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    cos += tl.multiple_of(batch * table_batch + token * table_token, STEP)
    sin += tl.multiple_of(batch * table_batch + token * table_token, STEP)
    cos_1 = tl.load(cos + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    cos_2 = tl.load(cos + HALF + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    sin_1 = tl.load(sin + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    sin_2 = tl.load(sin + HALF + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    if TRANSPOSED:
        swapped = -sin_2
        sin_2 = -sin_1
        sin_1 = swapped
    if HAS_Q:  # noqa: SIM102  # one is decided when it is compiled, the other when it runs
        if block < q_blocks:
            _rotate_heads(
                q, q_out, cos_1, sin_1, cos_2, sin_2, batch, block * HEADS, token, q_heads, q_batch, q_head, q_token,
                q_out_batch, q_out_head, q_out_token, HALF, BLOCK, HEADS, STEP,
            )  # fmt: skip
    if HAS_K:  # noqa: SIM102
        if block >= q_blocks:
            _rotate_heads(
                k, k_out, cos_1, sin_1, cos_2, sin_2, batch, (block - q_blocks) * HEADS, token, k_heads, k_batch, k_head,
                k_token, k_out_batch, k_out_head, k_out_token, HALF, BLOCK, HEADS, STEP,
            )  # fmt: skip


@triton.jit
def _place(columns, blocks, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """(row, columns of the program's block, which of them are there)."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return row, column, column < tl.multiple_of(columns, STEP)


@triton.jit(do_not_specialize=["columns", "blocks", "gate_stride", "up_stride"])
def swiglu_kernel(gate, up, y, columns, blocks, gate_stride, up_stride, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """A program for each block of columns of a row; y is contiguous."""
    row, column, inside = _place(columns, blocks, BLOCK, STEP)
    x = tl.load(gate + tl.multiple_of(row * gate_stride, STEP) + column, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(up + tl.multiple_of(row * up_stride, STEP) + column, mask=inside, other=0.0).to(tl.float32)
    value = x * tl.sigmoid(x) * factor
    tl.store(y + tl.multiple_of(row * columns, STEP) + column, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["columns", "blocks", "dy_stride", "gate_stride", "up_stride"])
def swiglu_backward_kernel(
    dy, gate, up, dgate, dup, columns, blocks, dy_stride, gate_stride, up_stride,
    BLOCK: tl.constexpr, STEP: tl.constexpr, NEED_GATE: tl.constexpr, NEED_UP: tl.constexpr,
):  # fmt: skip
    """A program for each block of columns of a row; the gradients are contiguous."""
    row, column, inside = _place(columns, blocks, BLOCK, STEP)
    upstream = tl.load(dy + tl.multiple_of(row * dy_stride, STEP) + column, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(gate + tl.multiple_of(row * gate_stride, STEP) + column, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(x)
    written = tl.multiple_of(row * columns, STEP) + column
    if NEED_UP:
        tl.store(dup + written, (upstream * x * s).to(dup.dtype.element_ty), mask=inside)
    if NEED_GATE:
        factor = tl.load(up + tl.multiple_of(row * up_stride, STEP) + column, mask=inside, other=0.0).to(tl.float32)
        value = upstream * factor * (s * (1.0 + x * (1.0 - s)))
        tl.store(dgate + written, value.to(dgate.dtype.element_ty), mask=inside)
