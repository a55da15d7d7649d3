"""This package's head: the fused loss, and log-probs for a loss that the head does not know."""

from __future__ import annotations

from torch import Tensor

from frostline.kernels import FusedLinearGRPOLoss, linear_logprob
from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.implementation import Implementation, module_loss, module_options
from frostline.suites.policy_step.plain import Question


def known_loss(batch: Batch, question: Question, *, pruned: bool = True) -> Implementation:
    """The fused loss. Without `pruned` it runs what a trained head would run, and computes every row."""
    module = FusedLinearGRPOLoss(**module_options(batch, question), prune=pruned)

    def loss() -> Tensor:
        return module_loss(module, batch, active_rows=batch.active if pruned else None)

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
