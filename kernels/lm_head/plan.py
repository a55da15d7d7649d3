"""Which pass over the logits runs, in which tiles, and what it will allocate: decided before anything is computed.

A plan is a pure function of a `Problem` (shapes, dtype, which gradients are needed, whether the loss is known, a memory
budget). It can be printed and compared, it predicts its own peak, and backward follows the plan that forward chose.

| strategy | when it can be | products with the weight |
|---|---|---|
| FORWARD | no gradient | 1 |
| STREAM | only the hidden gradient, through the softmax alone | 2: logits; softmax-weighted mean of the weight rows |
| BLOCKS | the loss is known; STREAM cannot be | 3: logits, d hidden, d weight (2 with the weight frozen) |
| RECOMPUTE | any gradient | 4: logits twice, d hidden, d weight (3 with the weight frozen) |

Of those that can be, the fewest products win, then the smaller peak, as far as the budget allows: tiles are halved until a plan
fits, and only when its smallest does not, the next strategy is asked. So a smaller budget never has a larger peak, nor a larger
budget more products. Where nothing fits the leanest plan runs, and says so (`Plan.fits`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from frostline.kernels.arguments import FLOATING
from frostline.kernels.lm_head.checks import check_memory_budget
from frostline.kernels.lm_head.fused import fusable_shape
from frostline.kernels.lm_head.peaks import predicted_peak
from frostline.kernels.lm_head.problem import Needs, Plan, Problem, Strategy
from frostline.kernels.lm_head.sizes import first_tile, row_bytes, sizes_of, smaller_tiles
from frostline.kernels.matmul import accumulator_dtype

__all__ = [
    "Needs",
    "Plan",
    "Problem",
    "Strategy",
    "candidates",
    "forms_in_forward",
    "make_plan",
    "obstacle",
    "override",
    "plan",
]

_DEVICES = ("cuda", "cpu")
_FROZEN_HEAD = Needs(hidden=True)
_NOT_WORTH_TILES = 256  # the part of a peak that is not worth halving tiles for once more


@dataclass(frozen=True)
class Override:
    """Sizes that replace the plan's own: for tests and sweeps."""

    row_block: int | None = None
    vocab_tile: int | None = None
    keep_tiles: bool | None = None


_NOTHING = Override()
_override: ContextVar[Override] = ContextVar("frostline_plan_override", default=_NOTHING)


@contextmanager
def override(*, row_block: int | None = None, vocab_tile: int | None = None, keep_tiles: bool | None = None) -> Iterator[None]:
    """Plans made inside take these sizes, whatever they need."""
    for name, value in (("row_block", row_block), ("vocab_tile", vocab_tile)):
        if value is not None and value < 1:
            raise ValueError(f"{name}: got {value}, wanted a positive number")
    token = _override.set(Override(row_block, vocab_tile, keep_tiles))
    try:
        yield
    finally:
        _override.reset(token)


def plan(
    rows: int,
    hidden: int,
    vocab: int,
    dtype: torch.dtype = torch.bfloat16,
    needs_grad: Needs = _FROZEN_HEAD,
    memory_budget: int | None = None,
    device: str = "cuda",
    *,
    loss_known: bool = False,
    told_again: bool = False,
    entropy: bool = False,
    spread: bool = False,
    best: bool = False,
    masked: bool = False,
    group: int = 1,
) -> Plan:
    """What the head will do with a problem of this size. Nothing is computed, and no device is needed.

    Args:
        rows: tokens, those alone that are computed.
        hidden, vocab: H and V of the weight [V, H].
        dtype: of hidden states and weight.
        needs_grad: which of hidden, weight and bias require a gradient; `Needs()` for none.
        memory_budget: bytes above the inputs that may be used. None: what the unfused path would need, at most.
        device: "cuda" or "cpu"; without a GPU here, "cuda" is one of the generation that the fused kernels are made for.
        loss_known: True for `FusedLinearGRPOLoss` and `linear_cross_entropy`; False for `linear_logprob`, or losses per row.
        told_again: whether the loss can tell the backward again what it asks: True for `linear_cross_entropy`.
        entropy: whether a gradient goes through entropies.
        spread: whether a sum of logits over the vocabulary is wanted, as label smoothing does.
        best: whether the best column of a row is wanted, as token accuracy and predicted tokens do.
        masked: whether some rows may not count.
        group: consecutive rows that the loss judges together: 1, or the length of a completion at sequence level.

    Returns:
        The plan: `strategy`, `row_block`, `vocab_tile`, `peak_bytes`, `products`, `flops`, and whether it `fits` the budget.

    Raises:
        ValueError, TypeError: a size, budget, dtype or device that cannot be.
    """
    for name, size, least in (("rows", rows, 0), ("hidden", hidden, 1), ("vocab", vocab, 1), ("group", group, 1)):
        if size < least:
            raise ValueError(f"{name}: got {size}, wanted at least {least}")
    if dtype not in FLOATING:
        raise TypeError(f"dtype: got {dtype}, wanted one of {', '.join(map(str, FLOATING))}")
    if device not in _DEVICES:
        raise ValueError(f"device: got {device!r}, wanted one of {', '.join(_DEVICES)}")
    check_memory_budget(memory_budget)
    problem = Problem(
        rows=rows,
        hidden=hidden,
        vocab=vocab,
        dtype=dtype,
        needs=needs_grad,
        loss_known=loss_known,
        loss_told_again=loss_known and told_again,
        entropy=entropy,
        spread=spread,
        best=best,
        group=group,
        masked=masked,
        device=device,
        fusable=rows > 0 and fusable_shape(hidden, dtype, device) and not spread,
        memory_budget=memory_budget,
    )
    return make_plan(problem)


def make_plan(problem: Problem, *, in_forward: bool = False) -> Plan:
    """The first of `candidates` that fits, else the leanest of them.

    Args:
        problem: what is asked.
        in_forward: True leaves out what puts the loss off: for a caller that has to form the gradients now.
    """
    return _make_plan(problem, in_forward, _override.get())


def candidates(problem: Problem, *, in_forward: bool = False) -> Iterator[Plan]:
    """What can be done about a problem, the preferred first, each in the largest tiles that fit its budget, or its leanest."""
    return _candidates(problem, in_forward, _override.get())


def forms_in_forward(problem: Problem) -> bool:
    """Whether the gradients of a known loss are formed in the forward: not where they cannot be, nor where the budget is too
    small for it."""
    return make_plan(problem).in_forward


def obstacle(problem: Problem) -> str:
    """Why the gradients of the loss cannot be formed in the forward, while the logits are at hand; empty where they can."""
    if not problem.loss_known:
        return "the loss is not known when the forward runs"
    if problem.dtype == torch.float16:
        return "small fp16 gradients only survive once the loss scale has been applied, in the backward"
    if not _group_fits(problem):
        return f"{problem.group} rows that are judged together are more than a block of rows holds"
    return ""


@lru_cache(maxsize=1024)  # a training loop asks the same few questions again and again
def _make_plan(problem: Problem, in_forward: bool, forced: Override) -> Plan:
    leanest: Plan | None = None
    for candidate in _candidates(problem, in_forward, forced):
        if candidate.fits:
            return candidate
        if leanest is None or candidate.peak_bytes < leanest.peak_bytes:
            leanest = candidate
    assert leanest is not None
    return leanest


def _candidates(problem: Problem, in_forward: bool, forced: Override) -> Iterator[Plan]:
    firsts = [_first_plan(problem, way, forced) for way in _ways(problem, in_forward, forced)]
    for first in sorted(firsts, key=_preference):
        yield _fitted(first, forced)


def _preference(plan: Plan) -> tuple[int, int]:
    """Fewest products first, then the smaller peak. Kept tiles may have a larger one by a quarter: an accumulator is read and
    written with every block of rows, which on an H200 took a tenth of a step."""
    return plan.products, plan.peak_bytes * (4 if plan.keep_tiles else 5)


@dataclass(frozen=True)
class _Way:
    """A strategy, and how it is carried out."""

    strategy: Strategy
    in_forward: bool = False
    keep_tiles: bool = False
    hidden_first: bool = False


def _ways(problem: Problem, in_forward: bool, forced: Override) -> list[_Way]:
    """Every way that gives the right result, of equal ones the simpler first.

    BLOCKS is none where STREAM can be: as many products, and all logits of its rows in memory.
    """
    needs, formed = problem.needs, in_forward or not obstacle(problem)
    if not needs.any:
        return [_Way(Strategy.FORWARD)]
    ways = []
    if not needs.parameters and problem.through_p_alone:
        ways.append(_Way(Strategy.STREAM, formed))
    elif formed and needs.weight:  # kept tiles first: one product over all rows, and no accumulator
        kept = (True, False) if forced.keep_tiles is None else (forced.keep_tiles,)
        ways.extend(_Way(Strategy.BLOCKS, True, keep) for keep in kept)
    elif formed:
        ways.append(_Way(Strategy.BLOCKS, True))
    if in_forward:
        return ways
    hidden_first = problem.loss_told_again and formed and needs.hidden and needs.parameters and problem.through_p_alone
    return [*ways, _Way(Strategy.RECOMPUTE, hidden_first=hidden_first)]


def _first_plan(problem: Problem, way: _Way, forced: Override) -> Plan:
    """A way in the tiles that the device likes best."""
    group = problem.group if way.in_forward else 1
    row_block, vocab_tile = first_tile(problem, way.strategy, group, forced.row_block, forced.vocab_tile)
    return _priced(
        Plan(
            strategy=way.strategy,
            problem=problem,
            row_block=row_block,
            vocab_tile=vocab_tile,
            tile_dtype=problem.dtype if problem.device == "cuda" else accumulator_dtype(problem.dtype),
            in_forward=way.in_forward,
            keep_tiles=way.keep_tiles,
            hidden_first=way.hidden_first,
        )
    )


def _fitted(first: Plan, forced: Override) -> Plan:
    """The plan with its tiles halved until it fits, or until what more could be saved is not worth more tiles."""
    if first.fits:
        return first
    plans = list(_shrinking(first, forced))
    least = min(plan.peak_bytes for plan in plans)
    return next(plan for plan in plans if plan.fits or plan.peak_bytes <= least + least // _NOT_WORTH_TILES)


def _shrinking(first: Plan, forced: Override) -> Iterator[Plan]:
    """The plan, then with half the rows or half the columns of a tile, whichever leaves less, down to the smallest tile.

    These do not depend on the budget: it only says how far down to go, so that less of it never has a larger peak.
    """
    smaller = [first]
    while smaller:
        if first.strategy is Strategy.RECOMPUTE:
            smaller.reverse()  # of equals the narrower: while all rows are in one block, d weight needs no sum of blocks
        plan = min(map(_priced, smaller), key=lambda plan: plan.peak_bytes)
        yield plan
        smaller = smaller_tiles(plan, rows=forced.row_block is None, columns=forced.vocab_tile is None)


def _priced(plan: Plan) -> Plan:
    return replace(plan, peak_bytes=predicted_peak(plan))


def _group_fits(problem: Problem) -> bool:
    """Whether the rows that are judged together fit a block, with their logits within the cap where they are in memory."""
    sizes = sizes_of(problem.device)
    if problem.needs.parameters or not problem.through_p_alone:
        return problem.group == 1 or problem.group * row_bytes(problem) <= sizes.block_bytes
    return problem.group <= 2 * sizes.stream_rows
