"""A loss that is known in the forward: its gradients are formed there, with the logits at hand; the backward scales them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from frostline.kernels.lm_head import engine, tiles
from frostline.kernels.lm_head.engine import Gradients, Statistics
from frostline.kernels.lm_head.first_order import first_order_only
from frostline.kernels.lm_head.logprob import make_head, needs_of, only_wanted, problem_of
from frostline.kernels.lm_head.plan import Strategy, make_plan
from frostline.kernels.lm_head.transform import Transform


class KnownLoss(Protocol):
    """A loss over the rows that are computed."""

    @property
    def group(self) -> int:
        """How many consecutive rows must be judged together: 1, or the length of a sequence."""

    @property
    def entropy(self) -> bool:
        """Whether the loss or its metrics look at entropies."""

    @property
    def entropy_trained(self) -> bool:
        """Whether the loss has a gradient through them."""

    def total(self, logp: Tensor, entropy: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss and its metrics, from the log-probs (and entropies) of all rows, [n]."""

    def part(self, logp: Tensor, entropy: Tensor | None, rows: slice) -> Tensor:
        """The share of the loss that these rows (whole groups) add, a scalar that autograd can differentiate."""


@dataclass(frozen=True)
class LossCall:
    """What one call asks for besides its tensors."""

    loss: KnownLoss
    transform: Transform
    masked: bool
    gathered_from: int
    prune: bool
    memory_budget: int | None = None


def linear_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, call: LossCall
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss of `hidden` [n, H], with gradients for what needs one. To be called with autograd on and something to train.

    targets [n] int64 hold `tiles.INACTIVE` where a row does not count. Whole groups fit a row block (`plan.forms_in_forward`).
    """
    loss, *metrics = _LinearLoss.apply(hidden, weight, bias, targets, call)
    return loss, tuple(metrics)


def _upstream(loss: KnownLoss, logp: Tensor, entropy: Tensor | None, rows: slice) -> tuple[Tensor, Tensor | None]:
    """d loss / d logp and d loss / d entropy (None without one) of a block of rows."""
    with torch.enable_grad():
        leaf = logp.detach().requires_grad_()
        if entropy is None or not loss.entropy_trained:
            return torch.autograd.grad(loss.part(leaf, entropy, rows), leaf)[0], None
        other = entropy.detach().requires_grad_()
        grad_logp, grad_entropy = torch.autograd.grad(loss.part(leaf, other, rows), (leaf, other))
    return grad_logp, grad_entropy


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
        needs = needs_of(ctx, bias, grad=True, prune=call.prune)
        head = make_head(hidden, weight, bias, targets, call.transform, call.masked)
        entropy, loss = call.loss.entropy, call.loss
        problem = problem_of(
            head, needs, call.memory_budget, loss_known=True, entropy=loss.entropy_trained, group=loss.group,
            gathered_from=call.gathered_from,
        )  # fmt: skip
        plan = make_plan(problem, in_forward=True)

        def upstream(logp: Tensor, entropy: Tensor | None, rows: slice) -> tuple[Tensor, Tensor | None]:
            return _upstream(loss, logp, entropy, rows)

        with torch.autocast(hidden.device.type, enabled=False):
            kept = None
            if hidden.shape[0] == 0:
                statistics = Statistics.new(head, entropy=entropy)
                found = Gradients(*(None if t is None else torch.zeros_like(t) for t in (hidden, weight, bias)))
            elif plan.strategy is Strategy.STREAM:
                statistics, d_hidden = engine.stream(head, plan, upstream, entropy=entropy)
                found = Gradients(d_hidden)
            else:
                statistics, found, kept = engine.blocks(head, plan, needs, upstream, entropy=entropy)
            value, metrics = loss.total(statistics.logp, statistics.entropy)
        ctx.plan, ctx.call, formed = plan, call, only_wanted(ctx, found)
        # Through save_for_backward: autograd clones what it finds on an attribute when it accumulates it.
        later = (None,) * 5 if kept is None else (kept, hidden, weight, bias, head.targets)
        ctx.save_for_backward(*formed, *later)
        ctx.mark_non_differentiable(*metrics)
        return value, *metrics

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # Always multiplied: asking whether the factor is 1 would stall the device, and what is kept must stay as it is.
        *formed, kept, hidden, weight, bias, targets = ctx.saved_tensors
        d_hidden, d_weight, d_bias = (None if gradient is None else _scaled(gradient, grad_loss) for gradient in formed)
        if kept is not None:
            head = make_head(hidden, weight, bias, targets, ctx.call.transform, ctx.call.masked)
            with torch.autocast(hidden.device.type, enabled=False):
                found = engine.weight_gradient(head, ctx.plan, kept, grad_loss)
            d_weight = found if ctx.needs_input_grad[1] else None  # an unpruned run computes it, and it ends here
        return d_hidden, d_weight, d_bias, None, None
