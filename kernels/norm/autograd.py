"""The norms under autograd: one node, whose backward asks for no more than autograd does.

The node is written for the host's time: what does not depend on the call is kept in the context, and the kernels are reached
without a dispatch (`backends.plain`). Where somebody must see operators, the registered ones take over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from frostline.kernels.backends import plain
from frostline.kernels.norm import tiles
from frostline.kernels.norm.layout import Needs, Norm


def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> Tensor:
    """The normalised rows of x [..., D], in x's dtype."""
    weight, bias = _dense(weight), _dense(bias)
    keep = torch.is_grad_enabled() and (
        x.requires_grad or (weight is not None and weight.requires_grad) or (bias is not None and bias.requires_grad)
    )
    if not plain(x, weight, bias):
        return tiles.seen_forward(x, None, weight, bias, norm, keep)[0]
    if keep:
        return _apply_norm(x, weight, bias, norm)  # type: ignore[no-any-return]  # apply has no type
    return tiles.forward(x, None, weight, bias, norm, False)[0]


def add_and_normalise(x: Tensor, residual: Tensor, weight: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
    """(normalised rows of x + residual, x + residual), both in x's dtype."""
    weight = _dense(weight)
    keep = torch.is_grad_enabled() and (
        x.requires_grad or residual.requires_grad or (weight is not None and weight.requires_grad)
    )
    if not plain(x, residual, weight):
        y, total = tiles.seen_forward(x, residual, weight, None, norm, keep)
    elif keep:
        return _apply_add_norm(x, residual, weight, norm)  # type: ignore[no-any-return]  # apply has no type
    else:
        y, total, _ = tiles.forward(x, residual, weight, None, norm, False)
    assert total is not None
    return y, total


def _dense(parameter: Tensor | None) -> Tensor | None:
    """A parameter as the kernels read it; autograd sees the copy of one that is a slice or expanded."""
    return parameter if parameter is None or parameter.is_contiguous() else parameter.contiguous()


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> Tensor:
        y, _, stats = tiles.forward(x, None, weight, bias, norm, True)
        ctx.save_for_backward(x, weight, stats)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        ctx.norm = norm
        ctx.needs = Needs(
            needs_x,
            weight.dtype if weight is not None and needs_weight else None,
            bias.dtype if bias is not None and needs_bias else None,
        )
        ctx.planned = tiles.planned_backward(x, weight, norm, ctx.needs)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, stats = ctx.saved_tensors
        if torch.is_grad_enabled() or not plain(dy):
            return *tiles.seen_backward(dy, None, x, weight, stats, ctx.norm, ctx.needs), None
        return *ctx.planned(dy, None, x, weight, stats), None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        y, total, stats = tiles.forward(x, residual, weight, None, norm, True)
        assert total is not None
        ctx.save_for_backward(total, weight, stats)
        needs_x, needs_residual, needs_weight, _ = ctx.needs_input_grad
        ctx.norm = norm
        ctx.needs = Needs(needs_x or needs_residual, weight.dtype if weight is not None and needs_weight else None, None)
        ctx.planned = tiles.planned_backward(total, weight, norm, ctx.needs)
        ctx.set_materialize_grads(False)
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dtotal: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return dtotal, dtotal, None, None
        total, weight, stats = ctx.saved_tensors
        if torch.is_grad_enabled() or not plain(dy, dtotal):
            dx, dweight, _ = tiles.seen_backward(dy, dtotal, total, weight, stats, ctx.norm, ctx.needs)
        else:
            dx, dweight, _ = ctx.planned(dy, dtotal, total, weight, stats)
        return dx, dx, dweight, None


# What `Function.apply` does before it comes to this: ask for function transforms, which `plain` has done.
_apply_norm = super(torch.autograd.Function, _Norm).apply
_apply_add_norm = super(torch.autograd.Function, _AddNorm).apply
