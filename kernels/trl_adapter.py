"""A `GRPOTrainer` of TRL on this package's head: one line before training, and nothing else of the script changes.

    from frostline.kernels import trl_adapter
    trl_adapter.install()

TRL 1.16 computes log-probs and entropies of all its fused trainers through one autograd function, `ChunkedLogProbFunction`,
which it calls by the name `trl.trainer.utils._ChunkedLogProbFunction`. `install` puts `linear_logprob` there, under the same
call: same arguments, same five outputs. With a frozen head (LoRA) that is two products with the weight instead of three, and
logits in fp32 where TRL rounds them to the dtype of the inputs.

What is left to TRL's own function: outputs other than the log-probs and the entropy (`log_sum_sq_probs`, `mean_logits`,
`is_top1`), and DeepSpeed ZeRO-3, where the weight must be gathered again for the backward.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from frostline.kernels.lm_head.logprob import linear_logprob

_MODULE, _NAME = "trl.trainer.utils", "_ChunkedLogProbFunction"

# log-probs and, where asked for, entropy, log_sum_sq_probs, mean_logits, is_top1: all [N].
Outputs: TypeAlias = tuple[Tensor, "Tensor | None", "Tensor | None", "Tensor | None", "Tensor | None"]


@dataclass(frozen=True)
class LinearLogProb:
    """Stands where TRL has an autograd function: called through `apply`, like one.

    Attributes:
        theirs: TRL's own function, for what is not done here.
        entropy_in_loss: see `install`.
    """

    theirs: Any
    entropy_in_loss: bool = False

    def apply(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        final_logit_softcapping: float | None = None,
        logit_scale: float = 1.0,
        outputs: tuple[str, ...] = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1"),
    ) -> Outputs:
        """Per-token log-probs of `hidden @ weight.T + bias`, differentiable, and the optional `outputs`.

        Args:
            hidden: [N, H]. weight: [V, H]. bias: [V] or None. targets: [N].
            temperature: divides the logits, after softcap and scale.
            chunk_size: not looked at; tiles are planned.
            final_logit_softcapping, logit_scale: the transform of the logits.
            outputs: what is wanted besides the log-probs.

        Returns:
            (log-probs, entropy, log_sum_sq_probs, mean_logits, is_top1), None for what was not asked for.
        """
        if not set(outputs) <= {"log_probs", "entropy"} or _gathered_by_zero3():
            found: Outputs = self.theirs.apply(
                hidden, weight, bias, targets, temperature, chunk_size, final_logit_softcapping, logit_scale, outputs
            )
            return found
        if not torch.is_autocast_enabled(hidden.device.type):  # else `linear_logprob` casts
            weight, bias = weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)
        transform: dict[str, Any] = {
            "temperature": temperature,
            "softcap": final_logit_softcapping,
            "logit_scale": logit_scale,
        }
        if "entropy" not in outputs:
            return linear_logprob(hidden, weight, targets, bias, **transform), None, None, None, None
        logp, entropy = linear_logprob(
            hidden, weight, targets, bias, return_entropy=True, entropy_in_loss=self.entropy_in_loss, **transform
        )
        return logp, entropy, None, None, None


def install(*, entropy_in_loss: bool = False) -> None:
    """Let TRL's trainers compute log-probs here, from the next step on. Installing again changes the option alone.

    Args:
        entropy_in_loss: True where the loss has a gradient through the entropy (`entropy_coef`, `use_adaptive_entropy`): one
            product less is then needed. Without it the gradient is as right, and entropies that are only logged come for free.

    Raises:
        RuntimeError: no TRL, or one that calls its log-prob function by another name.
    """
    utils = _utils()
    setattr(utils, _NAME, LinearLogProb(_theirs(utils), entropy_in_loss))


def uninstall() -> None:
    """Give TRL its own function back. Does nothing where `install` was not called."""
    utils = sys.modules.get(_MODULE)
    if utils is not None and hasattr(utils, _NAME):
        setattr(utils, _NAME, _theirs(utils))


def _theirs(utils: Any) -> Any:
    current = getattr(utils, _NAME)
    return current.theirs if isinstance(current, LinearLogProb) else current


def _utils() -> Any:
    try:
        utils = importlib.import_module(_MODULE)
    except ImportError as error:
        raise RuntimeError(f"trl: got {error}, wanted TRL 1.16, to install into") from error
    if not hasattr(utils, _NAME):
        version = getattr(importlib.import_module("trl"), "__version__", "of unknown version")
        raise RuntimeError(f"trl: got TRL {version}, wanted one that has {_MODULE}.{_NAME}, as 1.16 does")
    return utils


def _gathered_by_zero3() -> bool:
    """Whether DeepSpeed takes the weight away again after this call."""
    deepspeed = sys.modules.get("transformers.integrations.deepspeed")
    return deepspeed is not None and bool(deepspeed.is_deepspeed_zero3_enabled())
