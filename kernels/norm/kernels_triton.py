"""The norms on a GPU: one pass over the rows forward and one backward, in Triton. Contracts are in `tiles`.

A program holds a tile of rows in registers: many short rows, or one row of up to `geometry.WIDEST` columns. Where parameters
need a gradient, a fixed number of programs walk all tiles, each keeps its share of the sums over rows in registers, writes it
once as one fp32 partial row, and a small kernel adds the partial rows: no atomics, so the same inputs give the same bits.
Frozen parameters leave nothing of that: no accumulator, no partial rows, no second kernel.

A row that no program can hold is cut into chunks: a first kernel writes each chunk's sums, the second adds a row's sums up and
works on its chunk.

Sums over a row are formed from the same values in the same order whatever needs a gradient, and a product and a sum are fused
only where the code says `fma` (`enable_fp_fusion` is off: the compiler would fuse as it sees fit, differently in each kernel).
So the gradient of the input does not depend on what is frozen.
"""

# Triton ships no annotations, and a kernel's arguments are pointers and blocks that Python's types do not describe:
# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped"

from __future__ import annotations

import triton
import triton.language as tl

# Numbers that change from batch to batch, and strides, must not compile a kernel each. `STEP` is what strides are multiples of.
kernel = triton.jit(
    do_not_specialize=["rows", "x_stride", "residual_stride", "dy_stride", "dtotal_stride", "eps", "offset", "programs"]
)


@triton.jit
def _pointers(base, first, stride, column, ROWS: tl.constexpr, STEP: tl.constexpr):
    """Addresses of a tile: `ROWS` rows from `first` on, 64-bit offsets of rows."""
    base += tl.multiple_of(first * stride, STEP)
    if ROWS == 1:
        return base + column[None, :]
    down = tl.multiple_of(tl.arange(0, ROWS).to(tl.int64) * stride, STEP)
    return base + down[:, None] + column[None, :]


@triton.jit
def _load(
    base, first, stride, column, rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr
):
    """A tile [ROWS, BLOCK]; zeros beyond the last row and the last column. Masked only where there can be a beyond."""
    at = _pointers(base, first, stride, column, ROWS, STEP)
    if ROWS == 1:
        if COLUMNS % BLOCK == 0:
            return tl.load(at)
        return tl.load(at, mask=(column < COLUMNS)[None, :], other=0.0)
    inside = (first + tl.arange(0, ROWS) < rows)[:, None]
    if COLUMNS % BLOCK != 0:
        inside = inside & (column < COLUMNS)[None, :]
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _store(
    base, values, first, column, rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """Store a tile to a contiguous [rows, COLUMNS]."""
    at = _pointers(base, first, COLUMNS, column, ROWS, STEP)
    values = values.to(base.dtype.element_ty)
    if ROWS == 1:
        if COLUMNS % BLOCK == 0:
            tl.store(at, values)
        else:
            tl.store(at, values, mask=(column < COLUMNS)[None, :])
    else:
        inside = (first + tl.arange(0, ROWS) < rows)[:, None]
        if COLUMNS % BLOCK != 0:
            inside = inside & (column < COLUMNS)[None, :]
        tl.store(at, values, mask=inside)


@triton.jit
def _load_columns(base, column, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """A parameter's values [1, BLOCK] in fp32."""
    if COLUMNS % BLOCK == 0:
        return tl.load(base + column).to(tl.float32)[None, :]
    return tl.load(base + column, mask=column < COLUMNS, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _load_rows(base, first, rows, ROWS: tl.constexpr):
    """One fp32 figure for each row of a tile, [ROWS, 1]."""
    row = first + tl.arange(0, ROWS)
    if ROWS == 1:
        return tl.load(base + row)[:, None]
    return tl.load(base + row, mask=row < rows, other=0.0)[:, None]


@triton.jit
def _store_rows(base, values, first, rows, ROWS: tl.constexpr):
    row = first + tl.arange(0, ROWS)
    tl.store(base + row, values, mask=row < rows)


@triton.jit
def _chunk_sums(base, row, CHUNKS: tl.constexpr, PADDED: tl.constexpr):
    """What the chunks of one row wrote, [PADDED]."""
    chunk = tl.arange(0, PADDED)
    return tl.load(base + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0.0)


@triton.jit
def _mean(total, COLUMNS: tl.constexpr):
    """A row's sum over its length. Triton's `/` is less exact than this product, and an exact division takes many registers."""
    return total * (1.0 / COLUMNS)


@triton.jit
def _rounded(values, like, ROUNDED: tl.constexpr):
    """Normalised values as the casting mode multiplies them with the weight: rounded to the dtype of the input, or not."""
    return values.to(like.dtype).to(tl.float32) if ROUNDED else values


@kernel
def forward_kernel(
    x, residual, weight, bias, sums, y, total, stats,
    rows: tl.int64, x_stride: tl.int64, residual_stride: tl.int64, eps, offset,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, CHUNKS: tl.constexpr,
    PADDED: tl.constexpr, CENTRED: tl.constexpr, ROUNDED: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """A tile of rows, or (`CHUNKS` > 1) a chunk of one row whose sums are known."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    chunk = tl.program_id(1)
    column = chunk * BLOCK + tl.arange(0, BLOCK)
    x_tile = _load(x, first, x_stride, column, rows, ROWS, COLUMNS, BLOCK, STEP)
    if HAS_RESIDUAL:
        added = _load(residual, first, residual_stride, column, rows, ROWS, COLUMNS, BLOCK, STEP).to(tl.float32)
        x_tile = (x_tile.to(tl.float32) + added).to(x.dtype.element_ty)
        _store(total, x_tile, first, column, rows, ROWS, COLUMNS, BLOCK, STEP)
    normal = x_tile.to(tl.float32)
    # The parameters are asked for here, so that they arrive while the rows' sums are formed.
    scale = _load_columns(weight, column, COLUMNS, BLOCK) if HAS_WEIGHT else column
    shift = _load_columns(bias, column, COLUMNS, BLOCK) if HAS_BIAS else column
    if CHUNKS > 1:  # one row: its statistics from those of its chunks
        moment = _chunk_sums(sums, first, CHUNKS, PADDED)
        if CENTRED:
            size = tl.minimum(tl.maximum(COLUMNS - tl.arange(0, PADDED) * BLOCK, 0), BLOCK).to(tl.float32)
            means = _chunk_sums(sums + rows * CHUNKS, first, CHUNKS, PADDED)
            mean = _mean(tl.sum(means * size, 0), COLUMNS)
            moment += size * (means - mean) * (means - mean)
            normal -= mean
        rstd = tl.rsqrt(_mean(tl.sum(moment, 0), COLUMNS) + eps)
        if KEEP and chunk == 0:
            if CENTRED:
                tl.store(stats + rows + first, mean)
            tl.store(stats + first, rstd)
        normal *= rstd
    else:
        if CENTRED:
            mean = _mean(tl.sum(normal, 1), COLUMNS)
            normal -= mean[:, None]
            if COLUMNS % BLOCK != 0:
                normal = tl.where((column < COLUMNS)[None, :], normal, 0.0)
            if KEEP:
                _store_rows(stats + rows, mean, first, rows, ROWS)
        rstd = tl.rsqrt(_mean(tl.sum(normal * normal, 1), COLUMNS) + eps)
        if KEEP:
            _store_rows(stats, rstd, first, rows, ROWS)
        normal *= rstd[:, None]
    result = _rounded(normal, x_tile, ROUNDED)
    if HAS_WEIGHT:
        result *= scale + offset
    if HAS_BIAS:
        result += shift
    _store(y, result, first, column, rows, ROWS, COLUMNS, BLOCK, STEP)


@kernel
def forward_sums_kernel(
    x, residual, sums, total, rows: tl.int64, x_stride: tl.int64, residual_stride: tl.int64,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, CHUNKS: tl.constexpr, CENTRED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """A chunk of one row: the sum of squares, or the mean and the sum of squared deviations from it."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * BLOCK + tl.arange(0, BLOCK)
    x_tile = _load(x, row, x_stride, column, rows, 1, COLUMNS, BLOCK, STEP)
    if HAS_RESIDUAL:
        added = _load(residual, row, residual_stride, column, rows, 1, COLUMNS, BLOCK, STEP).to(tl.float32)
        x_tile = (x_tile.to(tl.float32) + added).to(x.dtype.element_ty)
        _store(total, x_tile, row, column, rows, 1, COLUMNS, BLOCK, STEP)
    values = x_tile.to(tl.float32)
    if CENTRED:
        mean = tl.sum(tl.sum(values, 1), 0) / tl.minimum(COLUMNS - chunk * BLOCK, BLOCK)
        tl.store(sums + (rows + row) * CHUNKS + chunk, mean)
        values = tl.where((column < COLUMNS)[None, :], values - mean, 0.0)
    tl.store(sums + row * CHUNKS + chunk, tl.sum(tl.sum(values * values, 1), 0))


@triton.jit
def _normalised(x_tile, stats, first, rows, ROWS: tl.constexpr, CENTRED: tl.constexpr):
    """The normalised values of a tile and the rows' 1 / deviation [ROWS, 1], from the kept statistics."""
    rstd = _load_rows(stats, first, rows, ROWS)
    values = x_tile.to(tl.float32)
    if CENTRED:
        values -= _load_rows(stats + rows, first, rows, ROWS)
    return values * rstd, rstd


@triton.jit
def _input_gradient(
    upstream, normal, rstd, columns, offset, sums, first, rows,
    COLUMNS: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr, CENTRED: tl.constexpr, HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile's input, in fp32."""
    onto_normal = upstream
    if HAS_WEIGHT:
        onto_normal *= columns + offset
    if CHUNKS > 1:
        along = _mean(tl.sum(_chunk_sums(sums, first, CHUNKS, PADDED), 0), COLUMNS)
        if CENTRED:
            onto_normal -= _mean(tl.sum(_chunk_sums(sums + rows * CHUNKS, first, CHUNKS, PADDED), 0), COLUMNS)
        return tl.fma(normal, -along, onto_normal) * rstd
    if CENTRED:  # both sums at once: the barriers of one
        along, mean = tl.split(tl.sum(tl.join(onto_normal * normal, onto_normal), 1))
        onto_normal -= _mean(mean, COLUMNS)[:, None]
    else:
        along = tl.sum(onto_normal * normal, 1)
    return tl.fma(normal, -_mean(along, COLUMNS)[:, None], onto_normal) * rstd


@kernel
def backward_kernel(
    dy, dtotal, x, weight, stats, sums, dx,
    rows: tl.int64, dy_stride: tl.int64, dtotal_stride: tl.int64, x_stride: tl.int64, offset,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, CHUNKS: tl.constexpr,
    PADDED: tl.constexpr, CENTRED: tl.constexpr, HAS_TOTAL: tl.constexpr, HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """dx of a tile: (m - normal * mean(m * normal) - [centred] mean(m)) / deviation (+ dtotal), m being dy * (weight + offset).

    A program has one tile and no loop: half the registers of one that walks, so twice as much is on its way from memory.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x_tile = _load(x, first, x_stride, column, rows, ROWS, COLUMNS, BLOCK, STEP)
    dy_tile = _load(dy, first, dy_stride, column, rows, ROWS, COLUMNS, BLOCK, STEP)
    columns = _load_columns(weight, column, COLUMNS, BLOCK) if HAS_WEIGHT else column
    normal, rstd = _normalised(x_tile, stats, first, rows, ROWS, CENTRED)
    gradient = _input_gradient(
        dy_tile.to(tl.float32), normal, rstd, columns, offset, sums, first, rows, COLUMNS, CHUNKS, PADDED, CENTRED, HAS_WEIGHT
    )
    if HAS_TOTAL:
        gradient += _load(dtotal, first, dtotal_stride, column, rows, ROWS, COLUMNS, BLOCK, STEP).to(tl.float32)
    _store(dx, gradient, first, column, rows, ROWS, COLUMNS, BLOCK, STEP)


@kernel
def backward_walk_kernel(
    dy, dtotal, x, weight, stats, sums, dx, partials,
    rows: tl.int64, dy_stride: tl.int64, dtotal_stride: tl.int64, x_stride: tl.int64, offset,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, CHUNKS: tl.constexpr,
    PADDED: tl.constexpr, CENTRED: tl.constexpr, ROUNDED: tl.constexpr, HAS_TOTAL: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    NEED_X: tl.constexpr, NEED_WEIGHT: tl.constexpr, NEED_BIAS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`backward_kernel` for tile after tile, a grid apart, and this program's share of the parameters' gradients."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    columns = _load_columns(weight, column, COLUMNS, BLOCK) if HAS_WEIGHT else column
    if NEED_WEIGHT:
        onto_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    if NEED_BIAS:
        onto_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    stride = tl.num_programs(0).to(tl.int64) * ROWS
    for first in tl.range(program * ROWS, rows, stride, num_stages=STAGES):
        x_tile = _load(x, first, x_stride, column, rows, ROWS, COLUMNS, BLOCK, STEP)
        dy_tile = _load(dy, first, dy_stride, column, rows, ROWS, COLUMNS, BLOCK, STEP)
        normal, rstd = _normalised(x_tile, stats, first, rows, ROWS, CENTRED)
        upstream = dy_tile.to(tl.float32)
        if NEED_WEIGHT:
            onto_weight = tl.fma(upstream, _rounded(normal, x_tile, ROUNDED), onto_weight)
        if NEED_BIAS:
            onto_bias += upstream
        if NEED_X:
            gradient = _input_gradient(
                upstream, normal, rstd, columns, offset, sums, first, rows, COLUMNS, CHUNKS, PADDED, CENTRED, HAS_WEIGHT
            )
            if HAS_TOTAL:
                gradient += _load(dtotal, first, dtotal_stride, column, rows, ROWS, COLUMNS, BLOCK, STEP).to(tl.float32)
            _store(dx, gradient, first, column, rows, ROWS, COLUMNS, BLOCK, STEP)
    partials += program * ((NEED_WEIGHT + NEED_BIAS) * COLUMNS)
    if NEED_WEIGHT:
        tl.store(partials + column, tl.sum(onto_weight, 0), mask=column < COLUMNS)
    if NEED_BIAS:
        tl.store(partials + NEED_WEIGHT * COLUMNS + column, tl.sum(onto_bias, 0), mask=column < COLUMNS)


@kernel
def backward_sums_kernel(
    dy, x, weight, stats, sums, rows: tl.int64, dy_stride: tl.int64, x_stride: tl.int64, offset,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, CHUNKS: tl.constexpr, CENTRED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """A chunk of one row: the sums of m * normal and, centred, of m."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * BLOCK + tl.arange(0, BLOCK)
    x_tile = _load(x, row, x_stride, column, rows, 1, COLUMNS, BLOCK, STEP)
    onto_normal = _load(dy, row, dy_stride, column, rows, 1, COLUMNS, BLOCK, STEP).to(tl.float32)
    normal, _ = _normalised(x_tile, stats, row, rows, 1, CENTRED)
    if HAS_WEIGHT:
        onto_normal *= _load_columns(weight, column, COLUMNS, BLOCK) + offset
    tl.store(sums + row * CHUNKS + chunk, tl.sum(tl.sum(onto_normal * normal, 1), 0))
    if CENTRED:
        tl.store(sums + (rows + row) * CHUNKS + chunk, tl.sum(tl.sum(onto_normal, 1), 0))


@kernel
def reduce_kernel(
    partials, dweight, dbias, programs, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
    NEED_WEIGHT: tl.constexpr, NEED_BIAS: tl.constexpr,
):  # fmt: skip
    """Add the partial rows [programs, parameters, COLUMNS] of one parameter: `BLOCK` columns a program."""
    parameter = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    partials += parameter * COLUMNS
    added = tl.zeros([DEPTH, BLOCK], tl.float32)
    for begin in range(0, programs, DEPTH):
        program = begin + tl.arange(0, DEPTH)
        at = partials + program.to(tl.int64)[:, None] * ((NEED_WEIGHT + NEED_BIAS) * COLUMNS) + column[None, :]
        added += tl.load(at, mask=(program < programs)[:, None] & inside[None, :], other=0.0)
    result = tl.sum(added, 0)
    if NEED_WEIGHT:
        tl.store(dweight + column, result.to(dweight.dtype.element_ty), mask=inside & (parameter == 0))
    if NEED_BIAS:
        tl.store(dbias + column, result.to(dbias.dtype.element_ty), mask=inside & (parameter == NEED_WEIGHT))
