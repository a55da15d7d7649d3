"""A Muse Glimmer of a few thousand parameters, with random weights, and inputs for it."""

from __future__ import annotations

import copy

import torch
from transformers.models.muse_glimmer import modeling_muse_glimmer as theirs
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerConfig

VOCAB, IMAGE = 96, 90


def tiny_model(dtype=torch.float32, seed=0):
    """In training mode, every parameter away from what it begins with."""
    config = MuseGlimmerConfig(
        text_config={
            "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "sliding_window": 8,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
        vision_config={
            "patch_size": 2, "pos_emb_height": 4, "pos_emb_width": 4, "num_attention_heads": 2, "num_hidden_layers": 2,
            "hidden_size": 16, "intermediate_size": 24,
        },
        image_token_id=IMAGE, video_token_id=91, out_hidden_size=64, projector_hidden_size=32,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = theirs.MuseGlimmerForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.05))
    return model.to(dtype).train()


def twin(model):
    """The same again, unpatched."""
    return copy.deepcopy(model)


def text_inputs(batch=2, tokens=12, seed=1):
    torch.manual_seed(seed)
    ids = torch.randint(3, 80, (batch, tokens))
    labels = ids.clone()
    labels[0, :4] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


def image_inputs():
    """One image of 4 x 4 patches, merged into 4 tokens."""
    given = text_inputs(batch=1, tokens=14)
    given["input_ids"][0, 3:7] = IMAGE
    given["labels"][0, 3:7] = -100
    return {**given, "pixel_values": torch.randn(16, 2 * 3 * 4), "image_grid_thw": torch.tensor([[1, 4, 4]])}
