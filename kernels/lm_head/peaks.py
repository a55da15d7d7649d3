"""What a plan will allocate: bytes above the inputs at the fullest moment, read off what `engine` and its callers do.

Every tensor of the size of a tile, of the hidden states or of the weight is in it, to the byte on CUDA: the tests hold it
against the tracked peak of the same step on tensors without data. What is left are upper bounds: of what takes a few values
a row or a value for each token of the vocabulary (a trained bias), and on a CPU of the slabs in which operands are widened.
"""

from __future__ import annotations

from dataclasses import dataclass

from frostline.kernels.lm_head import output_tiles
from frostline.kernels.lm_head.problem import Plan, Strategy, round_up
from frostline.kernels.matmul import accumulator_dtype, mm_rounded_workspace, slab_workspace

# fp32 values, rounded up: of every row its statistics and, of a known loss (True), coefficients and their temporaries; of a
# block's rows what runs while its tiles pass.
_VALUES_PER_ROW = {True: 32, False: 8}
_VALUES_PER_BLOCK_ROW = 12


def predicted_peak(plan: Plan) -> int:
    """Peak above the inputs, in bytes: that of the fullest phase, and what all rows may take."""
    return row_allowance(plan) + max(_PHASES[plan.strategy](_Sizes.of(plan)))


def row_allowance(plan: Plan) -> int:
    """The most that is kept of single rows, in bytes: their statistics, and coefficients of the loss."""
    problem = plan.problem
    of_all, of_block = _VALUES_PER_ROW[problem.loss_known], _VALUES_PER_BLOCK_ROW
    values = of_all * problem.whole_rows + of_block * min(plan.row_block, problem.rows)
    return values * accumulator_dtype(problem.dtype).itemsize


@dataclass(frozen=True)
class _Sizes:
    """Bytes of what a step allocates; 0 where it does not.

    gathered: the computed rows of the hidden states, where those are gathered. clean: the hidden states with zeros in rows that
    do not count. d_hidden, d_weight, d_bias: the gradients that are returned. spread: the hidden gradient of all rows, where
    those that are computed were gathered. tile: of gradients or probabilities, where it is not over the logits. wide_hidden,
    wide_block: the hidden gradient of all rows, and of a block, in the accumulator's dtype. slab: widened operands.
    """

    plan: Plan
    gathered: int
    clean: int
    d_hidden: int
    d_weight: int
    d_bias: int
    spread: int
    tile: int
    wide_hidden: int
    wide_block: int
    slab: int

    @staticmethod
    def of(plan: Plan) -> _Sizes:
        problem, needs = plan.problem, plan.problem.needs
        wide, narrow, width = accumulator_dtype(problem.dtype).itemsize, problem.dtype.itemsize, problem.hidden
        block = min(plan.row_block, problem.rows)
        columns = problem.vocab if plan.strategy is Strategy.BLOCKS else plan.vocab_tile
        return _Sizes(
            plan=plan,
            gathered=bool(problem.gathered_from) * problem.rows * width * narrow,
            clean=(problem.masked and needs.weight) * problem.rows * width * narrow,
            d_hidden=needs.hidden * problem.rows * width * narrow,
            d_weight=needs.weight * problem.vocab * width * narrow,
            d_bias=needs.bias * problem.vocab * narrow,
            spread=needs.hidden * problem.gathered_from * width * narrow,
            tile=0 if plan.in_place else block * round_up(plan.vocab_tile, 64) * plan.tile_dtype.itemsize,
            wide_hidden=needs.hidden * problem.rows * width * wide,
            wide_block=needs.hidden * block * width * wide,
            slab=slab_workspace((block + columns) * width, problem.dtype, problem.device),
        )

    @property
    def wide(self) -> int:
        """Bytes of a value of the accumulator's dtype."""
        return accumulator_dtype(self.plan.problem.dtype).itemsize

    @property
    def block(self) -> int:
        """Rows of a block."""
        return min(self.plan.row_block, self.plan.problem.rows)

    def statistics_tile(self) -> int:
        """What a tile's statistics are made from: its logits, or what a fused product leaves of them."""
        if self.plan.fused:
            best = self.plan.problem.best
            return output_tiles.workspace_size(self.block, self.plan.vocab_tile, best=best) * self.wide
        return self.block * round_up(self.plan.vocab_tile, 64) * self.wide

    def spreading(self) -> int:
        """The backward of the gather: the gradient of the computed rows, written into zeros for all of them."""
        return self.spread and self.spread + self.d_hidden + self.d_weight + self.d_bias


def _forward(sizes: _Sizes) -> list[int]:
    return [sizes.gathered + sizes.statistics_tile() + sizes.slab]


def _stream(sizes: _Sizes) -> list[int]:
    """The pass, with what it keeps; its backward, with the kept gradient and its scaled copy; the gather's backward."""
    formed = sizes.plan.in_forward
    kept = sizes.d_hidden if formed else sizes.wide_hidden
    return [_streaming(sizes, kept, formed), kept + sizes.d_hidden, sizes.spreading()]


def _streaming(sizes: _Sizes, kept: int, rounded: bool) -> int:
    """The pass of `engine.stream`, beside the hidden gradient that it makes."""
    return sizes.gathered + kept + sizes.statistics_tile() + sizes.tile + rounded * sizes.wide_block + sizes.slab


def _recompute(sizes: _Sizes) -> list[int]:
    """The first pass, where it forms the hidden gradient; the second; what its end rounds or scales; the gather's backward."""
    plan, problem = sizes.plan, sizes.plan.problem
    logits = 0 if plan.fused else sizes.statistics_tile()
    one_block, tile = sizes.block >= problem.rows, plan.vocab_tile * problem.hidden * sizes.wide
    weight_tile = problem.needs.weight * (_product_workspace(plan) if one_block else tile)
    bias = problem.needs.bias * (problem.vocab + 2 * plan.vocab_tile) * sizes.wide
    clean = sizes.clean if one_block else sizes.clean * sizes.block // max(problem.rows, 1)
    common = sizes.gathered + sizes.d_weight + bias
    rounding = common + sizes.d_bias  # which is summed in the accumulator's dtype, as d hidden is
    work = logits + sizes.tile + weight_tile + clean + sizes.slab
    if plan.hidden_first:
        first = _streaming(sizes, sizes.d_hidden, rounded=True)
        return [first, common + sizes.d_hidden + work, rounding + 2 * sizes.d_hidden, sizes.spreading()]
    rounded = sizes.d_hidden if problem.dtype.itemsize < sizes.wide else 0
    return [common + sizes.wide_hidden + work, rounding + sizes.wide_hidden + rounded, sizes.spreading()]


def _blocks(sizes: _Sizes) -> list[int]:
    """The walk over row blocks; what its end rounds; the backward; the gather's backward."""
    plan, problem = sizes.plan, sizes.plan.problem
    logits = sizes.block * plan.padded_vocab * sizes.wide
    partials = output_tiles.workspace_size(sizes.block, problem.vocab, best=problem.best) * sizes.wide if plan.fused else 0
    bias = problem.needs.bias * 2 * problem.vocab * sizes.wide
    walk = sizes.gathered + sizes.d_hidden + partials + sizes.wide_block + bias + sizes.slab
    if plan.keep_tiles:
        kept = problem.rows * plan.padded_vocab * plan.tile_dtype.itemsize
        product = _product_workspace(plan) + slab_workspace(problem.rows * problem.hidden, problem.dtype, problem.device)
        later = sizes.gathered + sizes.d_hidden + kept + sizes.d_weight + sizes.d_bias
        late = max(sizes.clean + product, sizes.d_hidden + sizes.d_bias)
        return [walk + kept + (0 if plan.in_place else logits), later + late, sizes.spreading()]
    gradient = 0 if plan.in_place else sizes.block * plan.padded_vocab * plan.tile_dtype.itemsize
    accumulator = problem.needs.weight * problem.vocab * problem.hidden * sizes.wide
    rounded = sizes.d_weight if problem.dtype.itemsize < sizes.wide else 0
    end = sizes.gathered + sizes.clean + sizes.d_hidden + accumulator + rounded + bias
    scaled = 2 * (sizes.d_hidden + sizes.d_weight + sizes.d_bias)
    return [walk + sizes.clean + accumulator + logits + gradient, end, scaled, sizes.spreading()]


_PHASES = {Strategy.FORWARD: _forward, Strategy.STREAM: _stream, Strategy.RECOMPUTE: _recompute, Strategy.BLOCKS: _blocks}


def _product_workspace(plan: Plan) -> int:
    """Bytes beside a slice of d weight while it is made; the last slice is narrower, and may go another way."""
    problem = plan.problem
    widths = (plan.vocab_tile, problem.vocab % plan.vocab_tile)
    return max(mm_rounded_workspace(width, problem.hidden, problem.dtype, problem.device) for width in widths)
