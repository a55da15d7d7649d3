"""Tiles of logits on their way through a pass: how one is made, what is done to it, and what its rows keep of it.

A tile is a product with the weight and the work of `tiles` on it: in one kernel where the GPU has one (`fused`), else one after
the other with the logits in memory between.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.kernels.lm_head import fused, tiles
from frostline.kernels.lm_head.head import Head, OntoLogits, Statistics, Wants
from frostline.kernels.lm_head.output_tiles import workspace_size
from frostline.kernels.lm_head.problem import Plan, round_up
from frostline.kernels.matmul import mm_wide


@dataclass(frozen=True)
class Running:
    """The statistics of a row block while its tiles pass, all [rows] but `best` [2, rows]; meanings in `tiles`."""

    target_logit: Tensor
    reference: Tensor
    total: Tensor
    rescale: Tensor
    moment: Tensor | None
    spread: Tensor | None
    best: Tensor | None

    @staticmethod
    def new(block: Head, wants: Wants) -> Running:
        """Before the first tile of a block."""
        rows = block.empty(6, block.hidden.shape[0])
        tiles.target_logits(block.hidden, block.weight, block.bias, block.targets, rows[0], *scalars(block))
        return Running.begun(block, wants, rows)

    @staticmethod
    def begun(block: Head, wants: Wants, rows: Tensor) -> Running:
        """The same in memory [6, rows] that begins with the targets' logits."""
        target_logit, reference, total, rescale, moment, spread = rows
        torch.clamp(target_logit, min=torch.finfo(block.wide).min, out=reference)  # a token forbidden by a bias of -inf
        total.zero_()
        return Running(
            target_logit,
            reference,
            total,
            rescale,
            moment.zero_() if wants.entropy else None,
            spread.zero_() if wants.spread else None,
            _nothing_yet(block, rows.shape[1]) if wants.best else None,
        )

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
        if result.spread is not None and self.spread is not None:
            result.spread.copy_(self.spread)
        if result.best is not None and self.best is not None:
            result.best.copy_(self.best[1])
        return total, self.total / total


def _nothing_yet(block: Head, count: int) -> Tensor:
    best = block.empty(2, count)
    best[0], best[1] = -torch.inf, 0.0
    return best


class Walk:
    """Tiles of logits, and what is done to them: one op where the plan is fused, else a product into a buffer and an op on it.
    `tile` and `statistics` say which of the two are wanted."""

    def __init__(self, head: Head, plan: Plan, wants: Wants, *, tile: bool = True, statistics: bool = True) -> None:
        height = min(plan.row_block, head.hidden.shape[0])
        stored = (height, round_up(plan.vocab_tile, 64))
        self.logits = None if plan.fused else head.empty(*stored)
        self.tile = head.empty(*stored, dtype=plan.tile_dtype) if tile and not plan.in_place else None
        partials = workspace_size(height, plan.vocab_tile, best=wants.best)
        self.workspace = head.empty(partials) if statistics and plan.fused else None

    def reduce(self, block: Head, columns: slice, running: Running) -> None:
        """Fold a tile into the running statistics."""
        x = None if self.logits is None else self.logits[: block.hidden.shape[0], : columns.stop - columns.start]
        reduce(block, columns, x, running, self.workspace)

    def fold(self, block: Head, columns: slice, running: Running, limit: float) -> Tensor:
        """The same, and the tile's unnormalised probabilities."""
        state = running.reference, running.total, running.moment, running.best, running.rescale
        out = self._out(block, columns)
        if self.workspace is not None and out is not None:
            operands = _operands(block, columns)
            fused.fold_logits(*operands, out, *state, self.workspace, columns.start, limit, *scalars(block))
            return out
        x, *rest = self._product(block, columns)
        tiles.fold_tile(x, *rest, out, *state, columns.start, limit, *scalars(block))
        return x if out is None else out

    def gradient(self, block: Head, columns: slice, known: Statistics, onto: OntoLogits) -> Tensor:
        """The gradient with respect to a tile's raw logits."""
        out = self._out(block, columns)
        if self.logits is None and out is not None:
            fused.gradient_logits(*_operands(block, columns), *_known(known, onto), out, columns.start, *scalars(block))
            return out
        x = self._product(block, columns)[0]
        gradient(block, columns, x, out, known, onto)
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


def reduce(block: Head, columns: slice, x: Tensor | None, running: Running, workspace: Tensor | None) -> None:
    """Fold a tile into the running statistics: fused where there is a workspace. Its raw logits are left in `x`, which only a
    fused product can do without, where no sum over the vocabulary needs them."""
    state = running.reference, running.total, running.moment, running.best
    hidden, weight, bias, targets = _operands(block, columns)
    if workspace is not None:
        fused.reduce_logits(hidden, weight, bias, targets, x, *state, workspace, columns.start, *scalars(block))
    else:
        assert x is not None
        mm_wide(hidden, weight.t(), x)
        tiles.reduce_tile(x, bias, targets, *state, columns.start, *scalars(block))
    if running.spread is not None and x is not None:
        into = running.target_logit, _column_weight(block, columns), running.spread
        tiles.spread_tile(x, bias, targets, *into, columns.start, *scalars(block))


def gradient(block: Head, columns: slice, x: Tensor, out: Tensor | None, known: Statistics, onto: OntoLogits) -> None:
    """Turn a tile of raw logits `x` into its gradient, in `out` or in place."""
    every = onto.all, None if onto.all is None else _column_weight(block, columns)
    bias = None if block.bias is None else block.bias[columns]
    tiles.gradient_tile(x, bias, block.targets, *_known(known, onto), *every, out, columns.start, *scalars(block))


def scalars(head: Head) -> tuple[float, float, bool]:
    """The transform, as the ops take it."""
    return head.transform.inner, head.transform.outer, head.transform.capped


def _known(known: Statistics, onto: OntoLogits) -> tuple[Tensor | None, ...]:
    entropy = None if onto.entropy is None else known.entropy
    return known.reference, known.log_total, onto.at_target, onto.onto_p, onto.entropy, entropy


def _column_weight(block: Head, columns: slice) -> Tensor | None:
    return None if block.column_weight is None else block.column_weight[columns]


def _operands(block: Head, columns: slice) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """What makes a tile: hidden states, a slice of the weight and of the bias, and the targets of its rows."""
    return block.hidden, block.weight[columns], None if block.bias is None else block.bias[columns], block.targets
