"""Cross entropy over a head as plain torch writes it: all logits at once, rounded to the dtype of the head, the loss in fp32.

Nothing here is the package's: it is what eager users run, and what the float64 reference is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.plain import wide

IGNORED = -100
Reduction: TypeAlias = Literal["mean", "sum", "none"]


@dataclass(frozen=True)
class Question:
    """Which loss is asked for.

    label_smoothing: the share of the label's probability that all tokens get. softcap: of x it makes the logit
    softcap * tanh(x / softcap); 0 for none. lse_square_scale: weighs the z loss, the square of the log of the softmax's
    denominator.
    """

    label_smoothing: float = 0.0
    softcap: float = 0.0
    lse_square_scale: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it is cross entropy and nothing else."""
        return self == Question()


def labels_of(batch: Batch) -> Tensor:
    """[B, T] int64: the targets of a batch, `IGNORED` where its mask is zero."""
    return batch.targets.masked_fill(batch.mask == 0, IGNORED)


def loss_of(hidden: Tensor, weight: Tensor, labels: Tensor, question: Question, reduction: Reduction = "mean") -> Tensor:
    """The loss of `labels` [B, T] (or [N]) from `hidden` [B, T, H] (or [N, H]), in fp32 at least."""
    products = linear(hidden.reshape(-1, hidden.shape[-1]), weight)
    return loss_of_products(wide(products), labels.reshape(-1), question, reduction)


def loss_of_products(x: Tensor, labels: Tensor, question: Question, reduction: Reduction) -> Tensor:
    """The loss of `labels` [N] from the products [N, V] of hidden states and weight, a scalar, or [N] without reduction."""
    z = question.softcap * torch.tanh(x / question.softcap) if question.softcap else x
    loss = cross_entropy(z, labels, ignore_index=IGNORED, reduction=reduction, label_smoothing=question.label_smoothing)
    if not question.lse_square_scale:
        return loss
    counted = labels != IGNORED
    z_loss = question.lse_square_scale * z.logsumexp(-1).square() * counted
    if reduction == "none":
        return loss + z_loss
    return loss + (z_loss.sum() / counted.sum() if reduction == "mean" else z_loss.sum())
