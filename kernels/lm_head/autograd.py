"""What the head's autograd functions share: their inputs made ready, the plan's view of a call, gradients on their way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from frostline.kernels.lm_head import engine, tiles
from frostline.kernels.lm_head.checks import check_head, check_tensors, is_readable
from frostline.kernels.lm_head.fused import fusable
from frostline.kernels.lm_head.head import Gradients, Head, Onto, Statistics, Wants
from frostline.kernels.lm_head.plan import Needs, Plan, Problem
from frostline.kernels.lm_head.rows import Rows
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.matmul import device_kind


def as_autocast_would(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Under autocast, the casts that it applies to the inputs of a linear layer; otherwise the inputs."""
    kind = hidden.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind) or hidden.dtype == torch.float64:
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(kind)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def checked_inputs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, names: Mapping[str, str]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Hidden states, weight and bias, checked and cast as autocast would; `names` and what is raised: `checks.check_head`."""
    check_tensors(hidden, weight, bias, targets, names)
    hidden, weight, bias = as_autocast_would(hidden, weight, bias)
    check_head(hidden, weight, bias, targets, names)
    return hidden, weight, bias


def flat(hidden: Tensor, rows: Rows) -> Tensor:
    """The computed rows of `hidden` [..., H] as [n, H]. Differentiable: done outside any autograd function of ours."""
    return rows.take(hidden.reshape(-1, hidden.shape[-1]))


def make_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    transform: Transform,
    masked: bool,
    column_weight: Tensor | None = None,
) -> Head:
    """A `Head` of detached inputs whose last strides are 1, as GEMMs and tiles want them (a copy only where they are not)."""
    offset, every = (None if t is None else _unit_stride(t.detach()) for t in (bias, column_weight))
    inputs = _unit_stride(hidden.detach()), _unit_stride(weight.detach()), targets.contiguous()
    return Head(*inputs, offset, transform, masked, every)


def needs_of(ctx: Any, bias: Tensor | None, *, grad: bool, prune: bool) -> Needs:
    """Which of (hidden, weight, bias), an autograd function's first inputs, need a gradient.

    Inside `forward` autograd's mode is always off and `needs_input_grad` stays True under `no_grad`, so `grad` is passed in.
    """
    hidden, weight, offset = (bool(needed) for needed in ctx.needs_input_grad[:3])
    if not grad or not (hidden or weight or offset):
        return Needs()
    return Needs(hidden, weight or not prune, offset or (not prune and bias is not None))


def problem_of(
    head: Head,
    needs: Needs,
    memory_budget: int | None,
    wants: Wants,
    *,
    loss_known: bool = False,
    entropy: bool = False,
    group: int = 1,
    gathered_from: int = 0,
    told_again: bool = False,
) -> Problem:
    """The plan's view of a head. `entropy`: whether a gradient goes through it."""
    return Problem(
        rows=head.hidden.shape[0],
        hidden=head.hidden.shape[1],
        vocab=head.weight.shape[0],
        dtype=head.hidden.dtype,
        needs=needs,
        loss_known=loss_known,
        loss_told_again=loss_known and told_again,
        entropy=entropy,
        spread=wants.spread,
        best=wants.best,
        group=group,
        masked=head.masked,
        gathered_from=gathered_from,
        device=device_kind(head.hidden),
        fusable=fusable(head.hidden, head.weight) and not wants.spread,
        memory_budget=memory_budget,
    )


def _unit_stride(tensor: Tensor) -> Tensor:
    ready = tensor.stride(-1) == 1 and (tensor.ndim < 2 or tensor.stride(0) >= tensor.shape[1])
    # A single row is contiguous to torch whatever its stride, also 0, which no tensor map takes: the view gives it a new one.
    return tensor if ready else tensor.contiguous().view(-1).view(tensor.shape)


def recomputed(head: Head, plan: Plan, needs: Needs, known: Statistics, onto: Onto) -> Gradients:
    """The gradients by way of the logits, computed again, of the rows that something of the loss arrives at."""
    hidden, weight, bias = head.hidden, head.weight, head.bias
    rows = _rows_with_upstream(onto)
    if rows is not None:
        head, known, onto = head.rows(rows), known.rows(rows), onto.rows(rows)
    if head.hidden.shape[0] == 0:
        return Gradients(*(torch.zeros_like(t) if t is not None else None for t in (hidden, weight, bias)))
    with torch.autocast(hidden.device.type, enabled=False):
        found = engine.recompute(head, plan, needs, known, onto)
    if rows is None or found.hidden is None:
        return found
    return replace(found, hidden=torch.zeros_like(hidden).index_copy_(0, rows, found.hidden))


def _rows_with_upstream(onto: Onto) -> Tensor | None:
    """The rows that a gradient arrived at, where the host can read that and they are fewer than all: tokens whose ratio was
    clipped, or that a loss masked by itself, need no logits in the backward. A device is not asked."""
    if not is_readable(onto.logp):
        return None
    arrived = torch.zeros_like(onto.logp, dtype=torch.bool)
    for figure in (onto.logp, onto.entropy, onto.log_normaliser, onto.all):
        arrived = arrived if figure is None else arrived | (figure != 0)
    return None if bool(arrived.all()) else arrived.nonzero().squeeze(1)


def only_wanted(ctx: Any, found: Gradients) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients that autograd asked for: an unpruned run computes others, and they end here."""
    hidden, weight, bias = ctx.needs_input_grad[:3]
    return found.hidden if hidden else None, found.weight if weight else None, found.bias if bias else None


def scaled_rows(unit: Tensor, scale: Tensor | None, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """unit[r] * scale[r], rounded once, in a tensor of its own: the kept gradient must survive for another backward."""
    result = torch.empty_like(unit, dtype=dtype)
    if scale is None:
        return result.zero_()
    active = torch.where(targets < 0, 0.0, scale.to(torch.promote_types(unit.dtype, torch.float32)))
    tiles.scaled_rows(unit, active, result)
    return result
