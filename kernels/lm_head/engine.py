"""The pass over the logits of `hidden @ weight.T (+ bias)`, in the four forms that a plan can choose.

Every function here takes a `Head` (flat rows, made by `checks`/`logprob`), runs without autograd, allocates through torch and
never asks the device for a value. Notation: x raw logits, z transformed ones (`Transform`), p = softmax(z), t the target;

    logp = z_t - log sum exp z          d logp / d x_j = dz/dx_j ([j = t] - p_j)

A tile of logits is a product with the weight and the work of `tiles` on it: in one kernel where the GPU has one (`fused`), else
one after the other with the logits in memory between (`_Walk`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from frostline.kernels.lm_head import fused, tiles
from frostline.kernels.lm_head.output_tiles import workspace_size
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

    def rows(self, rows: slice | Tensor) -> Head:
        """The same head on some of the rows: a view of a slice, or those of an index in memory of their own."""
        return Head(self.hidden[rows], self.weight, self.targets[rows], self.bias, self.transform, self.masked)


@dataclass(frozen=True)
class Statistics:
    """Per row, [N] fp32 (fp64): log-prob of the target; a reference near the largest logit, and log sum exp(z - reference), so
    that log p = z - reference - log_total loses nothing however far from zero logits are; the entropy where asked for."""

    logp: Tensor
    reference: Tensor
    log_total: Tensor
    entropy: Tensor | None = None

    @staticmethod
    def new(head: Head, *, entropy: bool) -> Statistics:
        """Storage for the rows of `head`, to be filled."""
        logp, reference, log_total = head.empty(3, head.hidden.shape[0])
        return Statistics(logp, reference, log_total, head.empty(head.hidden.shape[0]) if entropy else None)

    @property
    def miss(self) -> Tensor:
        """1 - p of the target, with all its digits where p is almost 1."""
        return torch.expm1(self.logp).neg_()

    def rows(self, rows: slice | Tensor) -> Statistics:
        """The same of some rows."""
        entropy = None if self.entropy is None else self.entropy[rows]
        return Statistics(self.logp[rows], self.reference[rows], self.log_total[rows], entropy)


@dataclass(frozen=True)
class Gradients:
    """What was asked for, in the dtypes of the inputs; None for the rest."""

    hidden: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


def forward_only(head: Head, plan: Plan, *, entropy: bool = False) -> Statistics:
    """Log-probs (and entropies) alone: one product with the weight."""
    result, walk = Statistics.new(head, entropy=entropy), _Walk(head, plan, tile=False)
    for rows in _slices(head.hidden.shape[0], plan.row_block):
        block = head.rows(rows)
        running = _Running.new(block, moment=entropy)
        for columns in _slices(head.weight.shape[0], plan.vocab_tile):
            walk.reduce(block, columns, running)
        running.finish(block, result.rows(rows))
    return result


def stream(head: Head, plan: Plan, upstream: Upstream | None, *, entropy: bool = False) -> tuple[Statistics, Tensor]:
    """Statistics and the hidden gradient in one pass, for a frozen head: two products with the weight.

    d logp / d hidden = dz/dx_t w_t - sum_j p_j dz/dx_j w_j is attention with the vocabulary as keys and values: per tile,
    exp(z - reference) is multiplied onto the weight rows and summed in fp32, and divided by its total at the end. The target's
    own column is left out of it: w_t is added with the weight 1 - p_t, which stays exact where p_t is almost 1.

    Args:
        head: rows, of which whole blocks of `plan.row_block` are walked.
        plan: of strategy STREAM.
        upstream: d loss / d logp of a block of rows, applied before the gradient is rounded. None: the unit gradient,
            unrounded, since an upstream is still to come.
        entropy: whether entropies are wanted; no gradient goes through them.

    Returns:
        The statistics [N] and the gradient [N, H] in the dtype of `hidden`, the unit gradient in the accumulator's.
    """
    count, width = head.hidden.shape
    result, known = Statistics.new(head, entropy=entropy), upstream is not None
    gradient = head.empty(count, width, dtype=head.hidden.dtype if known else None)
    walk, accumulator = _Walk(head, plan), head.empty(min(plan.row_block, count), width) if known else None
    limit = _RESCALE_ABOVE.get(plan.tile_dtype, _RESCALE_ABOVE_DEFAULT)
    for rows in _slices(count, plan.row_block):
        block = head.rows(rows)
        running = _Running.new(block, moment=entropy)
        mean = gradient[rows] if accumulator is None else accumulator[: rows.stop - rows.start]
        for columns in _slices(head.weight.shape[0], plan.vocab_tile):
            p = walk.fold(block, columns, running, limit)
            if columns.start:
                tiles.rescale_rows(mean, running.rescale)
            mm_wide(p, head.weight[columns], mean, accumulate=columns.start > 0)
        total, others = running.finish(block, result.rows(rows))
        scale = torch.ones_like(total) if upstream is None else block.only_active(_asked(upstream, result, rows)[0])
        onto_target = scale * head.transform.slope(running.target_logit) * others
        tiles.finish_rows(
            mean, head.weight, block.targets, onto_target, scale * head.transform.steepest / total, gradient[rows]
        )
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
    workspace = head.empty(workspace_size(height, vocab)) if plan.fused else None
    for rows in _slices(count, plan.row_block):
        block, size = head.rows(rows), rows.stop - rows.start
        tile = storage[rows] if keep else storage[:size]
        x = tile if buffer is None else buffer[:size]
        _block_statistics(block, x, result.rows(rows), workspace)
        _block_gradient(block, rows, x, None if buffer is None else tile, result, upstream)
        if d_hidden is not None and mean is not None:
            mm_wide(tile, head.weight, mean[:size])
            d_hidden[rows] = mean[:size]
        if d_bias is not None:
            d_bias += tile.sum(0, dtype=head.wide)
        if d_weight is not None:
            mm_wide(tile.t(), hidden[rows], d_weight, accumulate=rows.start > 0)
    kept = storage if keep else None
    del storage, buffer, mean, workspace, block, tile, x  # before the accumulator is rounded
    return result, Gradients(d_hidden, _in_dtype_of(head.weight, d_weight), _in_dtype_of(head.bias, d_bias)), kept


def weight_gradient(head: Head, plan: Plan, kept: Tensor, scale: Tensor) -> Tensor:
    """d loss / d weight [V, H] of the tiles that `blocks` kept [N, V], times `scale`, a scalar tensor."""
    hidden = head.clean_hidden()
    d_weight = torch.empty_like(head.weight, memory_format=torch.contiguous_format)
    for columns in _slices(head.weight.shape[0], plan.vocab_tile):
        mm_rounded(kept[:, columns].t(), hidden, d_weight[columns])
    tiles.rescale_rows(d_weight, scale.expand(d_weight.shape[0]))
    return d_weight


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
    walk, miss = _Walk(head, plan, statistics=False), statistics.miss
    sums = head.empty(plan.vocab_tile, width) if needs.weight and plan.row_block < count else None
    for columns in _slices(head.weight.shape[0], plan.vocab_tile):
        d_weight_sum = None if sums is None else sums[: columns.stop - columns.start]
        for rows in _slices(count, plan.row_block):
            onto_entropy = None if grad_entropy is None else grad_entropy[rows]
            known = statistics.rows(rows)
            tile = walk.gradient(head.rows(rows), columns, known, miss[rows], grad_logp[rows], onto_entropy)
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
    del walk, tile, sums, d_weight_sum  # before the hidden gradient is rounded
    return Gradients(_in_dtype_of(head.hidden, d_hidden), d_weight, _in_dtype_of(head.bias, d_bias))


@dataclass(frozen=True)
class _Running:
    """The statistics of a row block while its tiles pass, all [rows]; meanings in `tiles`."""

    target_logit: Tensor
    reference: Tensor
    total: Tensor
    rescale: Tensor
    moment: Tensor | None

    @staticmethod
    def new(block: Head, *, moment: bool = False) -> _Running:
        target_logit, reference, total, rescale, moments = block.empty(5, block.hidden.shape[0])
        tiles.target_logits(block.hidden, block.weight, block.bias, block.targets, target_logit, *_scalars(block))
        torch.clamp(target_logit, min=torch.finfo(block.wide).min, out=reference)  # a token forbidden by a bias of -inf
        total.zero_()
        return _Running(target_logit, reference, total, rescale, moments.zero_() if moment else None)

    def finish(self, block: Head, result: Statistics) -> tuple[Tensor, Tensor]:
        """Write the rows' results. Returns sum exp(z - reference), and 1 - p of the target."""
        ahead = self.target_logit - self.reference
        own = ahead.exp()
        total = self.total + own
        log_total = torch.where(ahead == 0, self.total.log1p(), total.log())
        result.reference.copy_(self.reference)
        result.log_total.copy_(log_total)
        result.logp.copy_(block.only_active(ahead - log_total))
        if result.entropy is not None and self.moment is not None:  # -sum p log p = log_total - sum p (z - reference)
            mean = (self.moment + torch.where(own > 0, own * ahead, 0.0)) / total
            result.entropy.copy_(block.only_active(log_total - mean))
        return total, self.total / total


class _Walk:
    """Tiles of logits, and what is done to them: one op where the plan is fused, else a product into a buffer and an op on it.
    `tile` and `statistics` say which of the two are wanted."""

    def __init__(self, head: Head, plan: Plan, *, tile: bool = True, statistics: bool = True) -> None:
        height = min(plan.row_block, head.hidden.shape[0])
        stored = (height, -(-plan.vocab_tile // 64) * 64)
        self.logits = None if plan.fused else head.empty(*stored)
        self.tile = head.empty(*stored, dtype=plan.tile_dtype) if tile and not plan.in_place else None
        partials = workspace_size(height, plan.vocab_tile)
        self.workspace = head.empty(partials) if statistics and plan.fused else None

    def reduce(self, block: Head, columns: slice, running: _Running) -> None:
        """Fold a tile into the running statistics."""
        x = None if self.logits is None else self.logits[: block.hidden.shape[0], : columns.stop - columns.start]
        _reduce(block, columns, x, running, self.workspace)

    def fold(self, block: Head, columns: slice, running: _Running, limit: float) -> Tensor:
        """The same, and the tile's unnormalised probabilities."""
        state, out = (running.reference, running.total, running.moment, running.rescale), self._out(block, columns)
        if self.workspace is not None and out is not None:
            operands = _operands(block, columns)
            fused.fold_logits(*operands, out, *state, self.workspace, columns.start, limit, *_scalars(block))
            return out
        x, *rest = self._product(block, columns)
        tiles.fold_tile(x, *rest, out, *state, columns.start, limit, *_scalars(block))
        return x if out is None else out

    def gradient(
        self, block: Head, columns: slice, known: Statistics, miss: Tensor, grad_logp: Tensor, grad_entropy: Tensor | None
    ) -> Tensor:
        """The gradient with respect to a tile's raw logits."""
        entropy, out = None if grad_entropy is None else known.entropy, self._out(block, columns)
        state = known.reference, known.log_total, miss, grad_logp, grad_entropy, entropy
        if self.logits is None and out is not None:
            fused.gradient_logits(*_operands(block, columns), *state, out, columns.start, *_scalars(block))
            return out
        x, *rest = self._product(block, columns)
        tiles.gradient_tile(x, *rest, *state, out, columns.start, *_scalars(block))
        return x if out is None else out

    def _product(self, block: Head, columns: slice) -> tuple[Tensor, Tensor | None, Tensor]:
        """Raw logits of a tile in memory, their bias and targets."""
        assert self.logits is not None
        hidden, weight, bias, targets = _operands(block, columns)
        x = self.logits[: hidden.shape[0], : weight.shape[0]]
        mm_wide(hidden, weight.t(), x)
        return x, bias, targets

    def _out(self, block: Head, columns: slice) -> Tensor | None:
        return None if self.tile is None else self.tile[: block.hidden.shape[0], : columns.stop - columns.start]


def _reduce(block: Head, columns: slice, x: Tensor | None, running: _Running, workspace: Tensor | None) -> None:
    """Fold a tile into the running statistics: fused where there is a workspace. Its raw logits are left in `x`, which only a
    fused product can do without."""
    state = running.reference, running.total, running.moment
    hidden, weight, bias, targets = _operands(block, columns)
    if workspace is not None:
        fused.reduce_logits(hidden, weight, bias, targets, x, *state, workspace, columns.start, *_scalars(block))
        return
    assert x is not None
    mm_wide(hidden, weight.t(), x)
    tiles.reduce_tile(x, bias, targets, *state, columns.start, *_scalars(block))


def _block_statistics(block: Head, x: Tensor, result: Statistics, workspace: Tensor | None) -> None:
    """All logits of a block, in `x`, and their statistics."""
    running = _Running.new(block, moment=result.entropy is not None)
    _reduce(block, slice(0, x.shape[1]), x, running, workspace)
    running.finish(block, result)


def _block_gradient(block: Head, rows: slice, x: Tensor, out: Tensor | None, result: Statistics, upstream: Upstream) -> None:
    """The gradient of a block that holds all its logits, in place of (or beside) them."""
    known, (grad_logp, grad_entropy) = result.rows(rows), _asked(upstream, result, rows)
    entropy = None if grad_entropy is None else known.entropy
    tiles.gradient_tile(
        x,
        block.bias,
        block.targets,
        known.reference,
        known.log_total,
        known.miss,
        grad_logp,
        grad_entropy,
        entropy,
        out,
        0,
        *_scalars(block),
    )


def _asked(upstream: Upstream, result: Statistics, rows: slice) -> tuple[Tensor, Tensor | None]:
    """What the loss says of a block, contiguous: tiles read it row by row."""
    grad_logp, grad_entropy = upstream(result.logp[rows], None if result.entropy is None else result.entropy[rows], rows)
    return grad_logp.contiguous(), None if grad_entropy is None else grad_entropy.contiguous()


def _operands(block: Head, columns: slice) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """What makes a tile: hidden states, a slice of the weight and of the bias, and the targets of its rows."""
    return block.hidden, block.weight[columns], None if block.bias is None else block.bias[columns], block.targets


def _slices(size: int, step: int) -> Iterator[slice]:
    for first in range(0, size, step):
        yield slice(first, min(first + step, size))


def _scalars(head: Head) -> tuple[float, float, bool]:
    return head.transform.inner, head.transform.outer, head.transform.capped


def _in_dtype_of(like: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    return None if like is None or gradient is None else gradient.to(like.dtype)
