"""`linear_logprob`: log-probs of chosen tokens straight from hidden states, with only the gradients that are asked for.

With the head frozen the forward keeps the unit gradient d logp / d hidden, which does not depend on the loss, and the backward
scales it: two products with the weight in all. With the head trained, the backward computes the logits again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor

from frostline.kernels.lm_head import engine
from frostline.kernels.lm_head.autograd import (
    checked_inputs,
    flat,
    make_head,
    needs_of,
    only_wanted,
    problem_of,
    recomputed,
    scaled_rows,
)
from frostline.kernels.lm_head.checks import ActiveRows, check_memory_budget, check_shape
from frostline.kernels.lm_head.first_order import first_order_only
from frostline.kernels.lm_head.head import Gradients, Onto, Statistics, Wants
from frostline.kernels.lm_head.plan import Plan, Strategy, make_plan
from frostline.kernels.lm_head.rows import Rows
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.uncompiled import uncompiled

_NAMES = {"hidden": "hidden", "weight": "weight", "bias": "bias", "targets": "targets"}


@overload
def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    return_entropy: Literal[False] = False,
    entropy_in_loss: bool = True,
    active: Tensor | None = None,
    active_rows: ActiveRows = None,
    memory_budget: int | None = None,
) -> Tensor: ...


@overload
def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    return_entropy: Literal[True],
    entropy_in_loss: bool = True,
    active: Tensor | None = None,
    active_rows: ActiveRows = None,
    memory_budget: int | None = None,
) -> tuple[Tensor, Tensor]: ...


@uncompiled  # the engine drives its own kernels; what is around it compiles
def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    return_entropy: bool = False,
    entropy_in_loss: bool = True,
    active: Tensor | None = None,
    active_rows: ActiveRows = None,
    memory_budget: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probs of `targets` under softmax of the transformed logits of `hidden @ weight.T + bias`.

    Logits and statistics are fp32 (fp64 for fp64 inputs) whatever the inputs are: scaled by `logit_scale`, then
    softcap * tanh(. / softcap), then divided by `temperature`. Differentiable in hidden, weight and bias, each computed only
    when it requires a gradient; nothing of them is computed or allocated under `no_grad` and `inference_mode`.

    Args:
        hidden: [..., H] bf16, fp16, fp32 or fp64.
        weight: [V, H], same dtype (under autocast, any that autocast would cast).
        targets: [...] integers in [0, V). Out of range on a GPU gives NaN (checking would stall it), an error on the CPU.
        bias: [V] or None.
        temperature, softcap, logit_scale: the transform; softcap None for none.
        return_entropy: also return the entropy of each row's distribution, differentiable.
        entropy_in_loss: False expects no gradient through the entropy (it is only logged): with a frozen head it then comes
            with the same two products. A gradient that arrives all the same is right, for two products more.
        active: bool [...], rows that count. The others give exactly 0, get zero gradient, and may hold anything, NaN included.
        active_rows: how many rows are active, where the host knows: then only those are computed, without asking the device. An
            active row beyond a count that is too small gives NaN. "ask" counts them on the device, and waits once for what it
            has to do before. On the CPU the count is read from the mask whatever is given.
        memory_budget: bytes above the inputs that may be used for results and workspaces; None for a small default, never above
            what plain code would need. Less memory takes smaller tiles; what cannot be met runs as lean as it can (`plan`).

    Returns:
        logp, shape of `targets`, fp32 (fp64); with `return_entropy` also the entropy in nats, same shape.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape or device, in one line that names it.
        RuntimeError: a weight whose values are not here (ZeRO-3, FSDP, DTensor).
    """
    transform = Transform.of(temperature, softcap, logit_scale)
    hidden, weight, bias = checked_inputs(hidden, weight, bias, targets, _NAMES)
    check_memory_budget(memory_budget)
    if active is not None:
        check_shape(active, tuple(targets.shape), "active", "that of targets")
    rows = Rows.of(targets.numel(), active, active_rows)
    logp, entropy = logprob_of_rows(
        hidden, weight, bias, targets, rows, transform,
        entropy=return_entropy, entropy_in_loss=entropy_in_loss, memory_budget=memory_budget,
    )  # fmt: skip
    shaped = logp.reshape(targets.shape)
    return shaped if entropy is None else (shaped, entropy.reshape(targets.shape))


def logprob_of_rows(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    rows: Rows,
    transform: Transform,
    *,
    entropy: bool = False,
    entropy_in_loss: bool = True,
    prune: bool = True,
    memory_budget: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (and entropies) of all rows, [rows.count], of checked inputs. `prune=False` makes parameter gradients too."""
    grad = torch.is_grad_enabled()
    chosen = rows.targets(targets, weight.shape[0])
    call = _Call(
        transform, rows.masked, rows.gathered_from, entropy, entropy and entropy_in_loss, grad, prune, memory_budget
    )  # fmt: skip
    logp, found = _LinearLogProb.apply(flat(hidden, rows), weight, bias, chosen, call)
    return rows.put(logp), rows.put(found) if entropy else None


@dataclass(frozen=True)
class _Call:
    """What one call asks for besides its tensors."""

    transform: Transform
    masked: bool
    gathered_from: int
    entropy: bool
    entropy_in_loss: bool
    grad: bool
    prune: bool
    memory_budget: int | None


class _LinearLogProb(torch.autograd.Function):
    """(hidden [n, H], weight [V, H], bias [V] or None, targets [n], call) -> (logp [n], entropy [n] or None)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, call: _Call
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        needs = needs_of(ctx, bias, grad=call.grad, prune=call.prune)
        head = make_head(hidden, weight, bias, targets, call.transform, call.masked)
        wants = Wants(entropy=call.entropy)
        plan = make_plan(
            problem_of(head, needs, call.memory_budget, wants, entropy=call.entropy_in_loss, gathered_from=call.gathered_from)
        )
        ctx.call, ctx.plan, ctx.needs = call, plan, needs
        with torch.autocast(hidden.device.type, enabled=False):
            if plan.strategy is Strategy.STREAM:
                statistics, unit = engine.stream(head, plan, None, wants)
            else:
                statistics, unit = engine.forward_only(head, plan, wants), None
        if plan.strategy is Strategy.STREAM and not call.entropy:
            ctx.save_for_backward(unit, head.targets, *[None] * 7)
        elif needs.any:
            again = hidden, weight, bias, statistics.logp, statistics.reference, statistics.log_total, statistics.entropy
            ctx.save_for_backward(unit, head.targets, *again)
        # Of its own memory: what is kept for the backward must not change when a caller scales the log-probs in place.
        return statistics.logp.clone(), None if statistics.entropy is None else statistics.entropy.clone()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_logp is None and grad_entropy is None:
            return None, None, None, None, None
        unit, targets, *again = ctx.saved_tensors  # unpacked once: under activation checkpointing a second time is an error
        if unit is None:
            found = _recomputed(ctx, ctx.plan, targets, again, grad_logp, grad_entropy)
            return (*only_wanted(ctx, found), None, None)
        d_hidden = scaled_rows(unit, grad_logp, targets, ctx.plan.problem.dtype)
        if grad_entropy is not None:  # nobody expected it: two products more
            late = make_plan(replace(ctx.plan.problem, entropy=True))
            through_entropy = _recomputed(ctx, late, targets, again, None, grad_entropy).hidden
            d_hidden = d_hidden if through_entropy is None else d_hidden.add_(through_entropy)
        return d_hidden, None, None, None, None


def _recomputed(
    ctx: Any, plan: Plan, targets: Tensor, again: Sequence[Tensor], grad_logp: Tensor | None, grad_entropy: Tensor | None
) -> Gradients:
    """The gradients by way of the logits, computed again."""
    hidden, weight, bias, *statistics = again
    known = Statistics(*statistics)
    head = make_head(hidden, weight, bias, targets, ctx.call.transform, ctx.call.masked)
    upstream = head.only_active(torch.zeros_like(known.logp) if grad_logp is None else grad_logp)
    return recomputed(head, plan, ctx.needs, known, Onto(upstream, grad_entropy))
