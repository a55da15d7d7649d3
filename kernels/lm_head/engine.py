"""The pass over the logits of `hidden @ weight.T (+ bias)`, in the four forms that a plan can choose.

Every function here takes a `Head` (flat rows, made by `logprob.make_head`), runs without autograd, allocates through torch and
never asks the device for a value. Notation: x raw logits, z transformed ones (`Transform`), p = softmax(z), t the target;

    logp = z_t - log sum exp z          d logp / d x_j = dz/dx_j ([j = t] - p_j)

What a loss passes on to the figures of a row is an `Onto`; how a tile of logits is made and worked on is in `walk`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from frostline.kernels.lm_head import tiles, walk
from frostline.kernels.lm_head.head import Gradients, Head, Onto, OntoLogits, Statistics, Upstream, Wants
from frostline.kernels.lm_head.output_tiles import workspace_size
from frostline.kernels.lm_head.plan import Needs, Plan
from frostline.kernels.lm_head.walk import Running, Walk
from frostline.kernels.matmul import mm_rounded, mm_wide

_NOTHING_ELSE = Wants()

# How far logits may exceed a row's reference before its sums are rescaled: exp of it must be finite in the tile's dtype with
# headroom for the products that follow. A rescale reads and writes the whole accumulator row; with 40 it almost never happens.
_RESCALE_ABOVE = {torch.float16: 8.0}
_RESCALE_ABOVE_DEFAULT = 40.0


def forward_only(head: Head, plan: Plan, wants: Wants = _NOTHING_ELSE) -> Statistics:
    """Statistics alone: one product with the weight."""
    result, tiled = Statistics.new(head, wants), Walk(head, plan, wants, tile=False)
    for rows in _slices(head.hidden.shape[0], plan.row_block):
        block = head.rows(rows)
        running = Running.new(block, wants)
        for columns in _slices(head.weight.shape[0], plan.vocab_tile):
            tiled.reduce(block, columns, running)
        running.finish(block, result.rows(rows))
    return result


def stream(head: Head, plan: Plan, upstream: Upstream | None, wants: Wants = _NOTHING_ELSE) -> tuple[Statistics, Tensor]:
    """Statistics and the hidden gradient in one pass, for a frozen head: two products with the weight.

    d logp / d hidden = dz/dx_t w_t - sum_j p_j dz/dx_j w_j is attention with the vocabulary as keys and values: per tile,
    exp(z - reference) is multiplied onto the weight rows and summed in fp32, and divided by its total at the end. The target's
    own column is left out of it: w_t is added with a weight that stays exact where p_t is almost 1.

    Args:
        head: the rows; blocks of `plan.row_block` are walked.
        plan: of strategy STREAM, or of one that forms this gradient first. Where it forms the loss's gradient here that is
            rounded to the dtype of `hidden`. Otherwise an upstream is still to come, and it is kept unrounded.
        upstream: what the loss asks of a block of rows, of the log-prob and the log-normaliser alone. None: the unit gradient,
            d logp / d hidden.
        wants: figures of the rows; no gradient goes through them.

    Returns:
        The statistics [N] and the gradient [N, H].
    """
    count, width = head.hidden.shape
    result, rounded = Statistics.new(head, wants), plan.in_forward or plan.hidden_first
    gradient = head.empty(count, width, dtype=head.hidden.dtype if rounded else None)
    tiled, accumulator = Walk(head, plan, wants), head.empty(min(plan.row_block, count), width) if rounded else None
    limit = _RESCALE_ABOVE.get(plan.tile_dtype, _RESCALE_ABOVE_DEFAULT)
    for rows in _slices(count, plan.row_block):
        block = head.rows(rows)
        running = Running.new(block, wants)
        mean = gradient[rows] if accumulator is None else accumulator[: rows.stop - rows.start]
        for columns in _slices(head.weight.shape[0], plan.vocab_tile):
            p = tiled.fold(block, columns, running, limit)
            if columns.start:
                tiles.rescale_rows(mean, running.rescale)
            mm_wide(p, head.weight[columns], mean, accumulate=columns.start > 0)
        total, miss = running.finish(block, result.rows(rows))
        onto = Onto(torch.ones_like(total)) if upstream is None else upstream(result.rows(rows), rows).map(block.only_active)
        onto_target = onto.at_target(miss) * head.transform.slope(running.target_logit)
        onto_mean = -onto.onto_p * head.transform.steepest / total
        tiles.finish_rows(mean, head.weight, block.targets, onto_target, onto_mean, gradient[rows])
    return result, gradient


def blocks(
    head: Head, plan: Plan, needs: Needs, upstream: Upstream, wants: Wants = _NOTHING_ELSE
) -> tuple[Statistics, Gradients, Tensor | None]:
    """Statistics and the gradients of a known loss, by blocks of rows with all their logits: three products with the weight.

    The weight gradient is summed in fp32: each block is added to an fp32 accumulator here, or, where the plan found that
    smaller, the gradient tiles of all rows are returned for one product in the backward (`weight_gradient`).

    Returns:
        The statistics [N], the gradients, and the tiles [N, V] that were kept, or None.
    """
    count, vocab = head.hidden.shape[0], head.weight.shape[0]
    result, keep = Statistics.new(head, wants), needs.weight and plan.keep_tiles
    hidden = head.clean_hidden() if needs.weight and not keep else head.hidden
    d_hidden = torch.empty_like(head.hidden) if needs.hidden else None
    d_bias = head.hidden.new_zeros(vocab, dtype=head.wide) if needs.bias else None
    d_weight = head.empty(*head.weight.shape) if needs.weight and not keep else None
    height = min(plan.row_block, count)
    storage = head.empty(count if keep else height, plan.padded_vocab, dtype=plan.tile_dtype)[:, :vocab]
    buffer = None if plan.in_place else head.empty(height, plan.padded_vocab)[:, :vocab]
    mean = head.empty(height, head.hidden.shape[1]) if needs.hidden else None
    workspace = head.empty(workspace_size(height, vocab, best=wants.best)) if plan.fused else None
    for rows in _slices(count, plan.row_block):
        block, size, found = head.rows(rows), rows.stop - rows.start, result.rows(rows)
        tile = storage[rows] if keep else storage[:size]
        x = tile if buffer is None else buffer[:size]
        running = Running.new(block, wants)
        walk.reduce(block, slice(0, vocab), x, running, workspace)
        running.finish(block, found)
        onto = OntoLogits.of(upstream(found, rows), found.miss)
        walk.gradient(block, slice(0, vocab), x, None if buffer is None else tile, found, onto)
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


def recompute(head: Head, plan: Plan, needs: Needs, statistics: Statistics, onto: Onto) -> Gradients:
    """Gradients of an unknown loss, once its upstream is there: the logits are computed again, tile by tile.

    The vocabulary is the outer loop, so that each slice of the weight gradient is one fp32-accumulated product over all rows
    and no [V, H] accumulator exists.

    Args:
        head, plan, needs: as in forward.
        statistics: what `forward_only` returned, with the entropy if something goes onto it.
        onto: what the loss asks of all rows.
    """
    count, width = head.hidden.shape
    d_hidden = head.empty(count, width) if needs.hidden else None
    d_weight = torch.empty_like(head.weight, memory_format=torch.contiguous_format) if needs.weight else None
    d_bias = head.empty(head.weight.shape[0]) if needs.bias else None
    tiled, asked = Walk(head, plan, _NOTHING_ELSE, statistics=False), OntoLogits.of(onto, statistics.miss)
    whole = plan.row_block >= count
    sums = head.empty(plan.vocab_tile, width) if needs.weight and not whole else None
    clean = head.clean_hidden() if needs.weight and whole else head.hidden
    for columns in _slices(head.weight.shape[0], plan.vocab_tile):
        d_weight_sum = None if sums is None else sums[: columns.stop - columns.start]
        for rows in _slices(count, plan.row_block):
            block = head.rows(rows)
            tile = tiled.gradient(block, columns, statistics.rows(rows), asked.rows(rows))
            if d_hidden is not None:
                mm_wide(tile, head.weight[columns], d_hidden[rows], accumulate=columns.start > 0)
            if d_bias is not None:
                column_sum = tile.sum(0, dtype=head.wide)
                d_bias[columns] = column_sum if rows.start == 0 else d_bias[columns] + column_sum
            if d_weight_sum is not None:
                mm_wide(tile.t(), block.clean_hidden(), d_weight_sum, accumulate=rows.start > 0)
            elif d_weight is not None:
                mm_rounded(tile.t(), clean, d_weight[columns])
        if d_weight is not None and d_weight_sum is not None:
            d_weight[columns] = d_weight_sum
    del tiled, tile, sums, d_weight_sum, clean, block  # before the hidden gradient is rounded
    return Gradients(_in_dtype_of(head.hidden, d_hidden), d_weight, _in_dtype_of(head.bias, d_bias))


def _slices(size: int, step: int) -> Iterator[slice]:
    for first in range(0, size, step):
        yield slice(first, min(first + step, size))


def _in_dtype_of(like: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    return None if like is None or gradient is None else gradient.to(like.dtype)
