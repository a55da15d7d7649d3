"""The grpo suite: every implementation is right on small shapes, and its claims hold on the paper's shapes without a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frostline.suites.grpo import grpo

SMALL = {
    "vocab": 700,
    "seq_len": 9,
    "batch": 3,
    "hidden": 16,
    "lm_head": "frozen",
    "bias": False,
    "loss_type": "dapo",
    "dtype": "float32",
    "masked": 0.0,
}
PAPER = {**SMALL, "vocab": 128256, "seq_len": 1024, "batch": 8, "hidden": 4096, "dtype": "bfloat16"}
IMPLEMENTATIONS = ["unpruned", "pruned", "torch"]


def make(implementation, base=SMALL, **changes):
    torch.manual_seed(0)
    return grpo.function(implementation, "cpu", **{**base, **changes})


def errors(found, reference):
    return {name: float((found[name].double() - wanted).norm() / wanted.norm()) for name, wanted in reference.items()}


def test_declaration():
    assert (grpo.name, grpo.baseline, grpo.compared, list(grpo.implementations)) == (
        "grpo",
        "unpruned",
        "pruned",
        IMPLEMENTATIONS,
    )
    assert list(grpo.targets) == ["frostline.kernels"] and grpo.target_device is not None
    assert {"paper", "small", "crossover", "crossover_small"} <= set(grpo.presets)


@pytest.mark.parametrize("preset, cases, rounds", [("paper", 4, 8), ("small", 4, 6), ("crossover", 14, 1)])
def test_presets(preset, cases, rounds):
    chosen = grpo.preset(preset)
    assert len(list(grpo.cases(chosen.axes))) == cases and chosen.rounds == rounds


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "changes",
    [
        *({"lm_head": head, "bias": bias} for head, bias in itertools.product(["frozen", "trainable"], [False, True])),
        *({"loss_type": loss, "lm_head": "trainable"} for loss in ("grpo", "bnpo", "dr_grpo")),
        {"masked": 0.5, "lm_head": "trainable", "bias": True},
        {"dtype": "bfloat16", "lm_head": "trainable"},
    ],
)
def test_every_implementation_is_right(implementation, changes):
    step = make(implementation, **changes)
    trained = changes.get("lm_head") == "trainable"
    reference, yardstick = step.reference(), errors(step.yardstick(), step.reference())
    found = step.outputs()
    wanted = {"logp", "loss", "d_hidden"} | ({"d_weight"} if trained else set())
    assert set(found) == set(reference) == wanted | ({"d_bias"} if trained and changes.get("bias") else set())
    for name, error in errors(found, reference).items():
        assert error <= step.allowed_over_yardstick * yardstick[name] + 1e-6, name


def test_reference_knows_a_wrong_side():
    """The reference is not made of the code that it judges: another batch's outputs are far off."""
    reference, other = make("pruned").reference(), make("pruned", masked=0.4).outputs()
    assert min(errors(other, reference).values()) > 1e-2


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_reset_drops_what_a_step_left(implementation):
    step = make(implementation)
    step.run()
    first = step.outputs()["d_hidden"]
    step.run()
    step.reset()
    assert torch.equal(step.outputs()["d_hidden"], first)


def flops(implementation, **changes):
    with FakeTensorMode(), grpo.target_device("cuda"):
        step = make(implementation, PAPER, **changes)
        with FlopCounterMode(display=False) as counter:
            step.run()
    return counter.get_total_flops()


def test_products_of_a_step_at_the_papers_shape():
    """Two frozen, three trained or unpruned; half of them when half of the tokens are masked."""
    one = 2 * 8 * 1024 * 4096 * 128256
    assert flops("pruned") == 2 * one
    assert flops("unpruned") == flops("pruned", lm_head="trainable") == flops("unpruned", lm_head="trainable") == 3 * one
    assert flops("torch") == 2 * one and flops("torch", lm_head="trainable") == 3 * one
    assert flops("pruned", masked=0.5) == one and flops("unpruned", masked=0.5) == 3 * one
