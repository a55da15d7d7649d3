"""The grpo suite: every implementation is right on small shapes, and its claims hold on the paper's shapes without a GPU."""

from __future__ import annotations

import functools
import importlib.util
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frostline.harness import selection
from frostline.harness.declare import Skipped
from frostline.kernels.matmul import target_device
from frostline.suites.grpo import grpo
from frostline.suites.policy_step import peers

SMALL = {
    "vocab": 700,
    "seq_len": 9,
    "batch": 3,
    "hidden": 16,
    "lm_head": "frozen",
    "bias": False,
    "loss_type": "dapo",
    "level": "token",
    "ref_model": "none",
    "beta": 0.0,
    "dtype": "float32",
    "masked": 0.0,
}
PAPER = {**SMALL, "vocab": 128256, "seq_len": 1024, "batch": 8, "hidden": 4096, "dtype": "bfloat16"}
IMPLEMENTATIONS = ["unpruned", "pruned", "torch"]
PEERS = ["torch_compile", "liger", "trl", "cce"]
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
COMBINATIONS = [pair for pair in itertools.product(LOSS_TYPES, ("token", "sequence")) if pair != ("vespo", "sequence")]
REFERENCES = [{}, {"ref_model": "logps", "beta": 0.1}, {"ref_model": "head", "beta": 0.1}]


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
        IMPLEMENTATIONS + PEERS,
    )
    assert list(grpo.targets) == ["frostline.kernels"] and grpo.target_device is not None
    assert {"paper", "small", "crossover", "crossover_small"} <= set(grpo.presets)


@pytest.mark.parametrize(
    "preset, cases, rounds, sides",
    [
        ("paper", 4, 7, IMPLEMENTATIONS + PEERS),
        ("small", 4, 6, IMPLEMENTATIONS),
        ("crossover", 14, 1, IMPLEMENTATIONS),
        ("crossover_small", 10, 1, IMPLEMENTATIONS),
    ],
)
def test_presets(preset, cases, rounds, sides):
    chosen = grpo.preset(preset)
    assert len(list(grpo.cases(chosen.axes))) == cases and chosen.rounds == rounds
    assert selection.choose_implementations(grpo, [], chosen) == sides


def test_peers_take_six_rounds_of_the_paper_at_one_vocabulary():
    preset = grpo.preset("paper")
    cases = selection.select(grpo, preset, [])
    own, beside, absent = dict.fromkeys(IMPLEMENTATIONS, 7), dict.fromkeys(PEERS, 6), dict.fromkeys(PEERS, 0)
    rounds = selection.rounds_of(preset, cases, grpo.implementations, [], asked=False)
    assert rounds == [own | (beside if case.params["vocab"] == 128256 else absent) for case in cases]


def test_every_axis_value_can_be_set():
    for axis, values in grpo.choices.items():
        settings = [f"{axis}={','.join(map(str, values))}", "beta=0.04"]
        assert len(selection.select(grpo, grpo.preset("paper"), settings)) == 4 * len(values)


def assert_right(step):
    """Every output within the step's bound; returns the outputs."""
    reference = step.reference()
    found, yardstick = step.outputs(), errors(step.yardstick(), reference)
    assert set(found) == set(reference) == set(yardstick)
    for name, error in errors(found, reference).items():
        assert error <= step.allowed_over_yardstick * yardstick[name] + 1e-6, name
    return found


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "changes",
    [
        *({"lm_head": head, "bias": bias} for head, bias in itertools.product(["frozen", "trainable"], [False, True])),
        {"masked": 0.5, "lm_head": "trainable", "bias": True},
        {"dtype": "bfloat16", "lm_head": "trainable"},
        {"dtype": "bfloat16", "lm_head": "trainable", "ref_model": "head", "beta": 0.1, "bias": True},
    ],
)
def test_every_implementation_is_right(implementation, changes):
    trained = changes.get("lm_head") == "trainable"
    found = assert_right(make(implementation, **changes))
    assert set(found) == {"logp", "loss", "d_hidden"} | ({"d_weight"} if trained else set()) | (
        {"d_bias"} if trained and changes.get("bias") else set()
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("reference", REFERENCES, ids=lambda given: given.get("ref_model", "none"))
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_every_loss_is_right(implementation, loss_type, level, reference):
    assert_right(make(implementation, loss_type=loss_type, level=level, lm_head="trainable", masked=0.3, **reference))


@pytest.mark.parametrize("changes", [{}, {"loss_type": "luspo", "level": "sequence", "ref_model": "head", "beta": 0.1}])
def test_the_reference_is_autograds_in_float64(changes, monkeypatch):
    """By blocks of rows or all at once, with gradients by hand or by autograd: the same."""
    monkeypatch.setattr("frostline.suites.policy_step.reference._ROWS", 5)
    step = make("torch", dtype="float64", lm_head="trainable", bias=True, masked=0.3, **changes)
    for name, error in errors(step.outputs(), step.reference()).items():
        assert error < 1e-12, name
    for name, error in errors(step.yardstick(), step.reference()).items():
        assert error < 1e-12, name


def test_a_kl_penalty_counts():
    """`beta` and the reference model change the loss and its gradient, and a head is not the same model as the log-probs."""
    found = [make("torch", **reference).outputs()["d_hidden"] for reference in REFERENCES]
    assert all(not torch.allclose(one, other, rtol=1e-2) for one, other in itertools.combinations(found, 2))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"beta": 0.1}, "beta=0.1 needs a reference model: set ref_model to logps or head"),
        ({"ref_model": "head"}, "ref_model=head is not looked at where beta is 0: set beta as well"),
        ({"loss_type": "vespo", "level": "sequence"}, "there is no sequence level of it"),
    ],
)
def test_a_case_that_cannot_be_says_why(changes, said):
    with pytest.raises(Skipped, match=said):
        make("pruned", **changes)


# --- The peers -------------------------------------------------------------------------------------------------------------

PACKAGES = {"liger": "liger_kernel", "trl": "trl", "cce": "cut_cross_entropy"}


def need(peer):
    pytest.importorskip(PACKAGES[peer], reason=f"{peer} is not installed")


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda given: given.get("ref_model", "none"))
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
@pytest.mark.parametrize("peer", ["liger", "trl"])
def test_a_peer_is_right(peer, loss_type, level, reference):
    need(peer)
    masked = 0.0 if (peer, loss_type) == ("liger", "luspo") else 0.3
    changes = {"lm_head": "trainable", "bias": True, "masked": masked}
    if peer == "liger" and level == "sequence" and loss_type in ("cispo", "sapo"):
        with pytest.raises(Skipped, match=f"Liger-Kernel has no {loss_type} at sequence level"):
            make(peer, loss_type=loss_type, level=level, **changes)
        return
    assert_right(make(peer, loss_type=loss_type, level=level, **changes, **reference))


@pytest.mark.parametrize("peer", ["liger", "trl"])
def test_a_peer_is_right_in_bf16(peer):
    need(peer)
    step = make(peer, lm_head="trainable", dtype="bfloat16")
    assert_right(step)
    assert step.detail[{"liger": "liger-kernel", "trl": "trl"}[peer]]


@pytest.mark.parametrize("changes", [{}, {"loss_type": "cispo", "level": "sequence", "ref_model": "head", "beta": 0.1}])
def test_the_compiled_plain_form_is_right(changes, monkeypatch):
    """As traced; generating code for it is torch's own business."""
    monkeypatch.setattr(peers, "_compiles_for_cpu", lambda: True)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    step = make("torch_compile", lm_head="trainable", masked=0.3, **changes)
    assert_right(step)
    assert "peak_allocated" in step.omit, "torch runs it eagerly in the sight of the tracker"


def test_luspo_with_padding_is_not_asked_of_liger():
    need("liger")
    with pytest.raises(Skipped, match="luspo counts padding"):
        make("liger", loss_type="luspo", masked=0.3)


def test_cut_cross_entropy_needs_a_gpu():
    need("cce")
    with pytest.raises(Skipped, match="run on CUDA alone"):
        make("cce")


@pytest.mark.parametrize("peer", list(PACKAGES))
def test_a_missing_package_is_a_skip(peer, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in PACKAGES.values() else real(name))
    with pytest.raises(Skipped, match=r"is not installed: pip install 'frostline\[peers\]'"):
        make(peer)


def test_without_a_compiler_nothing_is_compiled_for_a_cpu(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(Skipped, match=r"torch\.compile needs a C\+\+ compiler"):
        make("torch_compile")


@pytest.mark.parametrize("peer, why", [("torch_compile", "compiler decides"), ("cce", "asks the device which tokens count")])
def test_what_cannot_be_predicted_says_why(peer, why):
    if peer != "torch_compile":
        need(peer)
    with FakeTensorMode(), pytest.raises(Skipped, match=f"{why}.*: measure it"):
        make(peer)


def test_liger_can_be_followed():
    """TRL can be as well, but not here: what the cost model notes are launches of compiled kernels; these are interpreted."""
    need("liger")
    with FakeTensorMode(), target_device("cuda"):
        make("liger").run()


# --- The rest --------------------------------------------------------------------------------------------------------------


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


def test_a_reference_head_is_one_product_more():
    one = 2 * 8 * 1024 * 4096 * 128256
    reference = {"ref_model": "head", "beta": 0.1}
    assert flops("pruned", **reference) == flops("torch", **reference) == 3 * one
    assert flops("pruned", ref_model="logps", beta=0.1) == 2 * one
