"""What a pass over the logits reads, what it finds of each row, and what a loss asks of it: the words of `engine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from frostline.kernels.lm_head import tiles
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.matmul import accumulator_dtype


@dataclass(frozen=True)
class Head:
    """What the pass reads. `targets` hold `tiles.INACTIVE` for rows that do not count.

    hidden [N, H]; weight [V, H] of the same dtype; targets [N] int64; bias [V] or None. All with unit last stride.
    column_weight [V] or None: what a sum over the vocabulary weighs each token with (`Statistics.spread`, `Onto.all`); None: 1.
    """

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    bias: Tensor | None
    transform: Transform
    masked: bool
    column_weight: Tensor | None = None

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
        chosen = self.hidden[rows], self.weight, self.targets[rows]
        return Head(*chosen, self.bias, self.transform, self.masked, self.column_weight)


@dataclass(frozen=True)
class Wants:
    """Which figures of a row are wanted beside its log-prob; meanings in `Statistics`."""

    entropy: bool = False
    spread: bool = False
    best: bool = False


@dataclass(frozen=True)
class Statistics:
    """Per row, [N] fp32 (fp64): log-prob of the target; a reference near the largest logit, and log sum exp(z - reference), so
    that log p = z - reference - log_total loses nothing however far from zero logits are. Where asked for: the entropy;
    `spread`, the sum of w_j (z_j - z_target) over the vocabulary, w its `Head.column_weight`; `best`, the column of the largest
    logit, the first of equals (int64)."""

    logp: Tensor
    reference: Tensor
    log_total: Tensor
    entropy: Tensor | None = None
    spread: Tensor | None = None
    best: Tensor | None = None

    @staticmethod
    def new(head: Head, wants: Wants) -> Statistics:
        """Storage for the rows of `head`, to be filled."""
        count = head.hidden.shape[0]
        logp, reference, log_total = head.empty(3, count)
        entropy, spread = (head.empty(count) if wanted else None for wanted in (wants.entropy, wants.spread))
        return Statistics(
            logp, reference, log_total, entropy, spread, head.empty(count, dtype=torch.int64) if wants.best else None
        )

    @property
    def log_normaliser(self) -> Tensor:
        """log sum exp z over the vocabulary. Without meaning in rows that do not count."""
        return self.reference + self.log_total

    @property
    def miss(self) -> Tensor:
        """1 - p of the target, with all its digits where p is almost 1."""
        return torch.expm1(self.logp).neg_()

    def rows(self, rows: slice | Tensor) -> Statistics:
        """The same of some rows."""
        optional = (None if found is None else found[rows] for found in (self.entropy, self.spread, self.best))
        return Statistics(self.logp[rows], self.reference[rows], self.log_total[rows], *optional)


@dataclass(frozen=True)
class Onto:
    """What a loss passes on to the figures of rows, each [n]: d loss / d of the log-prob, the entropy, the log-normaliser; and
    `all`, the weighted sum of the transformed logits, sum w_j z_j (`Head.column_weight`). With respect to a logit z_j,

        d logp = [j = t] - p_j        d log-normaliser = p_j        d entropy = -p_j (log p_j + entropy)        d all = w_j
    """

    logp: Tensor
    entropy: Tensor | None = None
    log_normaliser: Tensor | None = None
    all: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Onto:
        """Every one of them changed alike."""
        optional = (None if onto is None else change(onto) for onto in (self.entropy, self.log_normaliser, self.all))
        return Onto(change(self.logp), *optional)

    def rows(self, rows: slice | Tensor) -> Onto:
        """The same of some rows."""
        return self.map(lambda values: values[rows])

    def at_target(self, miss: Tensor) -> Tensor:
        """d loss / d z of the target's column through p, without what goes onto all columns; `miss` is 1 - p there."""
        own = self.logp * miss
        return own if self.log_normaliser is None else own + self.log_normaliser * (1.0 - miss)

    @property
    def onto_p(self) -> Tensor:
        """What p_j is multiplied by in d loss / d z_j of the other columns."""
        return -self.logp if self.log_normaliser is None else self.log_normaliser - self.logp


@dataclass(frozen=True)
class OntoLogits:
    """The same as `tiles.gradient_tile` takes it, all [n] and contiguous: tiles read it row by row."""

    at_target: Tensor
    onto_p: Tensor
    entropy: Tensor | None = None
    all: Tensor | None = None

    @staticmethod
    def of(onto: Onto, miss: Tensor) -> OntoLogits:
        """`miss` is 1 - p of the target."""
        optional = (None if given is None else given.contiguous() for given in (onto.entropy, onto.all))
        return OntoLogits(onto.at_target(miss), onto.onto_p, *optional)

    def rows(self, rows: slice) -> OntoLogits:
        """The same of some rows."""
        optional = (None if given is None else given[rows] for given in (self.entropy, self.all))
        return OntoLogits(self.at_target[rows], self.onto_p[rows], *optional)


# What the loss asks of the rows of a slice, from what was found of them: how a known loss enters the pass.
Upstream: TypeAlias = Callable[[Statistics, slice], Onto]


@dataclass(frozen=True)
class Gradients:
    """What was asked for, in the dtypes of the inputs; None for the rest."""

    hidden: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
