"""What the suite needs of an implementation: its loss, and its log-probs for the check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.plain import EPSILON, Question, logp_of, loss_of

COMMON_BOUND = 3.0  # times the error of plain torch in the same dtype

# (hidden [B, T, H], weight [V, H], bias [V] or None) -> log-probs of the batch's targets [B, T], differentiable.
LogProbs: TypeAlias = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]


@dataclass(frozen=True)
class Implementation:
    """One way to compute the step.

    loss: a forward, whose scalar a backward can be called on. logp: the log-probs [B, T] that it works with.
    allowed_over_yardstick: how much further than plain torch it may be from the reference.
    detail: what to keep of it, such as the version of its package. omit: metrics that no meter can read of it.
    """

    loss: Callable[[], Tensor]
    logp: Callable[[], Tensor]
    allowed_over_yardstick: float = COMMON_BOUND
    detail: Mapping[str, str] = field(default_factory=dict)
    omit: Collection[str] = ()


def reference_logp(log_probs: LogProbs, batch: Batch) -> Tensor | None:
    """The reference model's log-probs: as given, or of its head without a gradient, or None where there is no such model."""
    if batch.ref_hidden is None or batch.ref_weight is None:
        return batch.ref_logps
    with torch.no_grad():
        return log_probs(batch.ref_hidden, batch.ref_weight, None)


def plain_loss_on(log_probs: LogProbs, batch: Batch, question: Question) -> Callable[[], Tensor]:
    """The plain form of the loss on somebody's log-probs."""

    def loss() -> Tensor:
        reference = reference_logp(log_probs, batch)
        return loss_of(log_probs(batch.hidden, batch.weight, batch.bias), reference, batch, question)

    return loss


def logp_alone(log_probs: LogProbs, batch: Batch) -> Callable[[], Tensor]:
    """The policy's log-probs by themselves, for the check."""
    return lambda: log_probs(batch.hidden, batch.weight, batch.bias)


def eager(batch: Batch, question: Question) -> Implementation:
    """The step in plain torch."""
    log_probs = partial(logp_of, targets=batch.targets)
    return Implementation(plain_loss_on(log_probs, batch, question), logp_alone(log_probs, batch))


def module_options(batch: Batch, question: Question) -> dict[str, Any]:
    """How Liger-Kernel's loss module is made for a question, and ours, which takes the same."""
    return {
        "beta": question.beta,
        "use_ref_model": question.beta != 0,
        "epsilon_low": EPSILON,
        "epsilon_high": question.epsilon_high,
        "loss_type": question.loss_type,
        "max_completion_length": batch.mask.shape[1],
        "importance_sampling_level": question.level,
    }


def module_loss(module: torch.nn.Module, batch: Batch, **more: Any) -> Tensor:
    """The loss that such a module gives of a batch."""
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
        **more,
    )
    return value
