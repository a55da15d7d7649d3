"""Which pass over the logits runs, in which tiles, and what it will allocate: decided before anything is computed.

A plan is a pure function of a `Problem` (shapes, dtype, which gradients are needed, whether the loss is known) and a memory
budget. It can be printed and compared, it predicts its own peak, and backward follows the plan that forward chose.

| strategy | when | products with the weight |
|---|---|---|
| FORWARD | no gradient | 1 |
| STREAM | only the hidden gradient, none through the entropy | 2: logits; softmax-weighted mean of the weight rows |
| BLOCKS | the loss is known; weight, bias or entropy are trained | 3: logits, d hidden, d weight (2 with the weight frozen) |
| RECOMPUTE | the loss is not known; weight, bias or entropy are trained | 4: logits twice (3 with the weight frozen) |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from frostline.kernels.lm_head import output_tiles
from frostline.kernels.matmul import accumulator_dtype, mm_rounded_workspace, slab_workspace


class Strategy(StrEnum):
    """How the logits are walked; see the table above."""

    FORWARD = "forward"
    STREAM = "stream"
    BLOCKS = "blocks"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Needs:
    """Which gradients are wanted: pruning as data."""

    hidden: bool = False
    weight: bool = False
    bias: bool = False

    @property
    def any(self) -> bool:
        """Whether there is a gradient to compute at all."""
        return self.hidden or self.weight or self.bias

    @property
    def parameters(self) -> bool:
        """Whether the head itself is trained."""
        return self.weight or self.bias


@dataclass(frozen=True)
class Problem:
    """What a plan is a function of. `rows` is the number of rows that are computed, `group` how many must share a row block,
    `entropy` whether a gradient goes through entropies, `fusable` whether the device makes tiles in the product's epilogue."""

    rows: int
    hidden: int
    vocab: int
    dtype: torch.dtype
    needs: Needs = Needs()
    loss_known: bool = False
    entropy: bool = False
    group: int = 1
    masked: bool = False
    device: str = "cpu"
    fusable: bool = False

    @property
    def unfused_bytes(self) -> int:
        """Peak above the inputs of plain code: logits, an fp32 copy, log-softmax and its gradient, and what is returned."""
        wide, narrow = accumulator_dtype(self.dtype).itemsize, self.dtype.itemsize
        copies = (2 * wide + 2 * narrow) if self.needs.any else (wide + narrow)
        return self.rows * self.vocab * copies + self.gradient_bytes

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that are returned."""
        needs, size = self.needs, self.dtype.itemsize
        return size * (
            needs.hidden * self.rows * self.hidden + needs.weight * self.vocab * self.hidden + needs.bias * self.vocab
        )


@dataclass(frozen=True)
class Sizes:
    """Tile sizes of a device kind, the `fused_` ones where a tile is made in the product's epilogue: a tile of fewer rows is
    wider. `block_bytes` caps a block of logits whatever the problem's size."""

    stream_rows: int
    stream_columns: int
    recompute_columns: int
    block_bytes: int
    fused_rows: int = 0
    fused_columns: int = 0


# CUDA: two GEMMs of 2048 x 4096 x 16384 fill an H200 for 0.8 ms, and their tile (fp32 logits, bf16 exponentials) is 192 MiB.
# Fused, the tile is bf16 alone: 4096 x 16896 are 132 MiB, and fewer row blocks have fewer small kernels between the products.
# CPU: a tile that the last-level cache can hold in part; wider tiles only add memory traffic.
_SIZES = {
    "cuda": Sizes(
        stream_rows=2048,
        stream_columns=16384,
        recompute_columns=8192,
        block_bytes=1 << 30,
        fused_rows=4096,
        fused_columns=16896,
    ),
    "cpu": Sizes(stream_rows=1024, stream_columns=2048, recompute_columns=2048, block_bytes=1 << 26),
}
_COLUMN_MULTIPLE = {"cuda": 256, "cpu": 64}
_ROW_MULTIPLE = {"cuda": 128, "cpu": 8}
_PRODUCT_COLUMNS = 2048  # of d weight at a time, where the product goes through an fp32 result
_PROGRAMS = 132  # multiprocessors of an H200: output tiles of a fused product that run at once
# fp32 values, rounded up: of every row its statistics and, of a known loss (True), coefficients and their temporaries; of a
# block's rows what runs while its tiles pass.
_VALUES_PER_ROW = {True: 32, False: 8}
_VALUES_PER_BLOCK_ROW = 12


@dataclass(frozen=True)
class Plan:
    """What will run.

    Attributes:
        row_block, vocab_tile: the shape of a tile. BLOCKS holds all logits of its rows, and tiles only its product d weight.
        keep_tiles: BLOCKS keeps every gradient tile for one product d weight in the backward, instead of an fp32 accumulator.
        tile_dtype: dtype of probabilities and gradient tiles; the accumulator's own means that they overwrite the logits.
        peak_bytes: predicted peak above the inputs, forward and backward, results included.
    """

    strategy: Strategy
    problem: Problem
    row_block: int
    vocab_tile: int
    tile_dtype: torch.dtype
    keep_tiles: bool = False
    peak_bytes: int = 0

    @property
    def in_place(self) -> bool:
        """Whether a tile of logits is overwritten by its gradient."""
        return self.tile_dtype == accumulator_dtype(self.problem.dtype)

    @property
    def fused(self) -> bool:
        """Whether a tile's work is done in the epilogue of its product. Only BLOCKS, which looks at all logits of a row twice,
        then has logits in memory."""
        return self.problem.fusable

    @property
    def padded_vocab(self) -> int:
        """Row stride of a buffer of whole rows of logits: a multiple, so that a prime vocabulary keeps GEMMs aligned."""
        return _round_up(self.problem.vocab, 64)


@dataclass(frozen=True)
class Override:
    """Sizes that replace the plan's own: for tests, sweeps and tight memory."""

    row_block: int | None = None
    vocab_tile: int | None = None
    memory_budget: int | None = None
    keep_tiles: bool | None = None


_NOTHING = Override()
_override: ContextVar[Override] = ContextVar("frostline_plan_override", default=_NOTHING)


@contextmanager
def override(
    *,
    row_block: int | None = None,
    vocab_tile: int | None = None,
    memory_budget: int | None = None,
    keep_tiles: bool | None = None,
) -> Iterator[None]:
    """Plans made inside take these sizes. `memory_budget` is in bytes above the inputs, and shrinks tiles until they fit."""
    for name, value in (("row_block", row_block), ("vocab_tile", vocab_tile), ("memory_budget", memory_budget)):
        if value is not None and value < 1:
            raise ValueError(f"{name}: got {value}, wanted a positive number")
    token = _override.set(Override(row_block, vocab_tile, memory_budget, keep_tiles))
    try:
        yield
    finally:
        _override.reset(token)


def make_plan(problem: Problem) -> Plan:
    """Choose strategy and tiles: a peak within the budget and within the unfused path's, as far as tiles can shrink."""
    forced = _override.get()
    plan = _first_plan(problem, forced)
    limit = min(problem.unfused_bytes, forced.memory_budget or problem.unfused_bytes)
    while plan.peak_bytes > limit:
        smaller = _smaller(plan, forced)
        if smaller == plan:
            break
        plan = _priced(smaller, forced)
    return plan


def _smaller(plan: Plan, forced: Override) -> Plan:
    """The plan with half the tile, or itself where it cannot shrink. RECOMPUTE keeps rows together and narrows its columns."""
    if plan.strategy is Strategy.RECOMPUTE and forced.vocab_tile is None and plan.vocab_tile > _COLUMN_MULTIPLE["cpu"]:
        return replace(plan, vocab_tile=_round_up(plan.vocab_tile // 2, _COLUMN_MULTIPLE["cpu"]))
    group = plan.problem.group
    if forced.row_block is None and plan.row_block > max(group, _ROW_MULTIPLE["cpu"]):
        return replace(plan, row_block=_align(plan.row_block // 2, group))
    return plan


def fits_in_blocks(problem: Problem) -> bool:
    """Whether a loss over groups of rows can be formed block by block: one group's logits within the cap."""
    sizes = _sizes(problem.device)
    if problem.needs.parameters or problem.entropy:
        return problem.group == 1 or problem.group * _row_bytes(problem) <= sizes.block_bytes
    return problem.group <= 2 * sizes.stream_rows


def _first_plan(problem: Problem, forced: Override) -> Plan:
    sizes, strategy = _sizes(problem.device), _strategy(problem)
    wide, narrow = accumulator_dtype(problem.dtype), problem.dtype.itemsize
    rows, columns = sizes.stream_rows, sizes.stream_columns
    if strategy is Strategy.BLOCKS:
        rows = sizes.block_bytes // _row_bytes(problem)
        whole = mm_rounded_workspace(problem.vocab, problem.hidden, problem.dtype, problem.device) == 0
        columns = problem.vocab if whole else _PRODUCT_COLUMNS
    elif strategy is Strategy.RECOMPUTE:
        columns = sizes.fused_columns if problem.fusable else sizes.recompute_columns
        rows = sizes.block_bytes // (columns * (narrow if problem.fusable else wide.itemsize))
    elif problem.fusable:
        rows, columns = sizes.fused_rows, sizes.fused_columns if strategy is Strategy.STREAM else problem.vocab
    row_block = forced.row_block or _even_share(problem.rows, max(rows, 1), _multiple(_ROW_MULTIPLE, problem.device))
    if problem.fusable and strategy is not Strategy.BLOCKS:
        height = max(min(row_block, problem.rows), 1)
        vocab_tile = _whole_waves(problem.vocab, height, max(columns, sizes.fused_rows * sizes.fused_columns // height))
    else:
        vocab_tile = _even_share(problem.vocab, columns, _multiple(_COLUMN_MULTIPLE, problem.device))
    plan = Plan(
        strategy,
        problem,
        row_block=row_block,
        vocab_tile=min(problem.vocab, forced.vocab_tile or vocab_tile),
        tile_dtype=problem.dtype if problem.device == "cuda" else wide,
    )
    grouped = _align(plan.row_block, problem.group) if problem.loss_known else plan.row_block
    return _priced(replace(plan, row_block=grouped), forced)


def _strategy(problem: Problem) -> Strategy:
    needs = problem.needs
    if not needs.any:
        return Strategy.FORWARD
    if not needs.parameters and not problem.entropy:
        return Strategy.STREAM
    return Strategy.BLOCKS if problem.loss_known else Strategy.RECOMPUTE


def _priced(plan: Plan, forced: Override) -> Plan:
    """The plan with its predicted peak, and for BLOCKS with the cheaper way to the weight gradient."""
    if plan.strategy is not Strategy.BLOCKS or not plan.problem.needs.weight:
        return replace(plan, peak_bytes=_peak(plan))
    ways = [replace(plan, keep_tiles=keep) for keep in (True, False)]
    ways = [replace(way, peak_bytes=_peak(way)) for way in ways]
    if forced.keep_tiles is not None:
        return ways[0] if forced.keep_tiles else ways[1]
    return min(ways, key=lambda way: way.peak_bytes)  # the first, one GEMM and no accumulation, when they are equal


def _peak(plan: Plan) -> int:
    """Peak above the inputs: what each phase holds at once, from the engine's allocations."""
    problem, needs = plan.problem, plan.problem.needs
    wide, narrow = accumulator_dtype(problem.dtype).itemsize, problem.dtype.itemsize
    tile = plan.tile_dtype.itemsize
    rows, block = problem.rows, min(plan.row_block, problem.rows)
    per_row = (_VALUES_PER_ROW[problem.loss_known] * rows + _VALUES_PER_BLOCK_ROW * block) * wide
    columns = problem.vocab if plan.strategy is Strategy.BLOCKS else plan.vocab_tile
    slab = slab_workspace((block + columns) * problem.hidden, problem.dtype, problem.device)
    hidden_gradient = needs.hidden * rows * problem.hidden * narrow
    clean_hidden = (problem.masked and needs.weight) * rows * problem.hidden * narrow
    logits_tile = block * _round_up(plan.vocab_tile, 64) * wide
    if plan.fused:
        partials = output_tiles.workspace_size(block, plan.vocab_tile) * wide
        logits_tile = 0 if plan.strategy is Strategy.RECOMPUTE else partials
    gradient_tile = 0 if plan.in_place else block * _round_up(plan.vocab_tile, 64) * tile
    row_accumulator = block * problem.hidden * wide
    weight_gradient = needs.weight * problem.vocab * problem.hidden * narrow

    if plan.strategy is Strategy.FORWARD:
        return per_row + logits_tile + slab
    if plan.strategy is Strategy.STREAM:
        forward = hidden_gradient + logits_tile + gradient_tile + row_accumulator + slab
        return per_row + max(forward, 2 * hidden_gradient)  # backward: the kept gradient and its scaled copy
    if plan.strategy is Strategy.RECOMPUTE:
        summed = needs.hidden * rows * problem.hidden * wide
        one_block = block >= rows
        product = mm_rounded_workspace(plan.vocab_tile, problem.hidden, problem.dtype, problem.device)
        weight_tile = needs.weight * (product if one_block else plan.vocab_tile * problem.hidden * wide)
        work = logits_tile + gradient_tile + weight_tile + slab
        rounded = 0 if narrow == wide else hidden_gradient
        return per_row + clean_hidden + weight_gradient + summed + max(work, rounded)
    return per_row + clean_hidden + hidden_gradient + _blocks_peak(plan, block, weight_gradient, row_accumulator) + slab


def _blocks_peak(plan: Plan, block: int, weight_gradient: int, row_accumulator: int) -> int:
    """BLOCKS without what is common: the larger of the walk over row blocks, the end of it, and the backward."""
    problem, wide = plan.problem, accumulator_dtype(plan.problem.dtype).itemsize
    logits = block * plan.padded_vocab * wide
    gradient = 0 if plan.in_place else block * plan.padded_vocab * plan.tile_dtype.itemsize
    if plan.fused:
        logits += output_tiles.workspace_size(block, problem.vocab) * wide
    bias = problem.needs.bias * problem.vocab * 3 * wide
    scaled_hidden = problem.needs.hidden * problem.rows * problem.hidden * problem.dtype.itemsize
    if plan.keep_tiles:
        kept = problem.rows * plan.padded_vocab * plan.tile_dtype.itemsize
        walk = kept + (0 if plan.in_place else logits) + row_accumulator
        product = mm_rounded_workspace(plan.vocab_tile, problem.hidden, problem.dtype, problem.device)
        return bias + max(walk, scaled_hidden + kept + weight_gradient + product)
    accumulator = problem.needs.weight * problem.vocab * problem.hidden * wide
    rounded = weight_gradient if problem.dtype.itemsize < wide else 0
    return bias + max(
        accumulator + logits + gradient + row_accumulator, accumulator + rounded, scaled_hidden + 2 * weight_gradient
    )


def _row_bytes(problem: Problem) -> int:
    return _round_up(problem.vocab, 64) * accumulator_dtype(problem.dtype).itemsize


def _sizes(device: str) -> Sizes:
    return _SIZES.get(device, _SIZES["cpu"])


def _multiple(table: dict[str, int], device: str) -> int:
    return table.get(device, table["cpu"])


def _even_share(size: int, most: int, multiple: int) -> int:
    """Split `size` into the fewest parts of at most `most`, as even as `multiple` allows, so that no part is a sliver."""
    if size <= most:
        return max(size, 1)
    parts = -(-size // most)
    return min(most, _round_up(-(-size // parts), multiple))


def _whole_waves(vocab: int, rows: int, most: int) -> int:
    """Columns of a fused tile, at most `most`: those whose output tiles fill the GPU's multiprocessors in the fewest turns.

    On 132 multiprocessors a product of 1,008 output tiles takes 8 turns, the last with 84 at work; one of 1,056 takes as many.
    """
    down, across, widest = (
        -(-rows // output_tiles.ROWS),
        -(-vocab // output_tiles.COLUMNS),
        max(most // output_tiles.COLUMNS, 1),
    )
    if across <= widest:
        return vocab

    def turns(count: int) -> int:
        whole, rest = divmod(across, count)
        return whole * -(-down * count // _PROGRAMS) + -(-down * rest // _PROGRAMS)

    return output_tiles.COLUMNS * min(range(widest, widest // 2, -1), key=turns)


def _align(rows: int, group: int) -> int:
    """Whole groups: the multiple of `group` at or below `rows`, at least one group."""
    return max(rows // group, 1) * group


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
