"""What a plan will allocate: bytes above the inputs at the fullest moment, read off the allocations of `engine`.

An upper bound, close enough to plan by: the tests hold it against what the engine allocates on tensors that hold no data.
"""

from __future__ import annotations

from frostline.kernels.lm_head import output_tiles
from frostline.kernels.lm_head.problem import Plan, Strategy, round_up
from frostline.kernels.matmul import accumulator_dtype, mm_rounded_workspace, slab_workspace

# fp32 values, rounded up: of every row its statistics and, of a known loss (True), coefficients and their temporaries; of a
# block's rows what runs while its tiles pass.
_VALUES_PER_ROW = {True: 32, False: 8}
_VALUES_PER_BLOCK_ROW = 12


def predicted_peak(plan: Plan) -> int:
    """Peak above the inputs, in bytes: what each phase holds at once."""
    problem, needs = plan.problem, plan.problem.needs
    wide, narrow = accumulator_dtype(problem.dtype).itemsize, problem.dtype.itemsize
    tile = plan.tile_dtype.itemsize
    rows, block = problem.rows, min(plan.row_block, problem.rows)
    per_row = (_VALUES_PER_ROW[problem.loss_known] * rows + _VALUES_PER_BLOCK_ROW * block) * wide
    columns = problem.vocab if plan.strategy is Strategy.BLOCKS else plan.vocab_tile
    slab = slab_workspace((block + columns) * problem.hidden, problem.dtype, problem.device)
    hidden_gradient = needs.hidden * rows * problem.hidden * narrow
    clean_hidden = (problem.masked and needs.weight) * rows * problem.hidden * narrow
    logits_tile = block * round_up(plan.vocab_tile, 64) * wide
    if plan.fused:
        partials = output_tiles.workspace_size(block, plan.vocab_tile) * wide
        logits_tile = 0 if plan.strategy is Strategy.RECOMPUTE else partials
    gradient_tile = 0 if plan.in_place else block * round_up(plan.vocab_tile, 64) * tile
    row_accumulator = block * problem.hidden * wide
    weight_gradient = needs.weight * problem.vocab * problem.hidden * narrow

    if plan.strategy is Strategy.FORWARD:
        return per_row + logits_tile + slab
    if plan.strategy is Strategy.STREAM:
        kept = hidden_gradient if problem.loss_known else needs.hidden * rows * problem.hidden * wide
        forward = kept + logits_tile + gradient_tile + (row_accumulator if problem.loss_known else 0) + slab
        return per_row + max(forward, kept + hidden_gradient)  # backward: the kept gradient and its scaled copy
    if plan.strategy is Strategy.RECOMPUTE:
        summed = needs.hidden * rows * problem.hidden * wide
        one_block = block >= rows
        product = _product_workspace(plan)
        weight_tile = needs.weight * (product if one_block else plan.vocab_tile * problem.hidden * wide)
        work = logits_tile + gradient_tile + weight_tile + slab
        rounded = 0 if narrow == wide else hidden_gradient
        return per_row + clean_hidden + weight_gradient + summed + max(work, rounded)
    return per_row + clean_hidden + hidden_gradient + _blocks_peak(plan, block, weight_gradient, row_accumulator) + slab


def _product_workspace(plan: Plan) -> int:
    """Bytes beside a slice of d weight while it is made; the last slice is narrower, and may go another way."""
    problem = plan.problem
    widths = (plan.vocab_tile, problem.vocab % plan.vocab_tile)
    return max(mm_rounded_workspace(width, problem.hidden, problem.dtype, problem.device) for width in widths)


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
        product = _product_workspace(plan)
        return bias + max(walk, scaled_hidden + kept + weight_gradient + product)
    accumulator = problem.needs.weight * problem.vocab * problem.hidden * wide
    rounded = weight_gradient if problem.dtype.itemsize < wide else 0
    return bias + max(
        accumulator + logits + gradient + row_accumulator, accumulator + rounded, scaled_hidden + 2 * weight_gradient
    )
