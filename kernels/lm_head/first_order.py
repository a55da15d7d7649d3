"""Backward passes that have no derivative of their own, and say so when one is asked for instead of leaving it out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Refused(torch.autograd.Function):
    """Hands a gradient on; differentiating it raises."""

    @staticmethod
    def forward(_ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(_ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError(
            "the head's losses and log-probs have no second derivative: take a penalty of gradients on eager logits"
        )


def first_order_only(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """A `backward` that runs without autograd. Under `create_graph=True` its gradients raise when they are differentiated.

    torch's `once_differentiable` does that only where the upstream depends on the inputs; a gradient penalty of log-probs would
    silently miss a term.
    """

    @functools.wraps(backward)
    def once(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            gradients = backward(ctx, *upstream)
        if not torch.is_grad_enabled():
            return gradients
        anchor = torch.empty(0, requires_grad=True)
        return tuple(None if gradient is None else _Refused.apply(gradient, anchor) for gradient in gradients)

    return once
