"""What does freezing the lm_head save in a GRPO step? One policy-gradient step over the head: forward and backward.

`unpruned` runs the package's own head as a trained one whatever is frozen (what most training code does), `pruned` only what
is asked for, `torch` is plain eager code. Beside them stand the heads of other packages (`policy_step.peers`). By default
without a reference model and at token level, as in the published measurements of this loss. Verified against float64 computed
in blocks of rows by plain torch.
"""

from __future__ import annotations

import torch

from frostline.harness import Preset, Share, Step, skip, suite
from frostline.kernels.matmul import target_device
from frostline.suites import policy_step
from frostline.suites.policy_step.batch import Batch, Shape, make_batch
from frostline.suites.policy_step.head_plan import plan_of_head
from frostline.suites.policy_step.implementation import Implementation, eager
from frostline.suites.policy_step.own import known_loss
from frostline.suites.policy_step.peers import PEERS, make_peer
from frostline.suites.policy_step.plain import LOSS_TYPES, Question
from frostline.suites.policy_step.reference import Reference
from frostline.suites.policy_step.step import step_of
from frostline.suites.policy_step.traffic import traffic_of_head

_OWN = ("unpruned", "pruned", "torch")
_LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384]

# Peers are there for orientation: as many rounds as a verdict needs, at one of the vocabularies, so that the whole stays below
# ten minutes on an H200 (seven rounds took 9:21).
_BESIDE = Share(rounds=6, axes={"vocab": [128256]})

_PRESETS = {
    "paper": Preset({"vocab": [128256, 151936]}, rounds=7, shares=dict.fromkeys(PEERS, _BESIDE)),
    "small": Preset(
        {"vocab": [4096, 8192], "seq_len": [64], "batch": [2], "hidden": [256], "dtype": ["float32"]},
        rounds=6,
        implementations=_OWN,
    ),
    "crossover": Preset({"vocab": [128256], "seq_len": _LENGTHS, "batch": [1]}, rounds=1, implementations=_OWN),
    "crossover_small": Preset(
        {"vocab": [8192], "seq_len": [32, 64, 128, 256, 512], "batch": [1], "hidden": [256], "dtype": ["float32"]},
        rounds=1,
        implementations=_OWN,
    ),
}


def _implementation(name: str, batch: Batch, question: Question) -> Implementation:
    if name in PEERS:
        return make_peer(name, batch, question)
    if name == "torch":
        return eager(batch, question)
    return known_loss(batch, question, pruned=name == "pruned")


def _refuse_what_cannot_be(question: Question, ref_model: str) -> None:
    if question.loss_type == "vespo" and question.level == "sequence":
        skip("vespo weighs whole completions by itself: there is no sequence level of it")
    if question.beta and ref_model == "none":
        skip(f"beta={question.beta:g} needs a reference model: set ref_model to logps or head")
    if not question.beta and ref_model != "none":
        skip(f"ref_model={ref_model} is not looked at where beta is 0: set beta as well")


@suite(
    axes={
        "vocab": [128256],
        "seq_len": [1024],
        "batch": [8],
        "hidden": [4096],
        "lm_head": ["frozen", "trainable"],
        "bias": [False],
        "loss_type": ["dapo"],
        "level": ["token"],
        "ref_model": ["none"],
        "beta": [0.0],
        "dtype": ["bfloat16"],
        "masked": [0.0],
    },
    choices={
        "loss_type": LOSS_TYPES,
        "level": ["token", "sequence"],
        "ref_model": ["none", "logps", "head"],
        "dtype": ["bfloat16", "float16", "float32"],
    },
    implementations=[*_OWN, *PEERS],
    baseline="unpruned",
    compared="pruned",
    presets=_PRESETS,
    targets=["frostline.kernels"],
    sources=[policy_step],
    target_device=target_device,
    traffic=traffic_of_head,
    plan=plan_of_head,
)
def grpo(
    implementation: str,
    device: str,
    *,
    vocab: int,
    seq_len: int,
    batch: int,
    hidden: int,
    lm_head: str,
    bias: bool,
    loss_type: str,
    level: str,
    ref_model: str,
    beta: float,
    dtype: str,
    masked: float,
) -> Step:
    """One policy-gradient step over the head.

    `masked` is the share of tokens that do not count. `ref_model` is `none`, `logps` (the reference model's log-probs are
    given) or `head` (they are computed in the step, without a gradient); `beta` weighs the KL penalty to it.
    """
    question = Question(loss_type, level, beta)
    _refuse_what_cannot_be(question, ref_model)
    shape = Shape(vocab, seq_len, batch, hidden, getattr(torch, dtype), lm_head == "trainable", bias, masked)
    inputs = make_batch(device, shape, ref_model)
    side, reference = _implementation(implementation, inputs, question), Reference(inputs, question)
    return step_of(side, inputs, reference)
