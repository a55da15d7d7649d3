"""The loss of a causal model: from the last hidden states and the head's weight, without logits; or on logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from frostline.kernels.lm_head import CrossEntropyOutput, cross_entropy, head_parameters, linear_cross_entropy


def next_token_loss(
    hidden: Tensor, lm_head: Any, labels: Tensor | None, asked: Mapping[str, Any], **transform: float
) -> CrossEntropyOutput:
    """Cross entropy of every token with the one after it, as transformers' `ForCausalLMLoss` has it. 0 where none counts.

    Args:
        hidden: [B, S, H].
        lm_head: the model's head, a Linear without an adapter.
        labels: [B, S]; those at s are compared with the logits at s - 1.
        asked: what else the loss was told: `num_items_in_batch` (the sum is divided by it), `ignore_index`, `shift_labels`
            (labels that are shifted already).
        transform: `softcap` and `logit_scale` of `linear_cross_entropy`.

    Returns:
        loss, token_accuracy and predicted_tokens ([B, S]; -1 where nothing is predicted).

    Raises:
        RuntimeError: an adapter on the head.
    """
    weight, bias = head_parameters(lm_head)
    options = _options(asked) | transform
    found = linear_cross_entropy(
        hidden, weight, _shifted(labels, asked).to(hidden.device), bias, return_token_accuracy=True,
        return_predicted_tokens=True, **options,
    )  # fmt: skip
    assert isinstance(found, CrossEntropyOutput)
    found.loss = _over_items(found.loss, asked)
    return found


def loss_on_logits(logits: Tensor, labels: Tensor, vocab_size: int, **asked: Any) -> Tensor:
    """The same of logits [B, S, V], whose memory the gradient takes over (`cross_entropy`): stands in for `ForCausalLMLoss`."""
    del vocab_size
    found = cross_entropy(logits, _shifted(labels, asked).to(logits.device), **_options(asked))
    assert isinstance(found, Tensor)
    return _over_items(found, asked)


def _options(asked: Mapping[str, Any]) -> dict[str, Any]:
    reduction = "mean" if asked.get("num_items_in_batch") is None else "sum"
    return {"ignore_index": asked.get("ignore_index", -100), "reduction": reduction}


def _shifted(labels: Tensor | None, asked: Mapping[str, Any]) -> Tensor:
    shifted = asked.get("shift_labels")
    if shifted is not None:
        return shifted  # type: ignore[no-any-return]  # what the caller gave
    assert labels is not None
    return functional.pad(labels, (0, 1), value=asked.get("ignore_index", -100))[..., 1:]


def _over_items(loss: Tensor, asked: Mapping[str, Any]) -> Tensor:
    items = asked.get("num_items_in_batch")
    if items is None:
        return loss
    return loss / (items.to(loss.device) if isinstance(items, Tensor) else items)


@cache
def with_predictions(output: type) -> type:
    """A model's class of outputs, and in it what a trainer logs of a loss without logits."""

    class _WithPredictions(output):  # type: ignore[misc]  # a class of transformers, known when it is called
        token_accuracy: torch.FloatTensor | None = None
        predicted_tokens: torch.LongTensor | None = None

    _WithPredictions.__name__ = _WithPredictions.__qualname__ = f"{output.__name__}WithPredictions"
    return dataclass(_WithPredictions)


def output_of(output: type, found: CrossEntropyOutput, inner: Any) -> Any:
    """The outputs of a step without logits: what the model beneath the head gave, by the names that both classes have."""
    given = {field.name for field in fields(inner)}
    kept = {field.name: getattr(inner, field.name) for field in fields(output) if field.name in given}
    return with_predictions(output)(
        **{**kept, "loss": found.loss}, token_accuracy=found.token_accuracy, predicted_tokens=found.predicted_tokens
    )
