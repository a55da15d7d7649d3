"""A loss that is known in the forward: its gradients are formed there, with the logits at hand; the backward scales them.

Where that cannot be (`plan.obstacle`, a budget that is too small, a loss of each row whose upstream only the backward knows),
the backward computes the logits again, unless the caller insists (`LossCall.in_forward`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from frostline.kernels.lm_head import engine, tiles
from frostline.kernels.lm_head.autograd import make_head, needs_of, only_wanted, problem_of, recomputed, scaled_rows
from frostline.kernels.lm_head.first_order import first_order_only
from frostline.kernels.lm_head.head import Gradients, Head, Onto, Statistics, Wants
from frostline.kernels.lm_head.plan import Needs, Plan, Strategy, make_plan
from frostline.kernels.lm_head.transform import Transform


class KnownLoss(Protocol):
    """A loss over the rows that are computed."""

    @property
    def group(self) -> int:
        """How many consecutive rows must be judged together: 1, or the length of a sequence."""

    @property
    def per_row(self) -> bool:
        """Whether it gives a loss of each row, [n], instead of a scalar."""

    @property
    def wants(self) -> Wants:
        """What the loss or its metrics look at."""

    @property
    def entropy_trained(self) -> bool:
        """Whether the loss has a gradient through entropies."""

    def total(self, found: Statistics) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss and its metrics, from the statistics of all rows, [n]."""

    def upstream(self, found: Statistics, rows: slice) -> Onto:
        """What the loss asks of these rows (whole groups); of a loss of each row, what it asks of its own. Asked again in the
        backward, where gradients are put off (`LossCall.in_forward`), of the log-prob and the log-normaliser alone."""


@dataclass(frozen=True)
class LossCall:
    """What one call asks for besides its tensors. `in_forward`: gradients must be formed there; `grad`: autograd's mode."""

    loss: KnownLoss
    transform: Transform
    masked: bool
    gathered_from: int
    prune: bool
    memory_budget: int | None = None
    in_forward: bool = False
    grad: bool = True
    column_weight: Tensor | None = None

    def head(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Head:
        """The head on these tensors."""
        return make_head(hidden, weight, bias, targets, self.transform, self.masked, self.column_weight)

    def plan(self, head: Head, needs: Needs) -> Plan:
        """How the gradients that are needed are formed."""
        loss = self.loss
        problem = problem_of(
            head, needs, self.memory_budget, loss.wants, loss_known=not loss.per_row, entropy=loss.entropy_trained,
            group=loss.group, gathered_from=self.gathered_from, told_again=not self.in_forward,
        )  # fmt: skip
        return make_plan(problem, in_forward=self.in_forward)


def linear_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, call: LossCall
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss of `hidden` [n, H], with gradients for what needs one.

    targets [n] int64 hold `tiles.INACTIVE` where a row does not count. Whole groups fit a row block (`plan.forms_in_forward`).
    """
    loss, *metrics = _LinearLoss.apply(hidden, weight, bias, targets, call)
    return loss, tuple(metrics)


def differentiated(part: Callable[[Tensor, Tensor | None], Tensor], found: Statistics, *, entropy: bool) -> Onto:
    """What `part`, a scalar of log-probs and entropies that autograd can differentiate, asks of them; of the entropies where
    `entropy` says that it is trained through them."""
    with torch.enable_grad():
        logp = found.logp.detach().requires_grad_()
        if found.entropy is None or not entropy:
            return Onto(torch.autograd.grad(part(logp, found.entropy), logp)[0])
        other = found.entropy.detach().requires_grad_()
        return Onto(*torch.autograd.grad(part(logp, other), (logp, other)))


class _LinearLoss(torch.autograd.Function):
    """(hidden, weight, bias, targets, call) -> (loss, *metrics)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, call: LossCall
    ) -> tuple[Tensor, ...]:
        ctx.call, ctx.needs = call, needs_of(ctx, bias, grad=call.grad, prune=call.prune)
        head = call.head(hidden, weight, bias, targets)
        ctx.plan, ctx.empty = call.plan(head, ctx.needs), hidden.shape[0] == 0
        with torch.autocast(hidden.device.type, enabled=False):
            statistics, formed, kept = _form(head, ctx.plan, ctx.needs, call.loss)
            value, metrics = call.loss.total(statistics)
        ctx.late = ctx.plan.strategy is Strategy.RECOMPUTE
        again = (hidden, weight, bias) if ctx.empty or ctx.late or kept is not None else (None,) * 3
        known = (statistics.logp, statistics.reference, statistics.log_total) if ctx.late else (None,) * 3
        # Through save_for_backward: autograd clones what it finds on an attribute when it accumulates it.
        ctx.save_for_backward(*only_wanted(ctx, formed), kept, head.targets, *again, *known)
        ctx.mark_non_differentiable(*metrics)
        return value, *metrics

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        *formed, kept, targets, hidden, weight, bias = ctx.saved_tensors[:8]
        if ctx.empty:
            found = Gradients(*(None if t is None else torch.zeros_like(t) for t in (hidden, weight, bias)))
        elif ctx.late:
            head = ctx.call.head(hidden, weight, bias, targets)
            found = _late(ctx, head, Gradients(*formed), ctx.saved_tensors[8:], grad_loss)
        else:
            head = None if kept is None else ctx.call.head(hidden, weight, bias, targets)
            found = _scaled(ctx.plan, Gradients(*formed), targets, grad_loss, head, kept)
        return (*only_wanted(ctx, found), None, None)


def _form(head: Head, plan: Plan, needs: Needs, loss: KnownLoss) -> tuple[Statistics, Gradients, Tensor | None]:
    """What the forward computes: statistics, the gradients formed in it, and the tiles kept for the weight's."""
    if head.hidden.shape[0] == 0:
        return Statistics.new(head, loss.wants), Gradients(), None
    if plan.strategy is Strategy.BLOCKS:
        return engine.blocks(head, plan, needs, loss.upstream, loss.wants)
    if plan.strategy is Strategy.STREAM or plan.hidden_first:
        statistics, d_hidden = engine.stream(head, plan, loss.upstream, loss.wants)
        return statistics, Gradients(d_hidden), None
    return engine.forward_only(head, plan, loss.wants), Gradients(), None


def _scaled(
    plan: Plan, formed: Gradients, targets: Tensor, factor: Tensor, head: Head | None, kept: Tensor | None
) -> Gradients:
    """Formed gradients times what arrived at the loss, each in a tensor of its own; `kept` tiles multiplied with the hidden
    states first, since these have a copy then, and no more of their size should be alive."""
    d_hidden, d_weight = formed.hidden, formed.weight
    if kept is not None and head is not None:
        with torch.autocast(kept.device.type, enabled=False):
            d_weight = engine.weight_gradient(head, plan, kept, factor)
    elif d_weight is not None:
        d_weight = _times(d_weight, factor)
    if d_hidden is not None and not plan.in_forward:  # unrounded, and the factor may be one of each row
        d_hidden = scaled_rows(d_hidden, factor.expand(d_hidden.shape[0]), targets, plan.problem.dtype)
    elif d_hidden is not None:
        d_hidden = _times(d_hidden, factor)
    return Gradients(d_hidden, d_weight, None if formed.bias is None else formed.bias * factor)


def _times(gradient: Tensor, factor: Tensor) -> Tensor:
    """gradient * factor, a scalar tensor, rounded once. Always multiplied: asking whether the factor is 1 would stall the
    device, and what is kept must stay as it is."""
    result = torch.empty_like(gradient)
    tiles.scaled_rows(gradient, factor.expand(gradient.shape[0]), result)
    return result


def _late(ctx: Any, head: Head, formed: Gradients, known: Sequence[Tensor], factor: Tensor) -> Gradients:
    """The gradients by way of the logits, computed again with what arrived at the loss; not that which was formed first."""
    statistics = Statistics(*known)
    asked = ctx.call.loss.upstream(statistics, slice(0, head.targets.shape[0]))
    onto = asked.map(lambda values: head.only_active(values * factor))
    needs = replace(ctx.needs, hidden=ctx.needs.hidden and formed.hidden is None)
    found = recomputed(head, ctx.plan, needs, statistics, onto)
    return found if formed.hidden is None else replace(found, hidden=_times(formed.hidden, factor))
