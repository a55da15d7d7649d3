"""How a policy loss weights its tokens: functions of the mask [B, T], one for each way of averaging.

Notation: M the mask, o_i the tokens of completion i of B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from frostline.kernels.lm_head.policy_options import PolicyOptions

# (mask, options, tokens of the whole batch or None) -> weights in the shape of the mask, exactly 0 where the mask is.
Weights: TypeAlias = Callable[[Tensor, PolicyOptions, "float | Tensor | None"], Tensor]


def per_completion(mask: Tensor, _options: PolicyOptions, _items: float | Tensor | None) -> Tensor:
    """Each completion counts alike: weight M / (B |o_i|). Shao et al. 2024, https://arxiv.org/abs/2402.03300, equation 3."""
    return mask / (mask.sum(-1, keepdim=True).clamp(min=1.0) * max(mask.shape[0], 1))


def per_token(mask: Tensor, _options: PolicyOptions, _items: float | Tensor | None) -> Tensor:
    """Each token of the batch counts alike: weight M / sum M. TRL's name for DAPO's mean over a local batch is bnpo."""
    return mask / mask.sum().clamp(min=1.0)


def per_limit(mask: Tensor, options: PolicyOptions, _items: float | Tensor | None) -> Tensor:
    """A constant instead of the length: weight M / (B L), L = max_completion_length. Liu et al. 2025, https://arxiv.org/abs/2503.20783."""
    return mask / (max(mask.shape[0], 1) * float(options.max_completion_length or 1))


def per_token_of_all(mask: Tensor, _options: PolicyOptions, items: float | Tensor | None) -> Tensor:
    """Each token of the whole batch counts alike: weight M W / n. Yu et al. 2025, https://arxiv.org/abs/2503.14476, equation 8.

    n is the number of tokens over all processes and accumulation steps (`items`), or else of this step over all processes; W is
    the number of processes, since data parallelism averages their gradients.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if items is None:
        count = mask.sum()
        if distributed:
            torch.distributed.all_reduce(count)
    else:
        # A number is filled in on the device: copying it there would wait for the device.
        count = items.to(mask) if isinstance(items, Tensor) else mask.new_full((), items)
    return mask / (count / (torch.distributed.get_world_size() if distributed else 1)).clamp(min=1.0)


def summed(mask: Tensor, _options: PolicyOptions, _items: float | Tensor | None) -> Tensor:
    """Tokens of a completion add up, completions are averaged: weight M / B.

    A completion's ratio is a mean over its tokens, so its gradient shrinks with its length; the sum undoes that. Liu et al.
    2026, https://arxiv.org/abs/2602.05261, in the form in which TRL masks it: padding never changes a loss.
    """
    return mask / max(mask.shape[0], 1)
