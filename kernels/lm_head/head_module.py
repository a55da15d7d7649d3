"""The weight and bias of a model's head, where they are all of it."""

from __future__ import annotations

from torch import Tensor, nn


def head_parameters(lm_head: nn.Module) -> tuple[Tensor, Tensor | None]:
    """What a head's logits are made of: its weight [V, H] and its bias [V] or None, for the functions of this package.

    A head that PEFT trains as a copy (`modules_to_save`) gives that copy.

    Args:
        lm_head: the output layer of a model, as `model.get_output_embeddings()` returns it.

    Raises:
        RuntimeError: an adapter sits on the head (LoRA and its relatives), which its weight alone would silently leave out.
        TypeError: a module without a weight [V, H].
    """
    kind = type(lm_head).__name__
    if hasattr(lm_head, "base_layer"):  # what PEFT calls the layer that an adapter was put around
        raise RuntimeError(
            f"lm_head: got {kind} with an adapter, wanted a plain Linear: leave lm_head out of target_modules, train it whole"
            " (modules_to_save), or merge the adapter first (merge_and_unload)"
        )
    weight, bias = getattr(lm_head, "weight", None), getattr(lm_head, "bias", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise TypeError(f"lm_head: got {kind}, wanted a module with a weight [V, H]")
    return weight, bias
