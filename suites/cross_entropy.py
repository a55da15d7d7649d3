"""What does cross entropy over the lm_head cost, and from how many tokens on does a fused head save? Forward and backward.

`torch` is plain eager code, `fused` the package's `linear_cross_entropy`, `fused_fp32_accumulator` the same made to sum the
weight gradient in fp32 over blocks of rows: the usual form, whose accumulator is a fixed 5 GiB at the head of the preset
`paper` and costs more than it saves where tokens are few. `floor` is the step's matrix products alone (`policy_step.floor`).
Beside them stand the heads of other packages (`next_token.sides`). Verified against float64 computed in blocks of rows by plain
torch.

The bars are for one head, the largest of a published comparison: hidden size 6,656 and vocabulary 202,048, in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from frostline.harness import Bar, Preset, Share, Step, skip, suite
from frostline.harness.declare import Value
from frostline.kernels.matmul import target_device
from frostline.suites import next_token, policy_step
from frostline.suites.next_token.plain import Question
from frostline.suites.next_token.reference import Reference
from frostline.suites.next_token.sides import make_side
from frostline.suites.next_token.step import floor_step, step_of
from frostline.suites.policy_step.batch import Shape, make_batch
from frostline.suites.policy_step.traffic import traffic_of_head

_PEERS = ("torch_compile", "liger", "cce")
_OWN = ("torch", "fused", "fused_fp32_accumulator")
_LENGTHS = (1024, 2048, 4096, 8192, 16384)
_FLOORED = _LENGTHS[1:]  # below, the host's launches weigh too much beside the products to tell
_ONCE = 8192  # the length at which those that are there for orientation take part in a run of all lengths
_BESIDE = Share(rounds=1, axes={"seq_len": [_ONCE]})
_SUMMED = Share(axes={"lm_head": ["trainable"]})  # with the head frozen there is nothing to sum
_OPTIONS = ("label_smoothing", "softcap", "lse_square_scale", "ignored")
_SHARES = {"fused_fp32_accumulator": _SUMMED}
_SMALL: dict[str, list[Value]] = {"vocab": [8192], "hidden": [256], "dtype": ["float32"]}

_PRESETS = {
    # About seven minutes on an H200: ten cases with three rounds each, of few sides, since a process takes some seconds.
    "paper": Preset(
        {"seq_len": list(_LENGTHS)},
        rounds=3,
        shares={
            "floor": Share(axes={"seq_len": list(_FLOORED)}),
            "fused_fp32_accumulator": Share(rounds=1, axes={**_BESIDE.axes, **_SUMMED.axes}),
            **dict.fromkeys(_PEERS, _BESIDE),
        },
    ),
    "small": Preset({**_SMALL, "seq_len": [64, 256]}, rounds=3, implementations=(*_OWN, "floor"), shares=_SHARES),
    "crossover": Preset({"seq_len": list(_LENGTHS)}, rounds=1, implementations=(*_OWN, *_PEERS), shares=_SHARES),
    "crossover_small": Preset({**_SMALL, "seq_len": [32, 64, 128, 256, 512]}, rounds=1, implementations=_OWN, shares=_SHARES),
}


def _bars() -> Iterator[Bar]:
    for seq_len in _LENGTHS:
        for lm_head in ("frozen", "trainable"):
            place: dict[str, Value] = {
                "vocab": 202048,
                "seq_len": seq_len,
                "batch": 1,
                "hidden": 6656,
                "lm_head": lm_head,
                **dict.fromkeys(_OPTIONS, 0.0),
                "dtype": "bfloat16",
            }
            case = f"{lm_head}, {seq_len:,} tokens"
            yield Bar(f"{case}: time over torch's", "fused", "step_time", 1.0, against="torch", where=place)
            yield Bar(f"{case}: peak over torch's", "fused", "peak_allocated", 1.0, against="torch", where=place)
            yield Bar(f"{case}: largest error of a token's loss", "fused", "losses.maximum", 5e-5, where=place)
            if seq_len not in _FLOORED:
                continue
            if lm_head == "frozen":
                yield Bar(f"{case}: time over two products", "fused", "step_time", 1.13, against="floor", where=place)
            else:
                says = f"{case}: error of d weight over one product's"
                yield Bar(says, "fused", "d_weight.relative", 1.1, against="floor", where=place)


@suite(
    axes={
        "vocab": [202048],
        "seq_len": [1024],
        "batch": [1],
        "hidden": [6656],
        "lm_head": ["frozen", "trainable"],
        "label_smoothing": [0.0],
        "softcap": [0.0],
        "lse_square_scale": [0.0],
        "ignored": [0.0],
        "dtype": ["bfloat16"],
    },
    choices={"dtype": ["bfloat16", "float16", "float32"]},
    implementations=[*_OWN, "floor", *_PEERS],
    baseline="torch",
    compared="fused",
    presets=_PRESETS,
    targets=["frostline.kernels"],
    sources=[next_token, policy_step],
    target_device=target_device,
    traffic=traffic_of_head,
    bars=list(_bars()),
)
def cross_entropy(
    implementation: str,
    device: str,
    *,
    vocab: int,
    seq_len: int,
    batch: int,
    hidden: int,
    lm_head: str,
    label_smoothing: float,
    softcap: float,
    lse_square_scale: float,
    ignored: float,
    dtype: str,
) -> Step:
    """One step of next-token training over the head, or its matrix products alone.

    `ignored` is the share of tokens whose label is -100. The other options are those of the loss, each off at 0.
    """
    question = Question(label_smoothing, softcap, lse_square_scale)
    shape = Shape(vocab, seq_len, batch, hidden, getattr(torch, dtype), lm_head == "trainable", masked=ignored)
    inputs = make_batch(device, shape, "none")
    if implementation != "floor":
        return step_of(make_side(implementation, inputs, question), inputs, Reference(inputs, question))
    if not question.is_plain:
        skip("the products are the same with any option: measure them without")
    return floor_step(inputs)
