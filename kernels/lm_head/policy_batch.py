"""What a policy loss knows besides the log-probs, made clean: no garbage where the mask is zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from frostline.kernels.lm_head.checks import check_device, check_shape

LOG_RATIO_LIMITS = (math.log(1e-8), 20.0)  # of a completion's log ratio, as VESPO's authors bound it


@dataclass(frozen=True)
class PolicyBatch:
    """Tensors [B, T] fp32 (fp64), already clean. What is None is not used.

    Attributes:
        mask: 1 where a token counts.
        weights: what the loss type made of the mask.
        advantages: per token.
        old: log-probs under the policy that sampled; None: the policy itself.
        reference: log-probs under the reference model; None: the policy itself.
        correction: multiplied onto the surrogate, the ratio between the trainer's and the sampler's probabilities.
        log_correction: the same as one logarithm per completion, repeated over its tokens (vespo).
        sampling: the sampler's own log-probs, which the off-policy mask looks at; NaN: not known.
        kept: bool, tokens whose policy gradient counts (the KL penalty counts everywhere).
        entropy_weights: what the entropy bonus is weighted with.
    """

    mask: Tensor
    weights: Tensor
    advantages: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None
    correction: Tensor | None = None
    log_correction: Tensor | None = None
    sampling: Tensor | None = None
    kept: Tensor | None = None
    entropy_weights: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> PolicyBatch:
        """The same with `function` applied to every tensor: rows taken, reshaped, ..."""
        values = (getattr(self, field.name) for field in fields(self))
        return PolicyBatch(*(None if value is None else function(value) for value in values))  # type: ignore[arg-type]  # None stays None


@dataclass(frozen=True)
class Cleaner:
    """Brings what a user gave into the shape of the mask and the dtype of the log-probs, with zeros where nothing counts.

    active: bool [B, T]. dtype: of the log-probs.
    """

    active: Tensor
    dtype: torch.dtype

    def tokens(self, values: Tensor | None, name: str) -> Tensor | None:
        """Values [B, T]. -inf, NaN and values far away in padding become 0.

        Raises:
            ValueError: another shape, or another device than the mask's.
        """
        if values is None:
            return None
        check_device(values, self.active, name, "_input")
        check_shape(values, tuple(self.active.shape), name, "that of attention_mask")
        return torch.where(self.active, values.detach().to(self.dtype), 0.0)

    def correction(self, values: Tensor | None, name: str) -> Tensor | None:
        """Values [B], [B, 1] or [B, T] as [B, T]."""
        return None if values is None else torch.where(self.active, self._by_token(values, name), 0.0)

    def log_correction(self, values: Tensor | None, name: str) -> Tensor | None:
        """The logarithm of each completion's correction, [B] or [B, 1], or of the product over its tokens, [B, T]; as [B, T].

        Each factor is bounded to `LOG_RATIO_LIMITS`, and a completion without tokens has the factor 1.
        """
        if values is None:
            return None
        logs = self._by_token(values, name).log().clamp(*LOG_RATIO_LIMITS)
        total = torch.where(self.active, logs, 0.0).sum(-1, keepdim=True)
        if values.ndim == 1 or values.shape[1] == 1:  # one factor per completion was counted at each of its tokens
            total = total / self.active.sum(-1, keepdim=True).clamp(min=1)
        return total.expand_as(logs)

    def _by_token(self, values: Tensor, name: str) -> Tensor:
        check_device(values, self.active, name, "_input")
        batch, length = self.active.shape
        if tuple(values.shape) not in ((batch,), (batch, 1), (batch, length)):
            raise ValueError(
                f"{name}: got shape {tuple(values.shape)}, wanted ({batch},) or ({batch}, 1), one per completion, or"
                f" ({batch}, {length}), one per token"
            )
        by_token = values.unsqueeze(1) if values.ndim == 1 else values
        return by_token.detach().to(self.dtype).expand(batch, length)
