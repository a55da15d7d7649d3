"""A loss that is known in the forward: its gradients are formed there, with the logits at hand; the backward scales them.

Where that cannot be (`plan.obstacle`, a budget that is too small, a loss of each row whose upstream only the backward knows),
the backward computes the logits again, unless the caller insists (`LossCall.in_forward`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
        """What the loss asks of these rows (whole groups); of a loss of each row, what it asks of its own."""


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
            group=loss.group, gathered_from=self.gathered_from,
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


def _scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    """gradient * factor, a scalar tensor, rounded once, in a tensor of its own."""
    if gradient.ndim < 2 or not gradient.numel():
        return gradient * factor
    result = torch.empty_like(gradient)
    tiles.scaled_rows(gradient, factor.expand(gradient.shape[0]), result)
    return result


class _LinearLoss(torch.autograd.Function):
    """(hidden, weight, bias, targets, call) -> (loss, *metrics)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, call: LossCall
    ) -> tuple[Tensor, ...]:
        ctx.call, ctx.needs = call, needs_of(ctx, bias, grad=call.grad, prune=call.prune)
        head, loss, found, kept = call.head(hidden, weight, bias, targets), call.loss, Gradients(), None
        ctx.plan = plan = call.plan(head, ctx.needs)
        with torch.autocast(hidden.device.type, enabled=False):
            if hidden.shape[0] == 0:
                statistics = Statistics.new(head, loss.wants)
                found = Gradients(*(None if t is None else torch.zeros_like(t) for t in (hidden, weight, bias)))
            elif plan.strategy is Strategy.STREAM:
                statistics, d_hidden = engine.stream(head, plan, loss.upstream, loss.wants)
                found = Gradients(d_hidden)
            elif plan.strategy is Strategy.BLOCKS:
                statistics, found, kept = engine.blocks(head, plan, ctx.needs, loss.upstream, loss.wants)
            else:
                statistics = engine.forward_only(head, plan, loss.wants)
            value, metrics = loss.total(statistics)
        ctx.late = hidden.shape[0] > 0 and plan.strategy is Strategy.RECOMPUTE
        again = (hidden, weight, bias) if ctx.late or kept is not None else (None,) * 3
        known = (statistics.logp, statistics.reference, statistics.log_total, statistics.spread) if ctx.late else (None,) * 4
        # Through save_for_backward: autograd clones what it finds on an attribute when it accumulates it.
        ctx.save_for_backward(*only_wanted(ctx, found), kept, head.targets, *again, *known)
        ctx.mark_non_differentiable(*metrics)
        return value, *metrics

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # Always multiplied: asking whether the factor is 1 would stall the device, and what is kept must stay as it is.
        d_hidden, d_weight, d_bias, kept, targets, hidden, weight, bias, *known = ctx.saved_tensors
        if ctx.late:
            head = ctx.call.head(hidden, weight, bias, targets)
            return (*only_wanted(ctx, _late(ctx, head, known, grad_loss)), None, None)
        if d_hidden is not None and not ctx.plan.in_forward:  # unrounded, of each row
            scale = grad_loss.expand(d_hidden.shape[0])
            return scaled_rows(d_hidden, scale, targets, ctx.plan.problem.dtype), None, None, None, None
        if kept is not None:
            head = ctx.call.head(hidden, weight, bias, targets)
            with torch.autocast(hidden.device.type, enabled=False):
                found = engine.weight_gradient(head, ctx.plan, kept, grad_loss)
            d_weight = found if ctx.needs_input_grad[1] else None  # an unpruned run computes it, and it ends here
        elif d_weight is not None:
            d_weight = _scaled(d_weight, grad_loss)
        # After the weight's gradient, beside which the hidden states have a copy with zeros in rows that do not count.
        d_hidden, d_bias = (None if formed is None else _scaled(formed, grad_loss) for formed in (d_hidden, d_bias))
        return d_hidden, d_weight, d_bias, None, None


def _late(ctx: Any, head: Head, known: list[Tensor], grad_loss: Tensor) -> Gradients:
    """The gradients by way of the logits, computed again with what arrived at the loss."""
    logp, reference, log_total, spread = known
    statistics = Statistics(logp, reference, log_total, spread=spread)
    asked = ctx.call.loss.upstream(statistics, slice(0, logp.shape[0]))
    onto = asked.map(lambda values: head.only_active(values * grad_loss))
    return recomputed(head, ctx.plan, ctx.needs, statistics, onto)
