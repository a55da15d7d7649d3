"""Tile sizes: what a device kind likes, and the next smaller tile where memory is short.

Tiles are capped whatever the problem's size: one in proportion to N * H once took 2 GiB at V = 262,144 and H = 5,376.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from frostline.kernels.lm_head import output_tiles
from frostline.kernels.lm_head.problem import Plan, Problem, Strategy, round_up
from frostline.kernels.matmul import accumulator_dtype, mm_rounded_workspace


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
# Tiles are multiples of these where they can be, and shrink no further: below, a GPU does as much work for less.
_COLUMN_MULTIPLE = {"cuda": 256, "cpu": 64}
_ROW_MULTIPLE = {"cuda": 128, "cpu": 8}
_PRODUCT_COLUMNS = 2048  # of d weight at a time, where the product goes through an fp32 result
_PROGRAMS = 132  # multiprocessors of an H200: output tiles of a fused product that run at once


def sizes_of(device: str) -> Sizes:
    """Those of a device kind; one that is not known is treated as a CPU."""
    return _SIZES.get(device, _SIZES["cpu"])


def row_bytes(problem: Problem) -> int:
    """Bytes of one row of logits."""
    return round_up(problem.vocab, 64) * accumulator_dtype(problem.dtype).itemsize


def first_tile(
    problem: Problem, strategy: Strategy, group: int, row_block: int | None = None, vocab_tile: int | None = None
) -> tuple[int, int]:
    """(row block, vocab tile) that a strategy begins with, before memory is looked at.

    Args:
        problem: the shape and device.
        strategy: which pass.
        group: how many rows must share a row block.
        row_block, vocab_tile: sizes that were asked for in place of the device's own.
    """
    rows, columns = _most(problem, strategy)
    height = row_block or _even_share(problem.rows, max(rows, 1), _multiple(_ROW_MULTIPLE, problem.device))
    if problem.fusable and strategy is not Strategy.BLOCKS:
        sizes, computed = sizes_of(problem.device), max(min(height, problem.rows), 1)
        width = _whole_waves(problem.vocab, computed, max(columns, sizes.fused_rows * sizes.fused_columns // computed))
    else:
        width = _even_share(problem.vocab, columns, _multiple(_COLUMN_MULTIPLE, problem.device))
    return _align(height, group), min(problem.vocab, vocab_tile or width)


def smaller_tiles(plan: Plan, *, rows: bool, columns: bool) -> list[Plan]:
    """The plan with half the row block and with half the vocab tile, where `rows` and `columns` may be changed and can be."""
    found, device = [], plan.problem.device
    least_rows, least_columns = _multiple(_ROW_MULTIPLE, device), _multiple(_COLUMN_MULTIPLE, device)
    if rows and plan.row_block > max(plan.group, least_rows):
        found.append(replace(plan, row_block=_align(plan.row_block // 2, plan.group)))
    if columns and plan.vocab_tile > least_columns:
        found.append(replace(plan, vocab_tile=round_up(plan.vocab_tile // 2, least_columns)))
    return found


def _most(problem: Problem, strategy: Strategy) -> tuple[int, int]:
    """The most rows and columns that a tile of the strategy begins with."""
    sizes = sizes_of(problem.device)
    if strategy is Strategy.BLOCKS:
        whole = mm_rounded_workspace(problem.vocab, problem.hidden, problem.dtype, problem.device) == 0
        return sizes.block_bytes // row_bytes(problem), problem.vocab if whole else _PRODUCT_COLUMNS
    if strategy is Strategy.RECOMPUTE:
        columns = sizes.fused_columns if problem.fusable else sizes.recompute_columns
        element = problem.dtype if problem.fusable else accumulator_dtype(problem.dtype)
        return sizes.block_bytes // (columns * element.itemsize), columns
    if problem.fusable:
        return sizes.fused_rows, sizes.fused_columns if strategy is Strategy.STREAM else problem.vocab
    return sizes.stream_rows, sizes.stream_columns


def _multiple(table: dict[str, int], device: str) -> int:
    return table.get(device, table["cpu"])


def _even_share(size: int, most: int, multiple: int) -> int:
    """Split `size` into the fewest parts of at most `most`, as even as `multiple` allows, so that no part is a sliver."""
    if size <= most:
        return max(size, 1)
    parts = -(-size // most)
    return min(most, round_up(-(-size // parts), multiple))


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
