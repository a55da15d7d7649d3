"""The floor under a step: its matrix products alone, by plain `torch.mm` into tensors that are there already.

No head that computes the step can do with fewer products, so its time over theirs is what everything else costs. What they
multiply is the step's own: the gradient of the logits is made in advance, with the values of this batch, since the power that
a product draws (and with it a GPU's clock) depends on them. Only rows that count are multiplied.

| head | loss | products |
|---|---|---|
| frozen | known or not | 2: logits; d hidden |
| trainable | known | 3: logits; d hidden; d weight |
| trainable | not known | 4: the logits once more, in the backward |

A reference model's head is one product more. The products of the exact gradient, rounded to the dtype of the case, are also
how accurate one product for each gradient can be: the outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.reference import Reference


class Floor:
    """The products of a step on a batch.

    Args:
        batch: the step's; tokens that do not count stand at the end of each completion.
        reference: of the same step; the gradient of the logits comes from there.
        again: whether the logits are computed twice.
    """

    def __init__(self, batch: Batch, reference: Reference, *, again: bool) -> None:
        self.batch, self.reference, self.again = batch, reference, again
        self.hidden, self.weight = self._counted(batch.hidden), batch.weight.detach()
        self.ref_hidden = None if batch.ref_hidden is None else self._counted(batch.ref_hidden)
        size = (batch.active, self.weight.shape[0])
        self.logits, self.d_logits = (self.hidden.new_empty(size) for _ in range(2))
        self.d_hidden = torch.empty_like(self.hidden)
        self.d_weight = torch.empty_like(self.weight) if batch.weight.requires_grad else None
        self._fill(self.hidden.dtype)

    def run(self) -> None:
        """All products of a step."""
        torch.mm(self.hidden, self.weight.t(), out=self.logits)
        if self.ref_hidden is not None and self.batch.ref_weight is not None:
            torch.mm(self.ref_hidden, self.batch.ref_weight.t(), out=self.logits)
        if self.again:
            torch.mm(self.hidden, self.weight.t(), out=self.logits)
        torch.mm(self.d_logits, self.weight, out=self.d_hidden)
        if self.d_weight is not None:
            torch.mm(self.d_logits.t(), self.hidden, out=self.d_weight)

    def outputs(self) -> dict[str, Tensor]:
        """The gradients of the leaves, from the exact gradient of the logits."""
        self._fill(torch.float64)
        self.run()
        d_hidden = torch.zeros_like(self.batch.hidden)
        self._first(d_hidden).copy_(self.d_hidden.view_as(self._first(d_hidden)))
        return {"d_hidden": d_hidden} | ({} if self.d_weight is None else {"d_weight": self.d_weight})

    def _fill(self, dtype: torch.dtype) -> None:
        """Make the gradient of the logits, out of products in `dtype`; fake tensors have no values to make."""
        if isinstance(self.hidden, FakeTensor):
            return
        counts, filled = self.batch.mask.flatten() != 0, 0
        for rows, block in self.reference.d_logits(dtype):
            chosen = block[counts[rows]]
            self.d_logits[filled : filled + len(chosen)] = chosen
            filled += len(chosen)

    def _counted(self, hidden: Tensor) -> Tensor:
        """The rows of `hidden` [B, T, H] that count, [active, H]."""
        return self._first(hidden.detach()).flatten(0, 1).contiguous()

    def _first(self, hidden: Tensor) -> Tensor:
        """The part of `hidden` [B, T, H] that counts: as many tokens of every completion, from its start."""
        return hidden[:, : self.batch.active // hidden.shape[0]]
