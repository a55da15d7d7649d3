"""Policy losses as pure functions of log-probs, in one table.

A policy loss is an objective per token and a weight per token: loss = sum over tokens of weight * objective. The objective of
the four losses here is the clipped surrogate (and a KL penalty); they differ in how tokens are weighted. Both are functions of
small tensors [B, T] (or of any rows of them), plain torch operators that autograd differentiates, and know nothing of the head.

Notation: r the importance ratio pi / pi_old, A the advantage, M the mask, o_i the tokens of completion i of B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

import torch
from torch import Tensor

LEVELS = ("token", "sequence")


@dataclass(frozen=True)
class PolicyOptions:
    """The numbers of a policy loss.

    Attributes:
        loss_type: a key of `LOSSES`.
        beta: weight of the KL penalty; 0 leaves it out altogether.
        epsilon_low, epsilon_high: the ratio is clipped to [1 - epsilon_low, 1 + epsilon_high].
        level: "token", a ratio per token, or "sequence", one per completion (GSPO, https://arxiv.org/abs/2507.18071).
        delta: upper bound of the unclipped ratio (INTELLECT-2, https://arxiv.org/abs/2505.07291); None for none.
        bias_correction: multiply the KL estimate by the ratio of the same level, unclipped (DeepSeek-V3.2,
            https://arxiv.org/abs/2512.02556).
        max_completion_length: the constant that dr_grpo divides by.
    """

    loss_type: str = "dapo"
    beta: float = 0.04
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    level: str = "token"
    delta: float | None = None
    bias_correction: bool = False
    max_completion_length: int | None = None

    def __post_init__(self) -> None:
        if self.loss_type not in LOSSES:
            raise ValueError(f"loss_type: got {self.loss_type!r}, wanted one of {', '.join(LOSSES)}")
        if self.level not in LEVELS:
            raise ValueError(f"importance_sampling_level: got {self.level!r}, wanted one of {', '.join(LEVELS)}")
        if self.delta is not None and self.delta <= 0:
            raise ValueError(f"delta: got {self.delta}, wanted a positive number or None")
        if self.loss_type == "dr_grpo" and not self.max_completion_length:
            raise ValueError(f"max_completion_length: got {self.max_completion_length}, wanted a positive number for dr_grpo")


@dataclass(frozen=True)
class PolicyBatch:
    """What the loss knows besides the log-probs: tensors [B, T] fp32, already clean (no garbage where the mask is zero).

    `weights` is what `LOSSES` made of the mask. `old`, `reference` and `correction` (the ratio between the trainer's and the
    sampler's probabilities) are None where they are not used.
    """

    mask: Tensor
    weights: Tensor
    advantages: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None
    correction: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> PolicyBatch:
        """The same with `function` applied to every tensor: rows taken, reshaped, ..."""
        values = (getattr(self, field.name) for field in fields(self))
        return PolicyBatch(*(None if value is None else function(value) for value in values))  # type: ignore[arg-type]  # None stays None


@dataclass(frozen=True)
class Terms:
    """Per-token values, in the shape of the log-probs: what is summed with weights, and what is reported."""

    loss: Tensor
    kl: Tensor | None
    clipped: Tensor


Weights: TypeAlias = Callable[[Tensor, PolicyOptions, "float | Tensor | None"], Tensor]


def grpo(mask: Tensor, _options: PolicyOptions, _items: float | Tensor | None) -> Tensor:
    """Each completion counts alike: weight M / (B |o_i|). Shao et al. 2024, https://arxiv.org/abs/2402.03300, equation 3."""
    return mask / (mask.sum(-1, keepdim=True).clamp(min=1.0) * max(mask.shape[0], 1))


def bnpo(mask: Tensor, _options: PolicyOptions, _items: float | Tensor | None) -> Tensor:
    """Each token of the batch counts alike: weight M / sum M. TRL's name for DAPO's mean over a local batch."""
    return mask / mask.sum().clamp(min=1.0)


def dr_grpo(mask: Tensor, options: PolicyOptions, _items: float | Tensor | None) -> Tensor:
    """A constant instead of the length: weight M / (B L), L = max_completion_length. Liu et al. 2025, https://arxiv.org/abs/2503.20783."""
    return mask / (max(mask.shape[0], 1) * float(options.max_completion_length or 1))


def dapo(mask: Tensor, _options: PolicyOptions, items: float | Tensor | None) -> Tensor:
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


# How each loss weights its tokens. The weights sum to 1 over a full batch, but for dr_grpo, where only full completions give 1.
LOSSES: dict[str, Weights] = {"grpo": grpo, "bnpo": bnpo, "dr_grpo": dr_grpo, "dapo": dapo}


def log_importance_ratio(logp: Tensor, batch: PolicyBatch, level: str) -> Tensor:
    """log r: logp - old per token, or at sequence level its mean over the completion's tokens, [B, 1] (GSPO, equation 7).

    Without old log-probs the policy is its own: r = 1, and its gradient is that of log pi.
    """
    log_ratio = logp - (logp.detach() if batch.old is None else batch.old)
    if level == "token":
        return log_ratio
    return (log_ratio * batch.mask).sum(-1, keepdim=True) / batch.mask.sum(-1, keepdim=True).clamp(min=1.0)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, options: PolicyOptions) -> Tensor:
    """-min(min(r, delta) A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A). Schulman et al. 2017, arxiv.org/abs/1707.06347."""
    clipped = ratio.clamp(1 - options.epsilon_low, 1 + options.epsilon_high)
    unclipped = ratio if options.delta is None else ratio.clamp(max=options.delta)
    return -torch.min(unclipped * advantages, clipped * advantages)


def was_clipped(ratio: Tensor, advantages: Tensor, options: PolicyOptions) -> Tensor:
    """Where clipping took effect: the ratio left the interval on the side that the advantage favours."""
    low, high = ratio < 1 - options.epsilon_low, ratio > 1 + options.epsilon_high
    return (low & (advantages < 0)) | (high & (advantages > 0))


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """KL(pi || pi_ref) estimated by exp(d) - d - 1 with d = log pi_ref - log pi. Schulman, http://joschu.net/blog/kl-approx.html."""
    difference = reference - logp
    return difference.exp() - difference - 1.0


def terms(logp: Tensor, batch: PolicyBatch, options: PolicyOptions) -> Terms:
    """The loss of each token before weighting, with what the metrics need.

    Args:
        logp: [B, T] (or some rows of it; at sequence level whole completions), 0 where the mask is.
        batch: tensors of the same shape.
        options: the numbers.
    """
    log_ratio = log_importance_ratio(logp, batch, options.level)
    ratio = log_ratio.exp()
    loss = clipped_surrogate(ratio, batch.advantages, options)
    if batch.correction is not None:
        loss = loss * batch.correction
    kl = None
    if options.beta != 0.0:
        kl = k3(logp, logp.detach() if batch.reference is None else batch.reference)
        if options.bias_correction:
            kl = kl * ratio
        loss = loss + options.beta * kl
    return Terms(loss, kl, was_clipped(ratio.detach(), batch.advantages, options).expand_as(logp))


def policy_loss(logp: Tensor, batch: PolicyBatch, options: PolicyOptions) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss, a scalar, and the metrics: mean KL (when beta is not 0), then the share of tokens that were clipped."""
    found = terms(logp, batch, options)
    loss = (found.loss * batch.weights).sum()
    tokens = batch.mask.sum().clamp(min=1.0)
    reported = (
        [found.clipped.to(batch.mask.dtype)] if found.kl is None else [found.kl.detach(), found.clipped.to(batch.mask.dtype)]
    )
    return loss, tuple((values * batch.mask).sum() / tokens for values in reported)
