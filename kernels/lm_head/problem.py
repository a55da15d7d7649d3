"""A problem and its plan, as data: what is asked of the head, and which pass over the logits answers it.

`plan` chooses, `sizes` gives tiles, `peaks` predicts bytes. Nothing here computes on tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from frostline.kernels.matmul import accumulator_dtype

NEGLIGIBLE_BYTES = 1 << 24
"""Below this a plan is not asked to be leaner than the unfused path: workspaces that do not shrink with the rows are larger."""


class Strategy(StrEnum):
    """How the logits are walked; the table in `plan` says when, and for how many products with the weight."""

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
    """What a plan is a function of.

    Attributes:
        rows: rows (tokens) that are computed. hidden, vocab: H and V of the weight [V, H].
        dtype: of hidden states and weight.
        needs: which gradients are wanted.
        loss_known: the loss is given with the log-probs, so that its gradients can be formed while the logits are at hand.
        loss_told_again: and it can tell the backward again what it asks, so that they need not all be formed then.
        entropy: a gradient goes through entropies.
        spread: a sum of logits over the vocabulary is wanted (`head.Statistics.spread`), which needs logits in memory.
        best: the best column of a row is wanted.
        group: how many consecutive rows the loss judges together, 1 or the length of a completion.
        masked: some rows may not count.
        gathered_from: of how many rows those that are computed are gathered, in memory of their own; 0 where they are not.
        device: kind of device whose branches are taken, "cuda" or "cpu".
        fusable: the device makes a tile in the epilogue of its product (`fused.fusable`).
        memory_budget: bytes above the inputs that may be used; None: `unfused_bytes`.
    """

    rows: int
    hidden: int
    vocab: int
    dtype: torch.dtype
    needs: Needs = Needs()
    loss_known: bool = False
    loss_told_again: bool = False
    entropy: bool = False
    spread: bool = False
    best: bool = False
    group: int = 1
    masked: bool = False
    gathered_from: int = 0
    device: str = "cpu"
    fusable: bool = False
    memory_budget: int | None = None

    @property
    def through_p_alone(self) -> bool:
        """Whether a row's gradient is a multiple of its softmax, but for the target's column."""
        return not self.entropy and not self.spread

    @property
    def whole_rows(self) -> int:
        """Rows that there are, computed or not."""
        return max(self.rows, self.gathered_from)

    @property
    def unfused_bytes(self) -> int:
        """Peak above the inputs of plain code, which computes all rows: logits, an fp32 copy, log-softmax and its gradient, and
        what is returned."""
        wide, narrow = accumulator_dtype(self.dtype).itemsize, self.dtype.itemsize
        copies = (2 * wide + 2 * narrow) if self.needs.any else (wide + narrow)
        return self.whole_rows * self.vocab * copies + self.gradient_bytes

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that are returned."""
        needs, size = self.needs, self.dtype.itemsize
        return size * (
            needs.hidden * self.whole_rows * self.hidden + needs.weight * self.vocab * self.hidden + needs.bias * self.vocab
        )

    @property
    def memory_limit(self) -> int:
        """Bytes that a plan should stay within: the budget, or without one what the unfused path would need."""
        return max(self.unfused_bytes, NEGLIGIBLE_BYTES) if self.memory_budget is None else self.memory_budget


@dataclass(frozen=True)
class Plan:
    """What will run.

    Attributes:
        row_block, vocab_tile: the shape of a tile. BLOCKS holds all logits of its rows, and tiles only its product d weight.
        tile_dtype: dtype of probabilities and gradient tiles; the accumulator's own means that they overwrite the logits.
        in_forward: the loss's own gradients are formed in the forward. Otherwise the loss stands on log-probs.
        keep_tiles: BLOCKS keeps every gradient tile for one product d weight in the backward, instead of an fp32 accumulator.
        hidden_first: RECOMPUTE forms the hidden gradient in the forward, as STREAM does, and only the others in the backward:
            as many products, and no sum of that gradient beside the weight's.
        peak_bytes: predicted peak above the inputs, forward and backward, results included.
    """

    strategy: Strategy
    problem: Problem
    row_block: int
    vocab_tile: int
    tile_dtype: torch.dtype
    in_forward: bool = False
    keep_tiles: bool = False
    hidden_first: bool = False
    peak_bytes: int = 0

    @property
    def products(self) -> int:
        """Products with the weight, or of its size, forward and backward: what sets the time of a head that is large."""
        needs = self.problem.needs
        if self.strategy is Strategy.FORWARD:
            return 1
        if self.strategy is Strategy.STREAM:
            return 2
        logits = 1 if self.strategy is Strategy.BLOCKS else 2
        return logits + needs.hidden + needs.weight

    @property
    def flops(self) -> int:
        """2 N H V for each product; elementwise work is not counted, as torch's counter does not."""
        return self.products * 2 * self.problem.rows * self.problem.hidden * self.problem.vocab

    @property
    def fits(self) -> bool:
        """Whether the prediction is within the budget (`Problem.memory_limit`). Where nothing fits, a plan is the leanest."""
        return self.peak_bytes <= self.problem.memory_limit

    @property
    def group(self) -> int:
        """How many rows must share a row block."""
        return self.problem.group if self.in_forward else 1

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
        return round_up(self.problem.vocab, 64)


def round_up(size: int, multiple: int) -> int:
    """The multiple at or above `size`."""
    return -(-size // multiple) * multiple
