"""The tiles as Triton kernels: one program per row (and per block of columns where a row needs no reduction).

Contracts are in `tiles`. What every kernel here keeps to:

- lanes beyond the tile's width are -inf after the transform: a softcap would turn a padded -inf into -softcap and count it;
- row offsets are 64-bit, since a tile's rows times its stride may pass 2^31;
- scalars stay fp32, exponentials are taken in fp32 whatever is stored;
- configurations are chosen here from the width, never tuned at run time on live buffers (which the ops write in place).
"""

# Triton ships no annotations, and a kernel's arguments are pointers and blocks that Python's types do not describe:
# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from frostline.kernels.lm_head.tiles_torch import INACTIVE

_INACTIVE = tl.constexpr(INACTIVE)
_LOWEST = tl.constexpr(-3.4028234663852886e38)  # a finite stand-in for the maximum of a row of -inf

# The widest tile that `fold_tile` holds in registers: 64 fp32 values a thread at 16 warps.
WIDEST_FOLD = 32768
_REDUCE_BLOCK = 4096
_GRADIENT_BLOCK = 4096
_ROW_BLOCK = 4096

# An aligned pointer, like a size of 1, makes a kernel of its own unless it is said not to matter. Figures per row are slices
# whose beginnings depend on the number of rows: without this, a batch of another length would compile everything anew. What
# stands in for a bias that is not there must be a pointer that is always aligned, or never.
PER_ROW = [
    "targets", "reference", "total", "moment", "best", "rescale", "log_total", "at_target", "onto_p", "grad_entropy", "entropy",
    "onto_all", "target_logit", "spread", "factor", "onto_target", "onto_mean", "out_per_row",
]  # fmt: skip
_kernel = triton.jit(do_not_specialize=["start", "blocks"], do_not_specialize_on_alignment=PER_ROW)


@triton.jit
def _tanh(x):
    # tl has no tanh that the interpreter runs. Near zero a series (1 - 2 / (e^2x + 1) would cancel there), beyond it the
    # exponential form, which saturates instead of dividing infinities.
    squared = x * x
    series = x * (1.0 + squared * (-1.0 / 3.0 + squared * (2.0 / 15.0 + squared * (-17.0 / 315.0 + squared * (62.0 / 2835.0)))))
    return tl.where(tl.abs(x) < 0.3, series, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def _load_logits(x, bias, column, width, inner, outer, CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Transformed logits of the columns given; -inf beyond the tile's width."""
    inside = column < width
    z = tl.load(x + column, mask=inside, other=0.0)
    if HAS_BIAS:
        z += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    z = outer * _tanh(inner * z) if CAPPED else outer * z
    return tl.where(inside, z, -float("inf"))


@triton.jit
def _improve(best, rows, row, value, column):
    """Let a column take the place of a row's best so far, where its value is larger."""
    if value > tl.load(best + row):
        tl.store(best + row, value)
        tl.store(best + rows + row, column.to(tl.float32))


@triton.jit
def _moved_moment(moment, total, scale, step):
    """A moment relative to a reference that moved by `step`, with `scale` = exp(-step): where that is 0 nothing is left."""
    return tl.where(scale > 0, (moment - step * total) * scale, 0.0)


@_kernel
def _target_kernel(
    hidden, hidden_stride, weight, weight_stride, bias, targets, out_per_row, vocab, width, inner, outer,
    CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    column_of_weight = tl.minimum(tl.maximum(target, 0), vocab - 1)
    sums = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        a = tl.load(hidden + row * hidden_stride + column, mask=column < width, other=0.0).to(tl.float32)
        b = tl.load(weight + column_of_weight * weight_stride + column, mask=column < width, other=0.0).to(tl.float32)
        sums += a * b
    z = tl.sum(sums, 0)
    if HAS_BIAS:
        z += tl.load(bias + column_of_weight).to(tl.float32)
    z = outer * _tanh(inner * z) if CAPPED else outer * z
    z = tl.where(target >= vocab, float("nan"), z)
    tl.store(out_per_row + row, tl.where(target == _INACTIVE, 0.0, z))


@_kernel
def _reduce_kernel(
    x, x_stride, bias, targets, reference, total, moment, best, start, width, inner, outer,
    CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MOMENT: tl.constexpr, HAS_BEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: each lane keeps its own maximum and sums over the row's blocks, and the lanes are joined once at the end."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    if target != _INACTIVE:
        x += row * x_stride
        lane_maximum = tl.full([BLOCK], _LOWEST, tl.float32)
        lane_total = tl.zeros([BLOCK], tl.float32)
        lane_moment = tl.zeros([BLOCK], tl.float32)
        lane_best = tl.full([BLOCK], -float("inf"), tl.float32)
        lane_column = tl.arange(0, BLOCK)
        for begin in range(0, width, BLOCK):
            column = begin + tl.arange(0, BLOCK)
            z = _load_logits(x, bias, column, width, inner, outer, CAPPED, HAS_BIAS)
            if HAS_BEST:
                lane_column = tl.where(z > lane_best, column, lane_column)
                lane_best = tl.maximum(lane_best, z)
            z = tl.where(column == target - start, -float("inf"), z)
            new_maximum = tl.maximum(lane_maximum, z)
            scale = tl.exp(lane_maximum - new_maximum)
            p = tl.exp(z - new_maximum)
            if HAS_MOMENT:
                lane_moment = _moved_moment(lane_moment, lane_total, scale, new_maximum - lane_maximum)
                lane_moment += tl.where(p > 0, p * (z - new_maximum), 0.0)
            lane_total = lane_total * scale + p
            lane_maximum = new_maximum
        before = tl.load(reference + row)
        # Triton's maximum drops a NaN: the reference of a row whose target is out of range must stay one.
        after = tl.where(before == before, tl.maximum(tl.max(lane_maximum, 0), before), before)
        lane_scale = tl.exp(lane_maximum - after)
        scale_before = tl.exp(before - after)
        total_before = tl.load(total + row)
        tl.store(reference + row, after)
        tl.store(total + row, total_before * scale_before + tl.sum(lane_total * lane_scale, 0))
        if HAS_MOMENT:
            moment_before = _moved_moment(tl.load(moment + row), total_before, scale_before, after - before)
            lane_moment = _moved_moment(lane_moment, lane_total, lane_scale, after - lane_maximum)
            tl.store(moment + row, moment_before + tl.sum(lane_moment, 0))
        if HAS_BEST:
            highest = tl.max(lane_best, 0)
            first = tl.min(tl.where(lane_best == highest, lane_column, width), 0)
            _improve(best, tl.num_programs(0), row, highest, start + first)


@_kernel
def _fold_kernel(
    x, x_stride, bias, targets, p_out, p_stride, reference, total, moment, best, rescale, start, width, limit, inner, outer,
    CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MOMENT: tl.constexpr, HAS_BEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row, held in registers: its maximum is needed before the first exponential is written."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    p_out += row * p_stride
    if target == _INACTIVE:
        tl.store(p_out + column, tl.zeros([BLOCK], p_out.dtype.element_ty), mask=column < width)
        tl.store(rescale + row, 1.0)
    else:
        z = _load_logits(x + row * x_stride, bias, column, width, inner, outer, CAPPED, HAS_BIAS)
        if HAS_BEST:
            highest = tl.max(z, 0)
            first = tl.min(tl.where(z == highest, column, width), 0)
            _improve(best, tl.num_programs(0), row, highest, start + first)
        others = tl.where(column == target - start, -float("inf"), z)
        maximum = tl.maximum(tl.max(others, 0), _LOWEST)
        before = tl.load(reference + row)
        after = tl.where(maximum > before + limit, maximum, before)
        scale = tl.exp(before - after)
        p = tl.exp(others - after)
        total_before = tl.load(total + row)
        tl.store(reference + row, after)
        tl.store(total + row, total_before * scale + tl.sum(p, 0))
        if HAS_MOMENT:
            moment_before = _moved_moment(tl.load(moment + row), total_before, scale, after - before)
            tl.store(moment + row, moment_before + tl.sum(tl.where(p > 0, p * (others - after), 0.0), 0))
        tl.store(rescale + row, scale)
        if CAPPED:
            tanh = z / outer
            p = tl.where(column < width, p * (1.0 - tanh * tanh), 0.0)
        tl.store(p_out + column, p.to(p_out.dtype.element_ty), mask=column < width)


@_kernel
def _gradient_kernel(
    x, x_stride, bias, targets, reference, log_total, at_target, onto_p, grad_entropy, entropy, onto_all, column_weight,
    out, out_stride, start, width, blocks, inner, outer,
    CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ENTROPY: tl.constexpr, HAS_ALL: tl.constexpr,
    WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of columns of one row: with the statistics known, columns are independent."""
    program = tl.program_id(0).to(tl.int64)
    row = program // blocks
    column = (program % blocks).to(tl.int32) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    target = tl.load(targets + row)
    out += row * out_stride
    if target == _INACTIVE:
        tl.store(out + column, tl.zeros([BLOCK], out.dtype.element_ty), mask=inside)
    else:
        z = _load_logits(x + row * x_stride, bias, column, width, inner, outer, CAPPED, HAS_BIAS)
        log_p = z - tl.load(reference + row) - tl.load(log_total + row)
        p = tl.exp(log_p)
        own = tl.load(at_target + row).to(tl.float32)
        gradient = tl.where(column == target - start, own, tl.load(onto_p + row).to(tl.float32) * p)
        if HAS_ENTROPY:
            surprise = p * (log_p + tl.load(entropy + row))
            gradient -= tl.load(grad_entropy + row).to(tl.float32) * tl.where(p > 0, surprise, 0.0)
        if HAS_ALL:
            every = tl.load(onto_all + row).to(tl.float32)
            gradient += every * tl.load(column_weight + column, mask=inside, other=0.0).to(tl.float32) if WEIGHTED else every
        if CAPPED:
            tanh = z / outer
            gradient *= (1.0 - tanh * tanh) * (inner * outer)
        else:
            gradient *= outer
        tl.store(out + column, gradient.to(out.dtype.element_ty), mask=inside)


@_kernel
def _spread_kernel(
    x, x_stride, bias, targets, target_logit, column_weight, spread, start, width, inner, outer,
    CAPPED: tl.constexpr, HAS_BIAS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    if target != _INACTIVE:
        ours = tl.load(target_logit + row)
        sums = tl.zeros([BLOCK], tl.float32)
        for begin in range(0, width, BLOCK):
            column = begin + tl.arange(0, BLOCK)
            z = _load_logits(x + row * x_stride, bias, column, width, inner, outer, CAPPED, HAS_BIAS) - ours
            if WEIGHTED:
                z *= tl.load(column_weight + column, mask=column < width, other=0.0).to(tl.float32)
            sums += tl.where((column < width) & (column != target - start), z, 0.0)
        tl.store(spread + row, tl.load(spread + row) + tl.sum(sums, 0))


@_kernel
def _rescale_kernel(values, stride, factor, factor_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(factor + row * factor_stride).to(tl.float32)
    if scale != 1.0:
        for begin in range(0, width, BLOCK):
            column = begin + tl.arange(0, BLOCK)
            at = values + row * stride + column
            scaled = tl.load(at, mask=column < width).to(tl.float32) * scale
            tl.store(at, scaled.to(values.dtype.element_ty), mask=column < width)


@_kernel
def _scaled_kernel(values, stride, factor, factor_stride, out, out_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(factor + row * factor_stride).to(tl.float32)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < width
        scaled = tl.load(values + row * stride + column, mask=inside).to(tl.float32) * scale
        tl.store(out + row * out_stride + column, scaled.to(out.dtype.element_ty), mask=inside)


@_kernel
def _finish_kernel(
    mean,
    mean_stride,
    weight,
    weight_stride,
    targets,
    onto_target,
    onto_mean,
    out,
    out_stride,
    vocab,
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    out += row * out_stride
    target_scale = tl.load(onto_target + row)
    mean_scale = tl.load(onto_mean + row)
    at = weight + tl.minimum(tl.maximum(target, 0), vocab - 1) * weight_stride
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < width
        toward = tl.load(at + column, mask=inside, other=0.0).to(tl.float32)
        away = tl.load(mean + row * mean_stride + column, mask=inside, other=0.0)
        result = target_scale * toward - mean_scale * away
        result = tl.where(target == _INACTIVE, 0.0, result)
        tl.store(out + column, result.to(out.dtype.element_ty), mask=inside)


def _block(width: int, most: int) -> int:
    return min(most, int(triton.next_power_of_2(width)))


def target_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    out: Tensor,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """The transformed logit of each row's target (see `tiles`)."""
    rows, width = hidden.shape
    _target_kernel[(rows,)](
        hidden, hidden.stride(0), weight, weight.stride(0), hidden if bias is None else bias, targets, out,
        weight.shape[0], width, inner, outer,
        CAPPED=capped, HAS_BIAS=bias is not None, BLOCK=_block(width, _ROW_BLOCK), num_warps=4,
    )  # fmt: skip


def reduce_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    reference: Tensor,
    total: Tensor,
    moment: Tensor | None,
    best: Tensor | None,
    start: int,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Fold a tile into the running statistics (see `tiles`)."""
    rows, width = x.shape
    _reduce_kernel[(rows,)](
        x, x.stride(0), x if bias is None else bias, targets, reference, total, total if moment is None else moment,
        total if best is None else best, start, width, inner, outer,
        CAPPED=capped, HAS_BIAS=bias is not None, HAS_MOMENT=moment is not None, HAS_BEST=best is not None,
        BLOCK=_block(width, _REDUCE_BLOCK), num_warps=8,
    )  # fmt: skip


def fold_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    p: Tensor | None,
    reference: Tensor,
    total: Tensor,
    moment: Tensor | None,
    best: Tensor | None,
    rescale: Tensor,
    start: int,
    limit: float,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Fold a tile into the running statistics and turn it into unnormalised probabilities (see `tiles`)."""
    rows, width = x.shape
    if width > WIDEST_FOLD:
        raise ValueError(f"x: got a tile of {width} columns, wanted at most {WIDEST_FOLD}")
    out = x if p is None else p
    block = _block(width, WIDEST_FOLD)
    _fold_kernel[(rows,)](
        x, x.stride(0), x if bias is None else bias, targets, out, out.stride(0), reference, total,
        total if moment is None else moment, total if best is None else best, rescale, start, width, limit, inner, outer,
        CAPPED=capped, HAS_BIAS=bias is not None, HAS_MOMENT=moment is not None, HAS_BEST=best is not None, BLOCK=block,
        num_warps=16 if block > 4096 else 8,
    )  # fmt: skip


def gradient_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    reference: Tensor,
    log_total: Tensor,
    at_target: Tensor,
    onto_p: Tensor,
    grad_entropy: Tensor | None,
    entropy: Tensor | None,
    onto_all: Tensor | None,
    column_weight: Tensor | None,
    out: Tensor | None,
    start: int,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Turn a tile into the gradient with respect to its raw logits (see `tiles`)."""
    rows, width = x.shape
    result = x if out is None else out
    block = _block(width, _GRADIENT_BLOCK)
    blocks = triton.cdiv(width, block)
    _gradient_kernel[(rows * blocks,)](
        x, x.stride(0), x if bias is None else bias, targets, reference, log_total, at_target, onto_p,
        reference if grad_entropy is None else grad_entropy, reference if entropy is None else entropy,
        reference if onto_all is None else onto_all, x if column_weight is None else column_weight,
        result, result.stride(0), start, width, blocks, inner, outer,
        CAPPED=capped, HAS_BIAS=bias is not None, HAS_ENTROPY=grad_entropy is not None, HAS_ALL=onto_all is not None,
        WEIGHTED=column_weight is not None, BLOCK=block, num_warps=8,
    )  # fmt: skip


def spread_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    target_logit: Tensor,
    column_weight: Tensor | None,
    spread: Tensor,
    start: int,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Add a tile's logits relative to the target's (see `tiles`)."""
    rows, width = x.shape
    _spread_kernel[(rows,)](
        x, x.stride(0), x if bias is None else bias, targets, target_logit, x if column_weight is None else column_weight,
        spread, start, width, inner, outer,
        CAPPED=capped, HAS_BIAS=bias is not None, WEIGHTED=column_weight is not None,
        BLOCK=_block(width, _REDUCE_BLOCK), num_warps=8,
    )  # fmt: skip


def rescale_rows(values: Tensor, factor: Tensor) -> None:
    """values[r] *= factor[r]; rows whose factor is 1 are not touched."""
    rows, width = values.shape
    _rescale_kernel[(rows,)](
        values, values.stride(0), factor, factor.stride(0), width, BLOCK=_block(width, _ROW_BLOCK), num_warps=4
    )


def scaled_rows(values: Tensor, factor: Tensor, out: Tensor) -> None:
    """out[r] = values[r] * factor[r], rounded once."""
    rows, width = values.shape
    _scaled_kernel[(rows,)](
        values, values.stride(0), factor, factor.stride(0), out, out.stride(0), width,
        BLOCK=_block(width, _ROW_BLOCK), num_warps=8,
    )  # fmt: skip


def finish_rows(mean: Tensor, weight: Tensor, targets: Tensor, onto_target: Tensor, onto_mean: Tensor, out: Tensor) -> None:
    """out[r] = onto_target[r] * weight[targets[r]] - onto_mean[r] * mean[r] (see `tiles`)."""
    rows, width = mean.shape
    _finish_kernel[(rows,)](
        mean, mean.stride(0), weight, weight.stride(0), targets, onto_target, onto_mean, out, out.stride(0),
        weight.shape[0], width, BLOCK=_block(width, _ROW_BLOCK), num_warps=8,
    )  # fmt: skip
