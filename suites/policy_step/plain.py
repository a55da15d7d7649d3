"""The step as plain torch writes it: log-probs from all logits at once, and the eight losses from their papers' formulas.

Nothing here is the package's: it is what eager users run, and what the float64 reference is made of. Notation: r the importance
ratio pi / pi_old, A the advantage, sg a value without its gradient, M the mask, o_i the tokens of completion i of B.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

from frostline.suites.policy_step.batch import Batch

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
EPSILON = 0.2
SAPO_TEMPERATURES = (1.0, 1.05)  # of A > 0, and of the others: TRL's and Liger-Kernel's defaults, as those below
VESPO_SHAPES = ((2.0, 3.0), (3.0, 2.0))  # (k, lambda) of A >= 0, and of the others

Stop: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Question:
    """Which loss is asked for. `beta` weighs the KL penalty to the reference model, estimated by k3."""

    loss_type: str
    level: str = "token"
    beta: float = 0.0

    @property
    def epsilon_high(self) -> float:
        """The clip's width above; for cispo the largest weight itself."""
        return 1 + EPSILON if self.loss_type == "cispo" else EPSILON


def logp_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Log-probs of `targets` [B, T] (or [N]) from `hidden` [B, T, H] (or [N, H]), in fp32 at least; they hold all logits."""
    log_p = wide(linear(hidden, weight, bias)).log_softmax(-1)
    return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def wide(values: Tensor) -> Tensor:
    """In fp32, or fp64 where they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def loss_of(
    logp: Tensor, reference: Tensor | None, batch: Batch, question: Question, *, stop: Stop = torch.Tensor.detach
) -> Tensor:
    """The loss, a scalar in the dtype of `logp` [B, T].

    Args:
        logp: the policy's log-probs.
        reference: the reference model's, where `question.beta` is not 0.
        batch: mask, advantages and old log-probs.
        question: the loss.
        stop: what sg is; the identity gives the slope of the loss' value rather than its training gradient.
    """
    mask, log_ratio = batch.mask.to(logp.dtype), logp - batch.old.to(logp.dtype)
    lengths = mask.sum(1, keepdim=True).clamp(min=1)
    ratio = (log_ratio if question.level == "token" else (log_ratio * mask).sum(1, keepdim=True) / lengths).exp()
    value = _objective(logp, ratio, (log_ratio * mask).sum(1, keepdim=True), batch, question, stop)
    if question.beta and reference is not None:
        difference = reference.to(logp.dtype) - logp
        value = value + question.beta * (difference.exp() - difference - 1)  # k3: http://joschu.net/blog/kl-approx.html
    return (value * _token_weights(mask, lengths, question.loss_type)).sum()


def _objective(logp: Tensor, ratio: Tensor, log_whole: Tensor, batch: Batch, question: Question, stop: Stop) -> Tensor:
    """What each token adds before weighting: [B, T], or [B, 1] where its completion is judged as a whole."""
    advantages = batch.advantages.to(logp.dtype).unsqueeze(1)
    if question.loss_type == "cispo":  # -sg(min(r, 1 + epsilon)) A log pi: https://arxiv.org/abs/2506.13585
        return -stop(ratio.clamp(max=question.epsilon_high)) * advantages * logp
    if question.loss_type == "sapo":  # -4/t sigmoid(t (r - 1)) A: https://arxiv.org/abs/2511.20347
        positive, other = (torch.sigmoid(t * (ratio - 1)) * (4 / t) for t in SAPO_TEMPERATURES)
        return -torch.where(advantages > 0, positive, other) * advantages
    if question.loss_type == "vespo":  # -sg(w^k e^(lambda (1 - w))) A log pi: https://arxiv.org/abs/2602.10693
        log_w = log_whole.clamp(math.log(1e-8), 20)
        positive, other = ((k * log_w + rate * (1 - log_w.exp())).exp() for k, rate in VESPO_SHAPES)
        return -stop(torch.where(advantages >= 0, positive, other)) * advantages * logp
    # -min(r A, clip(r) A): https://arxiv.org/abs/1707.06347
    return -torch.min(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages)


def _token_weights(mask: Tensor, lengths: Tensor, loss_type: str) -> Tensor:
    """The weight of each token, [B, T]; one process, no accumulation."""
    batch, length = mask.shape
    if loss_type in ("grpo", "sapo"):  # M / (B |o_i|): https://arxiv.org/abs/2402.03300
        return mask / lengths / batch
    if loss_type == "dr_grpo":  # M / (B T): https://arxiv.org/abs/2503.20783
        return mask / (batch * length)
    if loss_type == "luspo":  # M / B: https://arxiv.org/abs/2602.05261
        return mask / batch
    return mask / mask.sum().clamp(min=1)  # M / sum M: https://arxiv.org/abs/2503.14476
