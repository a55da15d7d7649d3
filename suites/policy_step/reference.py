"""The step in float64, and what plain torch gets wrong in the dtype of the case: both by blocks of rows, so that any size fits.

The yardstick is eager code's arithmetic: each block's logits, softmax and products in the dtype of the case, rounded as eager
code rounds them. Only the sums over blocks are kept wider.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import linear

from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.plain import Question, Stop, loss_of, wide

_ROWS = 512  # a float64 block of 512 x 151,936 logits takes 0.6 GiB


@dataclass(frozen=True)
class _LogProbs:
    """[B, T] each; the reference model's None where there is none."""

    policy: Tensor
    reference: Tensor | None


class Reference:
    """The right outputs of a step, and the yardstick for those of its implementations.

    Args:
        batch: the step's.
        question: its loss.
        upstream: [B, T] in place of a loss of the family: the log-probs' sum weighted by it.
    """

    def __init__(self, batch: Batch, question: Question, upstream: Tensor | None = None) -> None:
        self.batch, self.question, self.upstream = batch, question, upstream

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        """Every output in float64: log-probs (0 where the mask is), the loss, and the gradients of the leaves."""
        return self._outputs(self._exact, torch.float64)

    def yardstick(self) -> dict[str, Tensor]:
        """What plain torch gives in the dtype of the case.

        A scalar may be right by luck, so the loss stands here with the errors of its tokens added up without cancelling.
        """
        dtype = self.batch.hidden.dtype
        found = self._log_probs(dtype)
        return self._outputs(found, dtype) | {"loss": self.outputs["loss"] + self._slack(found)}

    def d_logits(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """The loss' gradient with respect to the logits, made of products in `dtype`, by blocks: (rows, [rows, V])."""
        found = self._exact if dtype == torch.float64 else self._log_probs(dtype)
        hidden, weight = self.batch.hidden.detach().flatten(0, 1).to(dtype), self.batch.weight.detach().to(dtype)
        return self._d_logits(hidden, weight, self._differentiated(found)[1])

    @cached_property
    def _exact(self) -> _LogProbs:
        return self._log_probs(torch.float64)

    def _outputs(self, log_probs: _LogProbs, dtype: torch.dtype) -> dict[str, Tensor]:
        loss, upstream = self._differentiated(log_probs)
        return {"logp": log_probs.policy * self.batch.mask, "loss": loss, **self._gradients(upstream, dtype)}

    def _differentiated(self, log_probs: _LogProbs) -> tuple[Tensor, Tensor]:
        """The loss and its gradient with respect to the policy's log-probs."""
        leaf = log_probs.policy.detach().requires_grad_()
        loss = self._loss(leaf, log_probs.reference)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    def _loss(self, logp: Tensor, reference: Tensor | None, stop: Stop = torch.Tensor.detach) -> Tensor:
        if self.upstream is not None:
            return (logp * self.upstream).sum()
        return loss_of(logp, reference, self.batch, self.question, stop=stop)

    def _slack(self, found: _LogProbs) -> Tensor:
        """How far the loss may be off when every token's error counts: sum |d loss / d logp| |error|, to first order."""
        exact = self._exact
        leaves = [exact.policy.detach().requires_grad_()]
        pairs = [(found.policy, exact.policy)]
        if found.reference is not None and exact.reference is not None:
            leaves.append(exact.reference.detach().requires_grad_())
            pairs.append((found.reference, exact.reference))
        loss = self._loss(leaves[0], leaves[-1] if len(leaves) > 1 else None, stop=lambda value: value)
        slopes = torch.autograd.grad(loss, leaves)
        parts = [(slope * (ours - right)).abs().sum() for slope, (ours, right) in zip(slopes, pairs, strict=True)]
        return torch.stack(parts).sum()

    def _log_probs(self, dtype: torch.dtype) -> _LogProbs:
        batch, reference = self.batch, self.batch.ref_logps
        if batch.ref_hidden is not None and batch.ref_weight is not None:
            reference = self._selected(batch.ref_hidden, batch.ref_weight, None, dtype)
        if reference is not None:
            reference = reference.double()
        return _LogProbs(self._selected(batch.hidden, batch.weight, batch.bias, dtype), reference)

    def _selected(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        blocks = self._log_softmax(hidden.detach().flatten(0, 1), weight.detach(), bias, dtype)
        flat = torch.cat([log_p.gather(1, self._targets(rows)).squeeze(1) for rows, log_p in blocks])
        return flat.view_as(self.batch.targets)

    def _gradients(self, upstream: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """The products that autograd makes of d loss / d logits, by blocks."""
        batch = self.batch
        hidden, weight = batch.hidden.detach().flatten(0, 1).to(dtype), batch.weight.detach().to(dtype)  # [N, H], [V, H]
        sums = torch.promote_types(dtype, torch.float32)
        found = {name: torch.zeros_like(leaf, dtype=sums) for name, leaf in batch.leaves.items()}
        for rows, wide_d_logits in self._d_logits(hidden, weight, upstream):
            d_logits = wide_d_logits.to(dtype)
            found["d_hidden"].view_as(hidden)[rows] = (d_logits @ weight).to(sums)
            if "d_weight" in found and dtype == sums:
                found["d_weight"].addmm_(d_logits.t(), hidden[rows])
            elif "d_weight" in found:
                found["d_weight"] += d_logits.t() @ hidden[rows]
            if "d_bias" in found:
                found["d_bias"] += d_logits.sum(0)
        return {name: value.to(dtype) for name, value in found.items()}

    def _d_logits(self, hidden: Tensor, weight: Tensor, upstream: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """d loss / d logits = upstream (1[target] - softmax), in fp32 at least, by blocks of rows of `hidden` [N, H]."""
        for rows, log_p in self._log_softmax(hidden, weight, self.batch.bias, hidden.dtype):
            d_logits = log_p.exp_().neg_()
            d_logits.scatter_add_(1, self._targets(rows), torch.ones_like(d_logits[:, :1]))
            d_logits *= upstream.flatten()[rows].unsqueeze(1)
            yield rows, d_logits

    def _targets(self, rows: slice) -> Tensor:
        return self.batch.targets.flatten()[rows].unsqueeze(1)

    def _log_softmax(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Iterator[tuple[slice, Tensor]]:
        """The log-softmax of all logits of `hidden` [N, H], a block of rows at a time: (rows, [rows, V])."""
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        offset = None if bias is None else bias.detach().to(dtype)
        for first in range(0, hidden.shape[0], _ROWS):
            rows = slice(first, first + _ROWS)
            yield rows, wide(linear(hidden[rows], weight, offset)).log_softmax(1)
