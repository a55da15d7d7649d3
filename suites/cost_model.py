"""Is the cost model right? Steps of a head alone and of a whole model, to predict and to measure: `frostline cost --measure`.

`torch` is plain eager code, `known` the package's fused loss, `unknown` its log-probs with a loss on top; each with the head
frozen and trained, with all tokens counting and with half of them, and on a decoder that is trained by LoRA.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from frostline.harness import Preset, Step, suite
from frostline.kernels.matmul import target_device
from frostline.suites import lora_decoder, policy_step
from frostline.suites.lora_decoder import Decoder
from frostline.suites.policy_step.batch import Batch, Shape, make_batch
from frostline.suites.policy_step.implementation import Implementation, eager
from frostline.suites.policy_step.own import known_loss, unknown_loss
from frostline.suites.policy_step.plain import Question
from frostline.suites.policy_step.traffic import traffic_of_head

_QUESTION = Question("dapo")
_PRESETS = {
    "paper": Preset(
        {"batch": [8], "dtype": ["bfloat16"]},
        rounds=1,
        parts=[
            {"layers": [0], "vocab": [128256], "hidden": [4096], "masked": [0.0, 0.5]},
            {"layers": [4], "vocab": [128256], "hidden": [2048], "masked": [0.0]},
        ],
    ),
    "small": Preset(
        {"batch": [2], "seq_len": [32], "vocab": [2048], "hidden": [128], "dtype": ["float32"]},
        rounds=1,
        parts=[{"layers": [0], "masked": [0.0, 0.5]}, {"layers": [2], "masked": [0.0]}],
    ),
}


def _side(name: str, batch: Batch, upstream: Tensor) -> Implementation:
    if name == "torch":
        return eager(batch, _QUESTION)
    return known_loss(batch, _QUESTION) if name == "known" else unknown_loss(batch, upstream)


@suite(
    axes={
        "layers": [0],
        "vocab": [128256],
        "seq_len": [1024],
        "batch": [8],
        "hidden": [4096],
        "lm_head": ["frozen", "trainable"],
        "dtype": ["bfloat16"],
        "masked": [0.0],
    },
    choices={"dtype": ["bfloat16", "float16", "float32"]},
    implementations=["torch", "known", "unknown"],
    presets=_PRESETS,
    targets=["frostline.kernels"],
    sources=[policy_step, lora_decoder],
    target_device=target_device,
    traffic=traffic_of_head,
)
def cost_model(
    implementation: str,
    device: str,
    *,
    layers: int,
    vocab: int,
    seq_len: int,
    batch: int,
    hidden: int,
    lm_head: str,
    dtype: str,
    masked: float,
) -> Step:
    """One policy-gradient step: over a head (`layers` 0), or over a decoder with a head. `masked`: tokens that do not count."""
    shape = Shape(vocab, seq_len, batch, hidden, getattr(torch, dtype), lm_head == "trainable", masked=masked)
    inputs = make_batch(device, shape, "none")
    upstream = torch.randn(inputs.mask.shape, device=device) * inputs.mask / inputs.active
    if not layers:
        side = _side(implementation, inputs, upstream)
        return Step(run=lambda: side.loss().backward(), reset=inputs.reset)
    inputs.hidden.requires_grad_(False)
    model = Decoder(vocab, hidden, layers, device=device, dtype=shape.dtype)

    def run() -> None:
        on_states = replace(inputs, hidden=model(inputs.targets))
        _side(implementation, on_states, upstream).loss().backward()

    def reset() -> None:
        inputs.reset()
        model.zero_grad()

    return Step(run=run, reset=reset)
