"""Policy losses as pure functions of log-probs, in one table.

A policy loss is an objective per token and a weight per token: loss = sum over tokens of weight * objective, plus a KL penalty
and an entropy bonus. Objectives are here, weights in `policy_weights`. Both are functions of small tensors [B, T] (or of any
rows of them; where a completion is judged as a whole, of whole completions), plain torch operators that autograd
differentiates, and know nothing of the head.

Notation: r the importance ratio pi / pi_old, A the advantage, sg a value without its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from frostline.kernels.lm_head import policy_weights
from frostline.kernels.lm_head.policy_batch import LOG_RATIO_LIMITS, PolicyBatch
from frostline.kernels.lm_head.policy_options import PolicyOptions

_TOKEN_LOG_RATIO_LIMIT = 20.0  # of one token within VESPO's sum
_SMALLEST_LAMBDA = 1e-4


@dataclass(frozen=True)
class Importance:
    """How far the policy moved since it sampled.

    log_ratio: logp - old per token, [B, T]. ratio: r of the chosen level, [B, T], or [B, 1] for one per completion.
    """

    log_ratio: Tensor
    ratio: Tensor

    @staticmethod
    def of(logp: Tensor, batch: PolicyBatch, level: str) -> Importance:
        """r = exp(logp - old), or at sequence level exp of the mean over the completion's tokens (GSPO, equation 7).

        Without old log-probs the policy is its own: r = 1, and its gradient is that of log pi.
        """
        log_ratio = logp - (logp.detach() if batch.old is None else batch.old)
        return Importance(log_ratio, (log_ratio if level == "token" else _mean(log_ratio, batch.mask)).exp())


# (logp, importance, batch, options) -> the objective of each token, to be minimised.
Objective: TypeAlias = Callable[[Tensor, Importance, PolicyBatch, PolicyOptions], Tensor]
# The ratios between which nothing is clipped.
Interval: TypeAlias = Callable[[PolicyOptions], tuple[float, float]]


def clipped_surrogate(_logp: Tensor, importance: Importance, batch: PolicyBatch, options: PolicyOptions) -> Tensor:
    """-min(min(r, delta) A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A).

    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7; delta from INTELLECT-2, https://arxiv.org/abs/2505.07291.
    """
    ratio, advantages = importance.ratio, batch.advantages
    clipped = ratio.clamp(*clip_interval(options))
    unclipped = ratio if options.delta is None else ratio.clamp(max=options.delta)
    return -torch.min(unclipped * advantages, clipped * advantages)


def clipped_weight(logp: Tensor, importance: Importance, batch: PolicyBatch, options: PolicyOptions) -> Tensor:
    """-sg(min(r, epsilon_high)) A log pi: clipped tokens keep a gradient. CISPO, https://arxiv.org/abs/2506.13585."""
    return -importance.ratio.detach().clamp(max=options.epsilon_high) * batch.advantages * logp


def soft_gate(_logp: Tensor, importance: Importance, batch: PolicyBatch, options: PolicyOptions) -> Tensor:
    """-4/t sigmoid(t (r - 1)) A, with a temperature t by the sign of A. SAPO, https://arxiv.org/abs/2511.20347."""
    positive, negative = options.sapo_temperatures

    def gate(temperature: float) -> Tensor:
        return (temperature * (importance.ratio - 1.0)).sigmoid() * (4.0 / temperature)

    return -torch.where(batch.advantages > 0, gate(positive), gate(negative)) * batch.advantages


def gamma_weight(logp: Tensor, importance: Importance, batch: PolicyBatch, options: PolicyOptions) -> Tensor:
    """-sg(w^k e^(lambda (1 - w))) A log pi, w the ratio of the whole completion. VESPO, https://arxiv.org/abs/2602.10693.

    log w is the sum of the tokens' log ratios and of the sampler's log correction, bounded as its authors do; k and lambda go
    by the sign of A.
    """
    log_ratio = importance.log_ratio.detach().clamp(-_TOKEN_LOG_RATIO_LIMIT, _TOKEN_LOG_RATIO_LIMIT)
    log_w = (log_ratio * batch.mask).sum(-1, keepdim=True)
    if batch.log_correction is not None:
        log_w = log_w + batch.log_correction
    log_w = log_w.clamp(*LOG_RATIO_LIMITS)

    def weight(k: float, rate: float) -> Tensor:
        return (k * log_w + max(rate, _SMALLEST_LAMBDA) * (1.0 - log_w.exp())).exp()

    phi = torch.where(batch.advantages >= 0, weight(*options.vespo_positive), weight(*options.vespo_negative))
    return -phi * batch.advantages * logp


def clip_interval(options: PolicyOptions) -> tuple[float, float]:
    """[1 - epsilon_low, 1 + epsilon_high]."""
    return 1.0 - options.epsilon_low, 1.0 + options.epsilon_high


def weight_interval(options: PolicyOptions) -> tuple[float, float]:
    """Up to epsilon_high itself."""
    return -torch.inf, options.epsilon_high


def everywhere(_options: PolicyOptions) -> tuple[float, float]:
    """A soft weight clips nothing."""
    return -torch.inf, torch.inf


@dataclass(frozen=True)
class PolicyLoss:
    """One row of the table: the objective of a token, its weight, and where its ratio counts as clipped."""

    objective: Objective
    weights: policy_weights.Weights
    interval: Interval


# The weights sum to 1 over a full batch, but for dr_grpo, where only full completions give 1, and luspo, whose tokens add up.
LOSSES: dict[str, PolicyLoss] = {
    "grpo": PolicyLoss(clipped_surrogate, policy_weights.per_completion, clip_interval),
    "bnpo": PolicyLoss(clipped_surrogate, policy_weights.per_token, clip_interval),
    "dr_grpo": PolicyLoss(clipped_surrogate, policy_weights.per_limit, clip_interval),
    "dapo": PolicyLoss(clipped_surrogate, policy_weights.per_token_of_all, clip_interval),
    "cispo": PolicyLoss(clipped_weight, policy_weights.per_token_of_all, weight_interval),
    "sapo": PolicyLoss(soft_gate, policy_weights.per_completion, everywhere),
    "luspo": PolicyLoss(clipped_surrogate, policy_weights.summed, clip_interval),
    "vespo": PolicyLoss(gamma_weight, policy_weights.per_token_of_all, everywhere),
}


@dataclass(frozen=True)
class Terms:
    """Per-token values, in the shape of the log-probs: what is summed with weights, and what is reported."""

    loss: Tensor
    kl: Tensor | None
    clipped: Tensor


def was_clipped(ratio: Tensor, advantages: Tensor, interval: tuple[float, float]) -> Tensor:
    """Where clipping took effect: the ratio left the interval on the side that the advantage favours."""
    low, high = interval
    return ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """KL(pi || pi_ref) estimated by exp(d) - d - 1 with d = log pi_ref - log pi. Schulman, http://joschu.net/blog/kl-approx.html."""
    difference = reference - logp
    return difference.exp() - difference - 1.0


def on_policy(logp: Tensor, batch: PolicyBatch, threshold: float) -> Tensor:
    """Tokens that the off-policy mask keeps: A >= 0, or the completion's mean log pi_sampler - log pi is at most the threshold.

    DeepSeek-V3.2, https://arxiv.org/abs/2512.02556, equation 9. A token whose sampler's log-prob is NaN says nothing.
    """
    sampling = batch.old if batch.sampling is None else batch.sampling
    if sampling is None:  # the policy sampled by itself
        return torch.ones_like(batch.advantages, dtype=torch.bool)
    moved = (sampling - logp.detach()).nan_to_num(nan=0.0)
    return (batch.advantages >= 0) | (_mean(moved, batch.mask) <= threshold)


def terms(logp: Tensor, batch: PolicyBatch, options: PolicyOptions) -> Terms:
    """The loss of each token before weighting, with what the metrics need.

    Args:
        logp: [B, T] (or some rows of it; where a completion is judged as a whole, whole completions), 0 where the mask is.
        batch: tensors of the same shape.
        options: the numbers.
    """
    loss_type = LOSSES[options.loss_type]
    importance = Importance.of(logp, batch, options.level)
    loss = loss_type.objective(logp, importance, batch, options)
    if options.off_policy_threshold is not None:
        loss = torch.where(on_policy(logp, batch, options.off_policy_threshold), loss, 0.0)
    if batch.kept is not None:
        loss = torch.where(batch.kept, loss, 0.0)
    if batch.correction is not None:
        loss = loss * batch.correction
    kl = None
    if options.beta != 0.0:
        kl = k3(logp, logp.detach() if batch.reference is None else batch.reference)
        if options.bias_correction:
            kl = kl * importance.ratio
        loss = loss + options.beta * kl
    clipped = was_clipped(importance.ratio.detach(), batch.advantages, loss_type.interval(options))
    return Terms(loss, kl, clipped.expand_as(logp))


def weighted(found: Terms, batch: PolicyBatch, options: PolicyOptions, entropy: Tensor | None = None) -> Tensor:
    """The loss of some tokens, a scalar: the weighted sum of their terms, less the entropy bonus."""
    loss = (found.loss * batch.weights).sum()
    if options.entropy_trained and entropy is not None and batch.entropy_weights is not None:
        loss = loss - options.entropy_coef * (entropy * batch.entropy_weights).sum()
    return loss


def policy_loss(
    logp: Tensor,
    batch: PolicyBatch,
    options: PolicyOptions,
    entropy: Tensor | None = None,
    *,
    tokens: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss, a scalar, and the metrics.

    Args:
        logp, batch, options: see `terms`.
        entropy: in the shape of logp, where `options.entropy` asks for it.
        tokens: how many tokens count, a scalar, where `batch` is without those that add nothing; None: those of its mask.

    Returns:
        The loss; and means over the tokens that count: of the KL (when beta is not 0), of clipped tokens, and of the entropy
        (when `options.entropy`).
    """
    found = terms(logp, batch, options)
    reported = [found.kl, found.clipped.to(batch.mask.dtype), entropy if options.entropy else None]
    counted = (batch.mask.sum() if tokens is None else tokens).clamp(min=1.0)
    metrics = tuple((values.detach() * batch.mask).sum() / counted for values in reported if values is not None)
    return weighted(found, batch, options, entropy), metrics


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over each completion's tokens, [B, 1]; 0 where there are none."""
    return (values * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)
