"""How close is the head to the least that it can cost? A policy-gradient step over the head beside its matrix products alone.

`floor` multiplies and does nothing else (`policy_step.floor`): two products with the head frozen, three with it trained, and
one more for a reference model's head. `floor_unknown` has the fourth that a trained head needs where the loss is not known
before the backward; everything is told in relation to `floor`, and the bar of `unknown` is about `floor_unknown`. `known` is
the fused loss, `unknown` the log-probs alone with a gradient that comes from elsewhere. Beside them stand plain torch and the
heads of other packages. Where half of the rows count, the floor multiplies that half alone.

The bars are for one size: 8 x 1,024 tokens, hidden size 4,096, bf16, as other heads were published with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from frostline.harness import Bar, Preset, Share, Step, skip, suite
from frostline.harness.declare import Value
from frostline.kernels.matmul import target_device
from frostline.suites import policy_step
from frostline.suites.policy_step.batch import Batch, Shape, make_batch
from frostline.suites.policy_step.floor import Floor
from frostline.suites.policy_step.implementation import Implementation, eager
from frostline.suites.policy_step.own import known_loss, unknown_loss
from frostline.suites.policy_step.peers import PEERS, make_peer
from frostline.suites.policy_step.plain import Question
from frostline.suites.policy_step.reference import Reference
from frostline.suites.policy_step.step import step_of
from frostline.suites.policy_step.traffic import traffic_of_head

_OWN = ("floor", "floor_unknown", "known", "unknown")
_OTHERS = ("torch", *PEERS)
_BETA = 0.04  # of the KL penalty, where there is a reference model
_VOCABULARIES = (128256, 151936)
_GIB = 2**30

_DENSE: Mapping[str, Sequence[Value]] = {"vocab": [_VOCABULARIES[0]], "active": [1.0], "ref_model": ["none"]}
_PARTS: Sequence[Mapping[str, Sequence[Value]]] = [
    _DENSE,
    {**_DENSE, "lm_head": ["frozen"], "active": [0.5]},
    {**_DENSE, "lm_head": ["frozen"], "ref_model": ["head"]},
    {**_DENSE, "lm_head": ["frozen"], "vocab": [_VOCABULARIES[1]]},
]
_SHARES = {
    "floor_unknown": Share(axes={"lm_head": ["trainable"]}),
    "unknown": Share(axes={"ref_model": ["none"]}),
    **dict.fromkeys(_OTHERS, Share(axes=_DENSE)),
}
_PRESETS = {
    # About four minutes on an H200. A table that is to be published, with verdicts, takes six rounds: `--rounds 6`.
    "paper": Preset(rounds=3, shares=_SHARES, parts=_PARTS),
    "small": Preset(
        {"vocab": [4096], "seq_len": [64], "batch": [2], "hidden": [256], "dtype": ["float32"]},
        rounds=2,
        implementations=(*_OWN, "torch"),
        shares={name: _SHARES[name] for name in ("floor_unknown", "unknown")},
        parts=[{}, {"lm_head": ["frozen"], "active": [0.5]}],
    ),
}


def _place(vocab: int = _VOCABULARIES[0], lm_head: str = "frozen", **changed: Value) -> dict[str, Value]:
    """The case that a bar is for: of the published size, and dense without a reference model where nothing else is said."""
    sizes: dict[str, Value] = {"vocab": vocab, "seq_len": 1024, "batch": 8, "hidden": 4096, "dtype": "bfloat16"}
    return {**sizes, "lm_head": lm_head, "active": 1.0, "ref_model": "none", **changed}


def _frozen_bars(side: str, vocab: int) -> list[Bar]:
    case, place = f"frozen, loss {side}, vocabulary {vocab:,}", _place(vocab)
    return [
        Bar(f"{case}: time over two products", side, "step_time", at_most=1.13, against="floor", where=place),
        Bar(f"{case}: memory above inputs and weight", side, "peak_above_inputs", at_most=0.30 * _GIB, where=place),
        Bar(f"{case}: largest error of a log-prob", side, "logp.maximum", at_most=5e-5, where=place),
        Bar(f"{case}: error of d hidden", side, "d_hidden.relative", at_most=1.8e-3, where=place),
    ]


def _bars_beside_others(side: str) -> list[Bar]:
    case, place = f"frozen, loss {side}", _place()
    return [
        Bar(f"{case}: Liger-Kernel's time over it", "liger", "step_time", at_least=9, against=side, where=place),
        Bar(f"{case}: TRL's time over it", "trl", "step_time", at_least=1.4, against=side, where=place),
        Bar(f"{case}: memory over TRL's", side, "peak_above_inputs", at_most=1, against="trl", where=place),
        Bar(f"{case}: time over torch.compile's", side, "step_time", at_most=1, against="torch_compile", where=place),
    ]


def _trained_bars() -> list[Bar]:
    known, unknown, place = "trainable, loss known", "trainable, loss unknown", _place(lm_head="trainable")
    return [
        Bar(f"{known}: time over three products", "known", "step_time", at_most=1.13, against="floor", where=place),
        Bar(
            f"{known}: memory over torch.compile's", "known", "peak_allocated", at_most=1, against="torch_compile", where=place
        ),
        Bar(
            f"{known}: error of d weight over one product's",
            "known",
            "d_weight.relative",
            at_most=1.1,
            against="floor",
            where=place,
        ),
        Bar(f"{known}: Liger-Kernel's time over it", "liger", "step_time", at_least=10, against="known", where=place),
        Bar(f"{unknown}: time over four products", "unknown", "step_time", at_most=1.13, against="floor_unknown", where=place),
    ]


def _sparing_bars() -> list[Bar]:
    half, reference = _place(active=0.5), _place(ref_model="head")
    return [
        *(
            Bar(
                f"frozen, loss {side}, half of the rows: time over all rows'",
                side,
                "step_time",
                0.57,
                where=half,
                across={"active": 1.0},
            )
            for side in ("known", "unknown")
        ),
        Bar("frozen, reference model: time over three products", "known", "step_time", 1.13, where=reference, against="floor"),
        Bar(
            "frozen, reference model: memory over that without",
            "known",
            "peak_above_inputs",
            at_most=1.05,
            where=reference,
            across={"ref_model": "none"},
        ),
    ]


_BARS = [
    *(bar for vocab in _VOCABULARIES for side in ("known", "unknown") for bar in _frozen_bars(side, vocab)),
    *(bar for side in ("known", "unknown") for bar in _bars_beside_others(side)),
    *_trained_bars(),
    *_sparing_bars(),
]


def _implementation(name: str, batch: Batch, question: Question, upstream: Tensor | None) -> Implementation:
    if upstream is not None:
        return unknown_loss(batch, upstream)
    if name == "known":
        return known_loss(batch, question)
    if name == "torch":
        return eager(batch, question)
    return make_peer(name, batch, question)


def _upstream(batch: Batch) -> Tensor:
    """A random gradient of the log-probs [B, T], of the size that a mean over the tokens that count gives."""
    return torch.randn(batch.mask.shape, device=batch.mask.device) * batch.mask / batch.active


def _floor_step(name: str, batch: Batch, reference: Reference) -> Step:
    if name == "floor_unknown" and not batch.weight.requires_grad:
        skip("with the head frozen an unknown loss needs no further product: floor is the same")
    floor = Floor(batch, reference, again=name == "floor_unknown")
    if floor.again:  # a product done twice: what it gives is checked of the other
        return Step(run=floor.run)
    return Step(
        run=floor.run,
        outputs=floor.outputs,
        reference=lambda: {leaf: reference.outputs[leaf] for leaf in batch.leaves},
        yardstick=reference.yardstick,
    )


@suite(
    axes={
        "vocab": [_VOCABULARIES[0]],
        "seq_len": [1024],
        "batch": [8],
        "hidden": [4096],
        "lm_head": ["frozen", "trainable"],
        "active": [1.0],
        "ref_model": ["none"],
        "dtype": ["bfloat16"],
    },
    choices={"ref_model": ["none", "head"], "dtype": ["bfloat16", "float16", "float32"]},
    implementations=[*_OWN, *_OTHERS],
    baseline="floor",
    compared="known",
    presets=_PRESETS,
    targets=["frostline.kernels"],
    sources=[policy_step],
    target_device=target_device,
    traffic=traffic_of_head,
    bars=_BARS,
)
def head_floor(
    implementation: str,
    device: str,
    *,
    vocab: int,
    seq_len: int,
    batch: int,
    hidden: int,
    lm_head: str,
    active: float,
    ref_model: str,
    dtype: str,
) -> Step:
    """One policy-gradient step over the head, or its matrix products alone.

    `active` is the share of tokens that count. `ref_model` is `none` or `head`: a reference model's log-probs are computed in
    the step, without a gradient, for a KL penalty.
    """
    if implementation == "unknown" and ref_model != "none":
        skip("a reference model belongs to the loss, which this side does not know")
    question = Question("dapo", beta=0.0 if ref_model == "none" else _BETA)
    shape = Shape(vocab, seq_len, batch, hidden, getattr(torch, dtype), lm_head == "trainable", masked=1 - active)
    inputs = make_batch(device, shape, ref_model)
    if implementation.startswith("floor"):
        return _floor_step(implementation, inputs, Reference(inputs, question))
    upstream = _upstream(inputs) if implementation == "unknown" else None
    side, reference = _implementation(implementation, inputs, question, upstream), Reference(inputs, question, upstream)
    return step_of(side, inputs, reference)
