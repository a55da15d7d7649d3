"""The pass over the logits of `hidden @ weight.T (+ bias)`, in the four forms that a plan can choose.

Every function here takes a `Head` (flat rows, made by `checks`/`logprob`), runs without autograd, allocates through torch and
never asks the device for a value. Notation: x raw logits, z transformed ones (`Transform`), p = softmax(z), t the target;

    logp = z_t - log_z          d logp / d x_j = dz/dx_j ([j = t] - p_j)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from frostline.kernels.lm_head import tiles
from frostline.kernels.lm_head.plan import Needs, Plan
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.matmul import accumulator_dtype, mm_rounded, mm_wide

# d loss / d logp and, where the loss has one, d loss / d entropy of the rows of a slice, given their log-probs and, where they
# are kept, their entropies: how a known loss enters the pass.
Upstream: TypeAlias = Callable[[Tensor, Tensor | None, slice], tuple[Tensor, Tensor | None]]

# How far logits may exceed a row's reference before its sums are rescaled: exp of it must be finite in the tile's dtype with
# headroom for the products that follow. A rescale reads and writes the whole accumulator row; with 40 it almost never happens.
_RESCALE_ABOVE = {torch.float16: 8.0}
_RESCALE_ABOVE_DEFAULT = 40.0


@dataclass(frozen=True)
class Head:
    """What the pass reads. `targets` hold `tiles.INACTIVE` for rows that do not count.

    hidden [N, H]; weight [V, H] of the same dtype; targets [N] int64; bias [V] or None. All with unit last stride.
    """

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    bias: Tensor | None
    transform: Transform
    masked: bool

    @property
    def wide(self) -> torch.dtype:
        """The dtype of logits and statistics."""
        return accumulator_dtype(self.hidden.dtype)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Uninitialised memory beside the inputs; in the accumulator's dtype unless said otherwise."""
        return torch.empty(shape, dtype=dtype or self.wide, device=self.hidden.device)

    def only_active(self, values: Tensor) -> Tensor:
        """`values` [n] with exact zeros in rows that do not count, whatever garbage they held."""
        return torch.where(self.targets != tiles.INACTIVE, values, 0.0) if self.masked else values

    def clean_hidden(self) -> Tensor:
        """Hidden states with zeros in rows that do not count: 0 * NaN would reach every row of the weight gradient."""
        if not self.masked:
            return self.hidden
        return self.hidden.masked_fill((self.targets == tiles.INACTIVE).unsqueeze(1), 0.0)

    def rows(self, rows: slice) -> Head:
        """The same head on some of the rows."""
        return Head(self.hidden[rows], self.weight, self.targets[rows], self.bias, self.transform, self.masked)


@dataclass(frozen=True)
class Statistics:
    """Per row, [N] fp32 (fp64): log-prob of the target, log sum exp of the logits, and the entropy where it was asked for."""

    logp: Tensor
    log_z: Tensor
    entropy: Tensor | None = None

    @staticmethod
    def new(head: Head, *, entropy: bool) -> Statistics:
        """Storage for the rows of `head`, to be filled."""
        count = head.hidden.shape[0]
        return Statistics(head.empty(count), head.empty(count), head.empty(count) if entropy else None)


@dataclass(frozen=True)
class Gradients:
    """What was asked for, in the dtypes of the inputs; None for the rest."""

    hidden: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


def forward_only(head: Head, plan: Plan, *, entropy: bool = False) -> Statistics:
    """Log-probs (and entropies) alone: one product with the weight."""
    count = head.hidden.shape[0]
    result = Statistics.new(head, entropy=entropy)
    buffer = _tile_buffer(head, plan)
    for rows in _slices(count, plan.row_block):
        block = head.rows(rows)
        running = _Running.new(block, moment=entropy)
        for columns in _slices(head.weight.shape[0], plan.vocab_tile):
            running.reduce(_logits(block, columns, buffer), block, columns)
        running.finish(block, result, rows)
    return result


def stream(head: Head, plan: Plan, upstream: Upstream | None, *, entropy: bool = False) -> tuple[Statistics, Tensor]:
    """Statistics and the hidden gradient in one pass, for a frozen head: two products with the weight.

    d logp / d hidden = dz/dx_t w_t - sum_j p_j dz/dx_j w_j is attention with the vocabulary as keys and values: per tile,
    exp(z - reference) is multiplied onto the weight rows and summed in fp32, and divided by its total at the end. w_t is
    added exactly, from the weight's own row.

    Args:
        head: rows, of which whole blocks of `plan.row_block` are walked.
        plan: of strategy STREAM.
        upstream: d loss / d logp of a block of rows, applied before the gradient is rounded. None: the unit gradient.
        entropy: whether entropies are wanted; no gradient goes through them.

    Returns:
        The statistics [N] and the gradient [N, H] in the dtype of `hidden`.
    """
    count, width = head.hidden.shape
    result, gradient = Statistics.new(head, entropy=entropy), head.empty(count, width, dtype=head.hidden.dtype)
    buffer = _tile_buffer(head, plan)
    probabilities = None if plan.in_place else _tile_buffer(head, plan, plan.tile_dtype)
    accumulator = head.empty(min(plan.row_block, count), width)
    limit = _RESCALE_ABOVE.get(plan.tile_dtype, _RESCALE_ABOVE_DEFAULT)
    for rows in _slices(count, plan.row_block):
        block = head.rows(rows)
        running, mean = _Running.new(block, moment=entropy), accumulator[: block.hidden.shape[0]]
        for columns in _slices(head.weight.shape[0], plan.vocab_tile):
            x = _logits(block, columns, buffer)
            p = x if probabilities is None else probabilities[: x.shape[0], : x.shape[1]]
            running.fold(x, None if probabilities is None else p, block, columns, limit)
            if columns.start:
                tiles.rescale_rows(mean, running.rescale)
            mm_wide(p, head.weight[columns], mean, accumulate=columns.start > 0)
        running.finish(block, result, rows)
        scale = torch.ones_like(running.total) if upstream is None else block.only_active(_asked(upstream, result, rows)[0])
        onto_target = scale * head.transform.slope(running.target_logit)
        onto_mean = scale * head.transform.steepest / running.total
        tiles.finish_rows(mean, head.weight, block.targets, onto_target, onto_mean, gradient[rows])
    return result, gradient


def blocks(
    head: Head, plan: Plan, needs: Needs, upstream: Upstream, *, entropy: bool = False
) -> tuple[Statistics, Gradients, Tensor | None]:
    """Statistics and the gradients of a known loss, by blocks of rows with all their logits: three products with the weight.

    The weight gradient is summed in fp32: each block is added to an fp32 accumulator here, or, where the plan found that
    smaller, the gradient tiles of all rows are returned for one product in the backward (`weight_gradient`).

    Returns:
        The statistics [N], the gradients, and the tiles [N, V] that were kept, or None.
    """
    count, vocab = head.hidden.shape[0], head.weight.shape[0]
    result, keep = Statistics.new(head, entropy=entropy), needs.weight and plan.keep_tiles
    hidden = head.clean_hidden() if needs.weight and not keep else head.hidden
    d_hidden = torch.empty_like(head.hidden) if needs.hidden else None
    d_bias = head.hidden.new_zeros(vocab, dtype=head.wide) if needs.bias else None
    d_weight = head.empty(*head.weight.shape) if needs.weight and not keep else None
    height = min(plan.row_block, count)
    storage = head.empty(count if keep else height, plan.padded_vocab, dtype=plan.tile_dtype)[:, :vocab]
    buffer = None if plan.in_place else head.empty(height, plan.padded_vocab)[:, :vocab]
    mean = head.empty(height, head.hidden.shape[1]) if needs.hidden else None
    for rows in _slices(count, plan.row_block):
        block, size = head.rows(rows), rows.stop - rows.start
        tile = storage[rows] if keep else storage[:size]
        x = tile if buffer is None else buffer[:size]
        mm_wide(block.hidden, head.weight.t(), x)
        _block_gradient(block, rows, x, None if buffer is None else tile, result, upstream)
        if d_hidden is not None and mean is not None:
            mm_wide(tile, head.weight, mean[:size])
            d_hidden[rows] = mean[:size]
        if d_bias is not None:
            d_bias += tile.sum(0, dtype=head.wide)
        if d_weight is not None:
            mm_wide(tile.t(), hidden[rows], d_weight, accumulate=rows.start > 0)
    kept = storage if keep else None
    del storage, buffer, mean, block, tile, x  # before the accumulator is rounded
    return result, Gradients(d_hidden, _in_dtype_of(head.weight, d_weight), _in_dtype_of(head.bias, d_bias)), kept


def weight_gradient(head: Head, plan: Plan, kept: Tensor, scale: Tensor) -> Tensor:
    """d loss / d weight [V, H] of the tiles that `blocks` kept [N, V], times `scale`, a scalar tensor."""
    hidden = head.clean_hidden()
    d_weight = torch.empty_like(head.weight, memory_format=torch.contiguous_format)
    for columns in _slices(head.weight.shape[0], plan.vocab_tile):
        mm_rounded(kept[:, columns].t(), hidden, d_weight[columns])
    return d_weight.mul_(scale)


def recompute(
    head: Head, plan: Plan, needs: Needs, statistics: Statistics, grad_logp: Tensor, grad_entropy: Tensor | None
) -> Gradients:
    """Gradients of an unknown loss, once its upstream is there: the logits are computed again, tile by tile.

    The vocabulary is the outer loop, so that each slice of the weight gradient is one fp32-accumulated product over all rows
    and no [V, H] accumulator exists.

    Args:
        head, plan, needs: as in forward.
        statistics: what `forward_only` returned, with the entropy if `grad_entropy` is given.
        grad_logp: d loss / d logp, [N].
        grad_entropy: d loss / d entropy, [N], or None.
    """
    count, width = head.hidden.shape
    grad_logp = grad_logp.contiguous()  # the gradient of a sum is expanded; tiles read it row by row
    grad_entropy = None if grad_entropy is None else grad_entropy.contiguous()
    hidden = head.clean_hidden() if needs.weight else head.hidden
    d_hidden = head.empty(count, width) if needs.hidden else None
    d_weight = torch.empty_like(head.weight, memory_format=torch.contiguous_format) if needs.weight else None
    d_bias = head.empty(head.weight.shape[0]) if needs.bias else None
    buffer = _tile_buffer(head, plan)
    out = None if plan.in_place else _tile_buffer(head, plan, plan.tile_dtype)
    one_block = plan.row_block >= count
    for columns in _slices(head.weight.shape[0], plan.vocab_tile):
        d_weight_sum = head.empty(columns.stop - columns.start, width) if needs.weight and not one_block else None
        for rows in _slices(count, plan.row_block):
            block = head.rows(rows)
            x = _logits(block, columns, buffer)
            tile = x if out is None else out[: x.shape[0], : x.shape[1]]
            entropy_pair: tuple[Tensor | None, Tensor | None] = (None, None)
            if grad_entropy is not None and statistics.entropy is not None:
                entropy_pair = (grad_entropy[rows], statistics.entropy[rows])
            tiles.gradient_tile(
                x, _slice_of(head.bias, columns), block.targets, statistics.log_z[rows], grad_logp[rows], *entropy_pair,
                None if out is None else tile, columns.start, *_scalars(head),
            )  # fmt: skip
            if d_hidden is not None:
                mm_wide(tile, head.weight[columns], d_hidden[rows], accumulate=columns.start > 0)
            if d_bias is not None:
                column_sum = tile.sum(0, dtype=head.wide)
                d_bias[columns] = column_sum if rows.start == 0 else d_bias[columns] + column_sum
            if d_weight_sum is not None:
                mm_wide(tile.t(), hidden[rows], d_weight_sum, accumulate=rows.start > 0)
            elif d_weight is not None:
                mm_rounded(tile.t(), hidden, d_weight[columns])
        if d_weight is not None and d_weight_sum is not None:
            d_weight[columns] = d_weight_sum
    del buffer, out
    return Gradients(_in_dtype_of(head.hidden, d_hidden), d_weight, _in_dtype_of(head.bias, d_bias))


@dataclass(frozen=True)
class _Running:
    """The statistics of a row block while its tiles pass, all [rows]; meanings in `tiles`."""

    maximum: Tensor
    total: Tensor
    target_logit: Tensor
    rescale: Tensor
    moment: Tensor | None

    @staticmethod
    def new(block: Head, *, moment: bool = False) -> _Running:
        storage = block.empty(5 if moment else 4, block.hidden.shape[0])
        return _Running(storage[0], storage[1], storage[2], storage[3], storage[4] if moment else None)

    def reduce(self, x: Tensor, block: Head, columns: slice) -> None:
        tiles.reduce_tile(
            x, _slice_of(block.bias, columns), block.targets, self.maximum, self.total, self.moment, self.target_logit,
            columns.start, columns.start == 0, *_scalars(block),
        )  # fmt: skip

    def fold(self, x: Tensor, p: Tensor | None, block: Head, columns: slice, limit: float) -> None:
        tiles.fold_tile(
            x, _slice_of(block.bias, columns), block.targets, p, self.maximum, self.total, self.moment, self.target_logit,
            self.rescale, columns.start, columns.start == 0, limit, *_scalars(block),
        )  # fmt: skip

    def log_z(self) -> Tensor:
        return self.maximum + self.total.log()

    def finish(self, block: Head, result: Statistics, rows: slice) -> None:
        log_z = self.log_z()
        result.log_z[rows] = log_z
        result.logp[rows] = block.only_active(self.target_logit - log_z)
        if result.entropy is not None and self.moment is not None:  # -sum p log p = log_z - sum p z
            result.entropy[rows] = block.only_active(log_z - self.moment / self.total)


def _block_gradient(block: Head, rows: slice, x: Tensor, out: Tensor | None, result: Statistics, upstream: Upstream) -> None:
    """Statistics of a block that holds all its logits, and its gradient in place of (or beside) the logits."""
    running, everything = _Running.new(block, moment=result.entropy is not None), slice(0, x.shape[1])
    running.reduce(x, block, everything)
    running.finish(block, result, rows)
    grad_logp, grad_entropy = _asked(upstream, result, rows)
    entropy = None if grad_entropy is None or result.entropy is None else result.entropy[rows]
    tiles.gradient_tile(
        x, block.bias, block.targets, result.log_z[rows], grad_logp, grad_entropy, entropy, out, 0, *_scalars(block)
    )


def _asked(upstream: Upstream, result: Statistics, rows: slice) -> tuple[Tensor, Tensor | None]:
    """What the loss says of a block, contiguous: tiles read it row by row."""
    grad_logp, grad_entropy = upstream(result.logp[rows], None if result.entropy is None else result.entropy[rows], rows)
    return grad_logp.contiguous(), None if grad_entropy is None else grad_entropy.contiguous()


def _logits(block: Head, columns: slice, buffer: Tensor) -> Tensor:
    """Raw fp32 logits of a tile, in the buffer."""
    x = buffer[: block.hidden.shape[0], : columns.stop - columns.start]
    mm_wide(block.hidden, block.weight[columns].t(), x)
    return x


def _tile_buffer(head: Head, plan: Plan, dtype: torch.dtype | None = None) -> Tensor:
    return head.empty(min(plan.row_block, head.hidden.shape[0]), -(-plan.vocab_tile // 64) * 64, dtype=dtype)


def _slices(size: int, step: int) -> Iterator[slice]:
    for first in range(0, size, step):
        yield slice(first, min(first + step, size))


def _scalars(head: Head) -> tuple[float, float, bool]:
    return head.transform.inner, head.transform.outer, head.transform.capped


def _slice_of(bias: Tensor | None, columns: slice) -> Tensor | None:
    return None if bias is None else bias[columns]


def _in_dtype_of(like: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    return None if like is None or gradient is None else gradient.to(like.dtype)
