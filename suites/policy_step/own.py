"""This package's head: the fused loss, and log-probs for a loss that the head does not know."""

from __future__ import annotations

from torch import Tensor

from frostline.kernels import FusedLinearGRPOLoss, linear_logprob
from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.implementation import Implementation
from frostline.suites.policy_step.plain import EPSILON, Question


def known_loss(batch: Batch, question: Question, *, pruned: bool = True) -> Implementation:
    """The fused loss. Without `pruned` it runs what a trained head would run, and computes every row."""
    module = FusedLinearGRPOLoss(
        beta=question.beta,
        use_ref_model=question.beta != 0,
        epsilon_low=EPSILON,
        epsilon_high=question.epsilon_high,
        loss_type=question.loss_type,
        max_completion_length=batch.mask.shape[1],
        importance_sampling_level=question.level,
        prune=pruned,
    )

    def loss() -> Tensor:
        value: Tensor
        value, _metrics = module(
            batch.hidden,
            batch.weight,
            batch.targets,
            batch.mask,
            batch.advantages,
            batch.bias,
            ref_per_token_logps=batch.ref_logps,
            old_per_token_logps=batch.old,
            ref_input=batch.ref_hidden,
            ref_weight=batch.ref_weight,
            active_rows=batch.active if pruned else None,
        )
        return value

    def logp() -> Tensor:
        return linear_logprob(batch.hidden, batch.weight, batch.targets, batch.bias, active=batch.mask != 0)

    return Implementation(loss, logp)


def unknown_loss(batch: Batch, upstream: Tensor) -> Implementation:
    """Log-probs alone, whose gradient `upstream` [B, T] fp32 comes from elsewhere: here from their sum weighted by it."""

    def logp() -> Tensor:
        return linear_logprob(
            batch.hidden, batch.weight, batch.targets, batch.bias, active=batch.mask != 0, active_rows=batch.active
        )

    def loss() -> Tensor:
        return (logp() * upstream).sum()

    return Implementation(loss, logp)
