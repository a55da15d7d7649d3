"""Muse Glimmer of Hugging Face, of fewer layers, with random weights, and its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from frostline.harness import skip

ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK = 16
_WATCHED = (
    "embed_tokens", "layers.0.input_layernorm", "layers.0.self_attn.q_proj", "layers.0.mlp.down_proj", "language_model.norm",
    "lm_head",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """What is trained: sizes of the text model, whose other sizes are those of the published one, and whether by LoRA."""

    seq_len: int
    layers: int
    hidden: int
    vocab: int
    dtype: torch.dtype
    lora: bool

    @property
    def is_large(self) -> bool:
        """Whether a copy of the model in float64 would be too much to check it by."""
        return self.hidden * self.vocab > 1 << 26


def make_model(shape: Shape, device: str) -> nn.Module:
    """The model in training mode, by LoRA with the base frozen. Skips where transformers, or PEFT, is not there."""
    try:
        from transformers.models.muse_glimmer.modeling_muse_glimmer import MuseGlimmerForConditionalGeneration
    except ImportError:
        skip("transformers >= 5.15 is not installed: pip install 'frostline[muse]'")
    with torch.device(device):
        make: Any = MuseGlimmerForConditionalGeneration._from_config
        model = make(_config(shape), dtype=shape.dtype)
        model.model.vision_tower = model.model.vision_adapter = None  # the step has no image: nothing of them is measured
        return _adapted(model.train(), shape.dtype) if shape.lora else model.train()


def make_inputs(shape: Shape, device: str) -> dict[str, Any]:
    """One sequence of random tokens; the last half of it counts in the loss as the first does."""
    tokens = torch.randint(shape.vocab, (1, shape.seq_len), device=device)
    return {"input_ids": tokens, "labels": tokens, "use_cache": False}


def watched(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The trained parameters among those whose gradients are compared: what is around the layers, and some of the first."""
    for name, parameter in model.named_parameters():
        part = next((part for part in _WATCHED if part in name), None)
        if part is not None and parameter.requires_grad:
            rest = name.partition(part)[2].replace(".default.weight", "")
            yield part.removeprefix("layers.0.").replace(".", "_") + rest, parameter


def _config(shape: Shape) -> Any:
    from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerConfig

    text: dict[str, Any] = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "vocab_size": shape.vocab,
        "intermediate_size": 3 * shape.hidden,
        "output_multiplier": (256 / shape.hidden) ** 0.5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if not shape.is_large:  # the published one has 32 heads of 128, which are not as wide together as a hidden state
        text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2 * max(shape.hidden // 8, 4)}
    tiny = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    tiny |= {"pos_emb_height": 2, "pos_emb_width": 2}
    make: Any = MuseGlimmerConfig
    return make(text_config=text, vision_config=tiny, out_hidden_size=64, projector_hidden_size=16, tie_word_embeddings=False)


def _adapted(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    try:
        import peft
    except ImportError:
        skip("peft is not installed: pip install 'frostline[muse]'")
    config = peft.LoraConfig(r=RANK, target_modules=list(ADAPTED), init_lora_weights=False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # tensors without data cannot be converted: adapters are made as they are to be
    try:
        found: nn.Module = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    finally:
        torch.set_default_dtype(before)
    return found
