"""The logits' GEMM with the tile's work in its epilogue: fp32 logits live in registers and never reach memory.

A persistent kernel on NVIDIA Hopper: operands come through the tensor memory accelerator, a program walks output tiles of
128 x 256 in an order that keeps operands in the L2 cache, and the epilogue does to its accumulators what `tiles_triton` does to
a tile in memory. What a row's statistics need of all tiles is written as one partial figure per row and tile, and joined by a
small kernel: no atomics, so the same inputs give the same bits.

`fold_logits` needs a reference before it can exponentiate. It takes the one that the row has, and where a tile's maximum turns
out to exceed it by more than `limit`, the reference is moved and the product is computed again. That decision is taken on the
device: the second launch finds a flag that is not set, and ends. On ordinary logits it never is set, since the reference begins
as the logit of a token that the model chose.

Contracts are in `fused`; the tile's own work in `tiles`.
"""

# Triton ships no annotations, and a kernel's arguments are pointers and blocks that Python's types do not describe:
# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped"

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from frostline.kernels.lm_head.output_tiles import COLUMNS, ROWS, Partials, partials
from frostline.kernels.lm_head.tiles_torch import INACTIVE
from frostline.kernels.lm_head.tiles_triton import _LOWEST, PER_ROW, _moved_moment, _tanh

_INACTIVE = tl.constexpr(INACTIVE)
_DEPTH = 64  # of a step along the hidden dimension
_GROUP = 16  # row tiles that are walked together, so that a weight tile is read from the L2 cache
_JOIN_ROWS, _JOIN_TILES = 16, 128
# 128 x 256 accumulators in two warp groups, and stages of 48 KiB in flight: four beside half a 16-bit tile on its way out (224
# of 227 KiB of shared memory), three beside half an fp32 one.
_WARPS, _STAGES, _STAGES_BESIDE_FP32 = 8, 4, 3
# Sizes and slices that change from call to call must not compile a kernel each.
_kernel = triton.jit(
    do_not_specialize=["rows", "width", "start", "tiles"],
    do_not_specialize_on_alignment=[*PER_ROW, "maxima", "sums", "moments", "values", "columns", "flag"],
)


@triton.jit
def _place(tile, rows, width, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """The row tile and column tile of a program's turn: down a group of row tiles, then on to the next columns."""
    down = tl.cdiv(rows, BM)
    in_group = GROUP * tl.cdiv(width, BN)
    first = (tile // in_group) * GROUP
    height = tl.minimum(down - first, GROUP)
    return first + (tile % in_group) % height, (tile % in_group) // height


@triton.jit
def _product(hidden, weight, row_tile, column_tile, inner_size, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    sums = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(inner_size, BK)):
        a = hidden.load([row_tile * BM, step * BK])
        b = weight.load([column_tile * BN, step * BK])
        sums = tl.dot(a, b.T, sums)
    return sums


@triton.jit
def _store(out, tile, row_tile, column_tile, BM: tl.constexpr, BN: tl.constexpr):
    """Store a tile in halves: shared memory has no room for a whole one beside the operands."""
    left, right = tl.split(tl.permute(tl.reshape(tile, (BM, 2, BN // 2)), (0, 2, 1)))
    out.store([row_tile * BM, column_tile * BN], left.to(out.dtype))
    out.store([row_tile * BM, column_tile * BN + BN // 2], right.to(out.dtype))


@triton.jit
def _transformed(x, bias, column, width, inner, outer, CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Transformed logits of a tile of accumulators; -inf beyond the vocabulary's slice."""
    if HAS_BIAS:
        x += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    z = outer * _tanh(inner * x) if CAPPED else outer * x
    return tl.where((column < width)[None, :], z, -float("inf"))


@triton.jit
def _store_best(z, column, values, columns, partial, start, width, there):
    """The largest logit of each row of a tile, and the first column that has it."""
    highest = tl.max(z, 1)
    first = tl.min(tl.where(z == highest[:, None], column[None, :], width), 1)
    tl.store(values + partial, highest, mask=there)
    tl.store(columns + partial, (start + first).to(tl.float32), mask=there)


@_kernel
def _fold_kernel(
    hidden, weight, p_out, bias, targets, reference, maxima, sums, moments, values, columns, flag, rows, width, start,
    inner_size, inner, outer,
    REPAIR: tl.constexpr, CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MOMENT: tl.constexpr, HAS_BEST: tl.constexpr,
    GROUP: tl.constexpr, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    tiles = tl.cdiv(rows, BM) * tl.cdiv(width, BN)
    if REPAIR:
        tiles = tl.where(tl.load(flag) == 0, 0, tiles)
    elif program == 0:
        tl.store(flag, 0)
    for tile in tl.range(program, tiles, PROGRAMS, flatten=True):
        row_tile, column_tile = _place(tile, rows, width, GROUP, BM, BN)
        x = _product(hidden, weight, row_tile, column_tile, inner_size, BM, BN, BK)
        row = row_tile * BM + tl.arange(0, BM)
        column = column_tile * BN + tl.arange(0, BN)
        target = tl.load(targets + row, mask=row < rows, other=_INACTIVE)
        ours = tl.load(reference + row, mask=row < rows, other=0.0)
        partial = column_tile * rows + row
        z = _transformed(x, bias, column, width, inner, outer, CAPPED, HAS_BIAS)
        if HAS_BEST:
            _store_best(z, column, values, columns, partial, start, width, row < rows)
        others = tl.where((target - start)[:, None] == column[None, :], -float("inf"), z)
        shifted = others - ours[:, None]
        p = tl.exp(shifted)
        tl.store(maxima + partial, tl.max(others, 1), mask=row < rows)
        tl.store(sums + partial, tl.sum(p, 1), mask=row < rows)
        if HAS_MOMENT:
            tl.store(moments + partial, tl.sum(tl.where(p > 0, p * shifted, 0.0), 1), mask=row < rows)
        if CAPPED:
            tanh = z / outer
            p = tl.where(p > 0, p * (1.0 - tanh * tanh), 0.0)
        p = tl.where((target == _INACTIVE)[:, None], 0.0, p)
        _store(p_out, p, row_tile, column_tile, BM, BN)


@_kernel
def _reduce_kernel(
    hidden, weight, x_out, bias, targets, maxima, sums, moments, values, columns, rows, width, start, inner_size, inner, outer,
    KEEP: tl.constexpr, CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MOMENT: tl.constexpr, HAS_BEST: tl.constexpr,
    GROUP: tl.constexpr, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Partial sums relative to each tile's own maximum; `KEEP` stores the raw logits as well."""
    tiles = tl.cdiv(rows, BM) * tl.cdiv(width, BN)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        row_tile, column_tile = _place(tile, rows, width, GROUP, BM, BN)
        x = _product(hidden, weight, row_tile, column_tile, inner_size, BM, BN, BK)
        if KEEP:
            _store(x_out, x, row_tile, column_tile, BM, BN)
        row = row_tile * BM + tl.arange(0, BM)
        column = column_tile * BN + tl.arange(0, BN)
        target = tl.load(targets + row, mask=row < rows, other=_INACTIVE)
        partial = column_tile * rows + row
        z = _transformed(x, bias, column, width, inner, outer, CAPPED, HAS_BIAS)
        if HAS_BEST:
            _store_best(z, column, values, columns, partial, start, width, row < rows)
        others = tl.where((target - start)[:, None] == column[None, :], -float("inf"), z)
        maximum = tl.maximum(tl.max(others, 1), _LOWEST)
        shifted = others - maximum[:, None]
        p = tl.exp(shifted)
        tl.store(maxima + partial, maximum, mask=row < rows)
        tl.store(sums + partial, tl.sum(p, 1), mask=row < rows)
        if HAS_MOMENT:
            tl.store(moments + partial, tl.sum(tl.where(p > 0, p * shifted, 0.0), 1), mask=row < rows)


@_kernel
def _gradient_kernel(
    hidden, weight, out, bias, targets, reference, log_total, at_target, onto_p, grad_entropy, entropy, rows, width, start,
    inner_size, inner, outer, CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ENTROPY: tl.constexpr,
    GROUP: tl.constexpr, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(rows, BM) * tl.cdiv(width, BN)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        row_tile, column_tile = _place(tile, rows, width, GROUP, BM, BN)
        x = _product(hidden, weight, row_tile, column_tile, inner_size, BM, BN, BK)
        row = row_tile * BM + tl.arange(0, BM)
        column = column_tile * BN + tl.arange(0, BN)
        target = tl.load(targets + row, mask=row < rows, other=_INACTIVE)
        log_z = tl.load(log_total + row, mask=row < rows, other=0.0)
        others = tl.load(onto_p + row, mask=row < rows, other=0.0).to(tl.float32)
        z = _transformed(x, bias, column, width, inner, outer, CAPPED, HAS_BIAS)
        log_p = z - tl.load(reference + row, mask=row < rows, other=0.0)[:, None] - log_z[:, None]
        p = tl.exp(log_p)
        hit = (target - start)[:, None] == column[None, :]
        own = tl.load(at_target + row, mask=row < rows, other=0.0).to(tl.float32)
        gradient = tl.where(hit, own[:, None], others[:, None] * p)
        if HAS_ENTROPY:
            surprise = p * (log_p + tl.load(entropy + row, mask=row < rows, other=0.0)[:, None])
            onto_entropy = tl.load(grad_entropy + row, mask=row < rows, other=0.0).to(tl.float32)
            gradient -= onto_entropy[:, None] * tl.where(p > 0, surprise, 0.0)
        if CAPPED:
            tanh = z / outer
            gradient *= (1.0 - tanh * tanh) * (inner * outer)
        else:
            gradient *= outer
        gradient = tl.where((target == _INACTIVE)[:, None], 0.0, gradient)
        _store(out, gradient, row_tile, column_tile, BM, BN)


@_kernel
def _move_kernel(
    maxima, targets, reference, total, moment, rescale, flag, rows, tiles, limit,
    HAS_MOMENT: tl.constexpr, JOIN_ROWS: tl.constexpr, JOIN_TILES: tl.constexpr,
):  # fmt: skip
    """Move the references that a tile exceeded, bring the sums of earlier tiles along, and ask for the product again."""
    row = tl.program_id(0) * JOIN_ROWS + tl.arange(0, JOIN_ROWS)
    there = row < rows
    highest = tl.full([JOIN_ROWS], _LOWEST, tl.float32)
    for begin in range(0, tiles, JOIN_TILES):
        tile = begin + tl.arange(0, JOIN_TILES)
        read = (tile < tiles)[:, None] & there[None, :]
        found = tl.load(maxima + tile[:, None] * rows + row[None, :], mask=read, other=_LOWEST)
        highest = tl.maximum(highest, tl.max(found, 0))
    before = tl.load(reference + row, mask=there, other=0.0)
    counts = tl.load(targets + row, mask=there, other=_INACTIVE) != _INACTIVE
    grown = (highest > before + limit) & counts
    after = tl.where(grown, highest, before)
    scale = tl.where(grown, tl.exp(before - after), 1.0)
    total_before = tl.load(total + row, mask=there, other=0.0)
    tl.store(reference + row, after, mask=there)
    tl.store(rescale + row, scale, mask=there)
    tl.store(total + row, total_before * scale, mask=there)
    if HAS_MOMENT:
        moved = _moved_moment(tl.load(moment + row, mask=there, other=0.0), total_before, scale, after - before)
        tl.store(moment + row, moved, mask=there)
    if tl.max(grown.to(tl.int32), 0) > 0:
        tl.store(flag, 1)


@_kernel
def _add_kernel(
    sums, moments, total, moment, rows, tiles,
    HAS_MOMENT: tl.constexpr, JOIN_ROWS: tl.constexpr, JOIN_TILES: tl.constexpr,
):  # fmt: skip
    """Add partial sums that are relative to the row's own reference."""
    row = tl.program_id(0) * JOIN_ROWS + tl.arange(0, JOIN_ROWS)
    there = row < rows
    added = tl.load(total + row, mask=there, other=0.0)
    added_moment = tl.load(moment + row, mask=there, other=0.0)
    for begin in range(0, tiles, JOIN_TILES):
        tile = begin + tl.arange(0, JOIN_TILES)
        read = (tile < tiles)[:, None] & there[None, :]
        at = tile[:, None] * rows + row[None, :]
        added += tl.sum(tl.load(sums + at, mask=read, other=0.0), 0)
        if HAS_MOMENT:
            added_moment += tl.sum(tl.load(moments + at, mask=read, other=0.0), 0)
    tl.store(total + row, added, mask=there)
    if HAS_MOMENT:
        tl.store(moment + row, added_moment, mask=there)


@_kernel
def _join_kernel(
    maxima, sums, moments, targets, reference, total, moment, rows, tiles,
    HAS_MOMENT: tl.constexpr, JOIN_ROWS: tl.constexpr, JOIN_TILES: tl.constexpr,
):  # fmt: skip
    """Join partial sums that are each relative to their own maximum, chunk after chunk."""
    row = tl.program_id(0) * JOIN_ROWS + tl.arange(0, JOIN_ROWS)
    there = (row < rows) & (tl.load(targets + row, mask=row < rows, other=_INACTIVE) != _INACTIVE)
    ours = tl.load(reference + row, mask=there, other=0.0)
    sum_of_row = tl.load(total + row, mask=there, other=0.0)
    moment_of_row = tl.zeros([JOIN_ROWS], tl.float32)
    if HAS_MOMENT:
        moment_of_row = tl.load(moment + row, mask=there, other=0.0)
    for begin in range(0, tiles, JOIN_TILES):
        tile = begin + tl.arange(0, JOIN_TILES)
        read = (tile < tiles)[:, None] & there[None, :]
        at = tile[:, None] * rows + row[None, :]
        maximum = tl.load(maxima + at, mask=read, other=_LOWEST)
        part = tl.load(sums + at, mask=read, other=0.0)
        after = tl.where(ours == ours, tl.maximum(ours, tl.max(maximum, 0)), ours)  # a reference that is NaN stays one
        scale, step = tl.exp(maximum - after[None, :]), after[None, :] - maximum
        if HAS_MOMENT:
            moment_of_row = _moved_moment(moment_of_row, sum_of_row, tl.exp(ours - after), after - ours)
            part_moment = tl.load(moments + at, mask=read, other=0.0)
            moment_of_row += tl.sum(_moved_moment(part_moment, part, scale, step), 0)
        sum_of_row = sum_of_row * tl.exp(ours - after) + tl.sum(part * scale, 0)
        ours = after
    tl.store(reference + row, ours, mask=there)
    tl.store(total + row, sum_of_row, mask=there)
    if HAS_MOMENT:
        tl.store(moment + row, moment_of_row, mask=there)


@_kernel
def _best_kernel(values, columns, targets, best, rows, tiles, JOIN_ROWS: tl.constexpr, JOIN_TILES: tl.constexpr):
    """Join the best columns of tiles: of equal values the first column."""
    row = tl.program_id(0) * JOIN_ROWS + tl.arange(0, JOIN_ROWS)
    there = (row < rows) & (tl.load(targets + row, mask=row < rows, other=_INACTIVE) != _INACTIVE)
    value = tl.load(best + row, mask=there, other=0.0)
    column = tl.load(best + rows + row, mask=there, other=0.0)
    for begin in range(0, tiles, JOIN_TILES):
        tile = begin + tl.arange(0, JOIN_TILES)
        read = (tile < tiles)[:, None] & there[None, :]
        at = tile[:, None] * rows + row[None, :]
        part = tl.load(values + at, mask=read, other=-float("inf"))
        highest = tl.max(part, 0)
        where = tl.load(columns + at, mask=read, other=float("inf"))
        first = tl.min(tl.where(part == highest[None, :], where, float("inf")), 0)
        column = tl.where(highest > value, first, column)
        value = tl.maximum(value, highest)
    tl.store(best + row, value, mask=there)
    tl.store(best + rows + row, column, mask=there)


@cache
def _programs(device: torch.device) -> int:
    """How many persistent programs: one for each multiprocessor; in the interpreter a few, so that each walks several tiles."""
    return 3 if device.type == "cpu" else int(torch.cuda.get_device_properties(device).multi_processor_count)


def _operands(hidden: Tensor, weight: Tensor) -> tuple[Any, Any]:
    return TensorDescriptor.from_tensor(hidden, [ROWS, _DEPTH]), TensorDescriptor.from_tensor(weight, [COLUMNS, _DEPTH])


def _output(tile: Tensor) -> Any:
    return TensorDescriptor.from_tensor(tile, [ROWS, COLUMNS // 2])


def _shape(hidden: Tensor, weight: Tensor, stages: int = _STAGES) -> tuple[tuple[int], dict[str, Any]]:
    """The grid, and the constants of its walk."""
    tiles = triton.cdiv(hidden.shape[0], ROWS) * triton.cdiv(weight.shape[0], COLUMNS)
    programs = _programs(hidden.device)
    sizes = {"GROUP": _GROUP, "PROGRAMS": programs, "BM": ROWS, "BN": COLUMNS, "BK": _DEPTH}
    return (min(programs, tiles),), sizes | {"num_warps": _WARPS, "num_stages": stages}


def _joining(rows: int) -> tuple[tuple[int], dict[str, int]]:
    return (triton.cdiv(rows, _JOIN_ROWS),), {"JOIN_ROWS": _JOIN_ROWS, "JOIN_TILES": _JOIN_TILES, "num_warps": 4}


def fold_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    p: Tensor,
    reference: Tensor,
    total: Tensor,
    moment: Tensor | None,
    best: Tensor | None,
    rescale: Tensor,
    workspace: Tensor,
    start: int,
    limit: float,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """The product and `tiles.fold_tile` of it in one (see `fused`)."""
    rows, width = p.shape
    part = partials(workspace, rows, width, best=best is not None)
    grid, sizes = _shape(hidden, weight)
    join_grid, join_sizes = _joining(rows)
    flags = {
        "CAPPED": capped, "HAS_BIAS": bias is not None, "HAS_MOMENT": moment is not None, "HAS_BEST": best is not None,
    }  # fmt: skip
    operands, out = _operands(hidden, weight), _output(p)
    offsets, kept_moment = hidden if bias is None else bias, total if moment is None else moment
    for repair in (False, True):
        _fold_kernel[grid](
            *operands, out, offsets, targets, reference, *part, rows, width, start, hidden.shape[1],
            inner, outer, REPAIR=repair, **flags, **sizes,
        )  # fmt: skip
        if not repair:
            _move_kernel[join_grid](
                part.maxima, targets, reference, total, kept_moment, rescale, part.flag, rows, len(part.maxima), limit,
                HAS_MOMENT=moment is not None, **join_sizes,
            )  # fmt: skip
    _add_kernel[join_grid](
        part.sums, part.moments, total, kept_moment, rows, len(part.sums), HAS_MOMENT=moment is not None, **join_sizes
    )  # fmt: skip
    _join_best(part, targets, best, rows)


def _join_best(part: Partials, targets: Tensor, best: Tensor | None, rows: int) -> None:
    if best is not None:
        grid, sizes = _joining(rows)
        _best_kernel[grid](part.best, part.best_column, targets, best, rows, len(part.best), **sizes)


def reduce_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    x: Tensor | None,
    reference: Tensor,
    total: Tensor,
    moment: Tensor | None,
    best: Tensor | None,
    workspace: Tensor,
    start: int,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """The product and `tiles.reduce_tile` of it in one (see `fused`)."""
    rows, width = hidden.shape[0], weight.shape[0]
    part = partials(workspace, rows, width, best=best is not None)
    grid, sizes = _shape(hidden, weight, _STAGES if x is None else _STAGES_BESIDE_FP32)
    operands = _operands(hidden, weight)
    kept = operands[0] if x is None else _output(x)
    _reduce_kernel[grid](
        *operands, kept, hidden if bias is None else bias, targets, *part[:-1], rows, width, start,
        hidden.shape[1], inner, outer,
        KEEP=x is not None, CAPPED=capped, HAS_BIAS=bias is not None, HAS_MOMENT=moment is not None,
        HAS_BEST=best is not None, **sizes,
    )  # fmt: skip
    join_grid, join_sizes = _joining(rows)
    _join_kernel[join_grid](
        part.maxima, part.sums, part.moments, targets, reference, total, total if moment is None else moment, rows,
        len(part.maxima), HAS_MOMENT=moment is not None, **join_sizes,
    )  # fmt: skip
    _join_best(part, targets, best, rows)


def gradient_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    reference: Tensor,
    log_total: Tensor,
    at_target: Tensor,
    onto_p: Tensor,
    grad_entropy: Tensor | None,
    entropy: Tensor | None,
    out: Tensor,
    start: int,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """The product and `tiles.gradient_tile` of it in one (see `fused`)."""
    rows, width = out.shape
    grid, sizes = _shape(hidden, weight)
    _gradient_kernel[grid](
        *_operands(hidden, weight), _output(out), hidden if bias is None else bias,
        targets, reference, log_total, at_target, onto_p, reference if grad_entropy is None else grad_entropy,
        reference if entropy is None else entropy, rows, width, start, hidden.shape[1], inner, outer,
        CAPPED=capped, HAS_BIAS=bias is not None, HAS_ENTROPY=grad_entropy is not None, **sizes,
    )  # fmt: skip
