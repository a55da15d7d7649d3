"""`FusedLinearCrossEntropyLoss`: cross entropy over a linear head, drop-in for Liger-Kernel 0.8.5's module."""

from __future__ import annotations

from dataclasses import asdict, fields

import torch
from torch import Tensor, nn

from frostline.kernels.lm_head.checks import ActiveRows, check_memory_budget
from frostline.kernels.lm_head.cross_entropy import CrossEntropyOptions, CrossEntropyOutput, Reduction, linear_cross_entropy


class FusedLinearCrossEntropyLoss(nn.Module):
    """Cross entropy that never holds all logits and trains only what requires it.

    Arguments, their order, their defaults and the returned value are those of Liger-Kernel 0.8.5's
    `LigerFusedLinearCrossEntropyLoss`, so that swapping the import is enough; meanings in `linear_cross_entropy`. By keyword
    there are also `logit_scale`, `prune` and `memory_budget`.

    Raises:
        ValueError, TypeError: a reduction that there is not, or a number out of range.
    """

    def __init__(
        self,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
        use_token_scaling: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
        *,
        logit_scale: float = 1.0,
        prune: bool = True,
        memory_budget: int | None = None,
    ) -> None:
        super().__init__()
        options = CrossEntropyOptions(
            ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss, accum_dtype, use_token_scaling,
            return_token_accuracy, return_predicted_tokens, logit_scale,
        )  # fmt: skip
        for name, value in asdict(options).items():  # as attributes, which users of Liger-Kernel's module read and set
            setattr(self, name, value)
        check_memory_budget(memory_budget)
        self.ce_weight = ce_weight
        self.prune = prune
        self.memory_budget = memory_budget

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        *,
        active_rows: ActiveRows = None,
    ) -> Tensor | CrossEntropyOutput:
        """The loss of `_input` [..., H] under the head `lin_weight` [V, H] and `bias` [V], at `target` [...].

        Raises:
            TypeError, ValueError, RuntimeError: see `linear_cross_entropy`.
        """
        options = {field.name: getattr(self, field.name) for field in fields(CrossEntropyOptions)}
        return linear_cross_entropy(
            _input, lin_weight, target, bias, self.ce_weight, **options,
            active_rows=active_rows, prune=self.prune, memory_budget=self.memory_budget,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The options that differ from their defaults."""
        given = ((field, getattr(self, field.name)) for field in fields(CrossEntropyOptions))
        return ", ".join(f"{field.name}={value!r}" for field, value in given if value != field.default)
