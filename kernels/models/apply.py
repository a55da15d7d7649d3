"""The patch for a model, found by its `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from frostline.kernels.models.muse_glimmer import apply_to_muse_glimmer

_PATCHES: Mapping[str, Callable[..., None]] = {"muse_glimmer": apply_to_muse_glimmer}


def apply_to(model: nn.Module, **options: Any) -> None:
    """Patch one model, with what its own function takes as options (`apply_to_muse_glimmer`).

    Args:
        model: of Hugging Face, or wrapped by PEFT: with a `config.model_type`.

    Raises:
        ValueError: no patch for this `model_type`, or an option that the patch refuses.
        TypeError: no model with a `config`, or an option that there is not.
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind is None:
        raise TypeError(f"model: got {type(model).__name__} without config.model_type, wanted a model of Hugging Face")
    if kind not in _PATCHES:
        raise ValueError(f"model: got model_type {kind!r}, wanted one of {', '.join(_PATCHES)}")
    _PATCHES[kind](model, **options)
