"""What does a training step of Muse Glimmer cost, as Hugging Face has it and with fused kernels? Forward and backward.

`hf` is the model as it is, `frostline` the same patched by this package, `liger` by Liger-Kernel. `training` is `full` (every
parameter) or `lora` (adapters on all projections, the base with its head and norms frozen). Random weights, one sequence, no
optimizer, sdpa attention; the published model has 52 layers, of which as many stand here as fit beside the head.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from frostline.harness import Bar, Preset, Share, Step, skip, suite
from frostline.harness.declare import Value
from frostline.kernels.matmul import target_device
from frostline.kernels.norm.tiles import TRAFFIC as NORMS
from frostline.kernels.pointwise.tiles import TRAFFIC as POINTWISE
from frostline.suites import whole_model
from frostline.suites.policy_step.traffic import traffic_of_head
from frostline.suites.whole_model.model import Shape, make_inputs, make_model
from frostline.suites.whole_model.step import step_of

_LENGTHS = (1024, 2048, 4096, 8192, 16384)
_PUBLISHED: dict[str, Value] = {"layers": 4, "hidden": 6656, "vocab": 202048, "dtype": "bfloat16"}
_TABLE: dict[str, list[Value]] = {"layers": [4], "training": ["full", "lora"], "seq_len": list(_LENGTHS)}
_SMALL: dict[str, list[Value]] = {"hidden": [256], "vocab": [8192], "layers": [2], "dtype": ["float32"]}

_PRESETS = {
    # Some eight minutes on an H200 in bf16: a process makes 4.6e9 random weights before it measures.
    "paper": Preset(_TABLE, rounds=3, shares={"liger": Share(rounds=2)}),
    "layers": Preset(
        {"layers": [4, 8, 16], "training": ["full"], "seq_len": [4096]}, rounds=3, shares={"liger": Share(rounds=2)}
    ),
    "crossover": Preset(_TABLE, rounds=1),
    "crossover_small": Preset({**_SMALL, "seq_len": [64, 128, 256]}, rounds=1, implementations=("hf", "frostline")),
    "small": Preset({**_SMALL, "seq_len": [64, 256]}, rounds=3, implementations=("hf", "frostline")),
}


def _bars() -> Iterator[Bar]:
    for training in ("full", "lora"):
        for seq_len in _LENGTHS:
            place: dict[str, Value] = {**_PUBLISHED, "training": training, "seq_len": seq_len}
            case = f"{training}, {seq_len:,} tokens"
            yield Bar(f"{case}: time over Hugging Face's", "frostline", "step_time", 1.0, against="hf", where=place)
            yield Bar(f"{case}: peak over Hugging Face's", "frostline", "peak_allocated", 1.0, against="hf", where=place)
            yield Bar(f"{case}: time over Liger-Kernel's", "frostline", "step_time", 1.0, against="liger", where=place)
            if seq_len <= 2048:
                says = f"{case}: peak over Liger-Kernel's"
                yield Bar(says, "frostline", "peak_allocated", 1.0, against="liger", where=place)


@suite(
    axes={
        "seq_len": [4096],
        "layers": [4],
        "training": ["full", "lora"],
        "hidden": [6656],
        "vocab": [202048],
        "dtype": ["bfloat16"],
    },
    choices={"dtype": ["bfloat16", "float16", "float32"]},
    implementations=["hf", "frostline", "liger"],
    baseline="hf",
    compared="frostline",
    presets=_PRESETS,
    targets=["frostline.kernels"],
    sources=[whole_model],
    target_device=target_device,
    traffic=lambda: {**traffic_of_head(), **NORMS, **POINTWISE},
    bars=list(_bars()),
)
def muse_glimmer(
    implementation: str, device: str, *, seq_len: int, layers: int, training: str, hidden: int, vocab: int, dtype: str
) -> Step:
    """One forward and backward of Muse Glimmer, all of it trained or by LoRA."""
    shape = Shape(seq_len, layers, hidden, vocab, getattr(torch, dtype), training == "lora")
    model = _patched(implementation, make_model(shape, device), device)
    products = 2 if shape.lora else 3
    detail = {**_versions(implementation), "tokens": seq_len, "head_flops": products * 2 * seq_len * vocab * hidden}
    return step_of(model, lambda: make_model(shape, device), make_inputs(shape, device), shape, detail=detail)


def _patched(implementation: str, model: nn.Module, device: str) -> nn.Module:
    if implementation == "frostline":
        from frostline.kernels.models import apply_to_muse_glimmer

        apply_to_muse_glimmer(model)
    if implementation == "liger":
        if importlib.util.find_spec("liger_kernel") is None:
            skip("liger-kernel is not installed: pip install 'frostline[peers]'")
        if isinstance(next(model.parameters()), FakeTensor):
            skip("Liger-Kernel's loss asks the device how many tokens count: it can be measured alone")
        if not device.startswith("cuda"):
            skip("Liger-Kernel's kernels run on CUDA alone")
        from liger_kernel.transformers import apply_liger_kernel_to_muse_glimmer

        wrapped: Any = model
        base = wrapped.get_base_model() if hasattr(model, "get_base_model") else model
        apply_liger_kernel_to_muse_glimmer(model=base, layer_norm=False)
    return model


def _versions(implementation: str) -> dict[str, str]:
    found = {"transformers": version("transformers")}
    return found | ({"liger_kernel": version("liger_kernel")} if implementation == "liger" else {})
