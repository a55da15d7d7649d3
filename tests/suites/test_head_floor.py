"""The head_floor suite: the floor is the step's products and nothing else, every side is right, and the bars fit the cases."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frostline.harness import selection
from frostline.harness.declare import Skipped
from frostline.harness.verify import verify_step
from frostline.suites.head_floor import head_floor

SMALL = {
    "vocab": 700,
    "seq_len": 9,
    "batch": 3,
    "hidden": 16,
    "lm_head": "frozen",
    "active": 1.0,
    "ref_model": "none",
    "dtype": "float32",
}
PAPER = {**SMALL, "vocab": 128256, "seq_len": 1024, "batch": 8, "hidden": 4096, "dtype": "bfloat16"}
FLOORS, OURS, OTHERS = ["floor", "floor_unknown"], ["known", "unknown"], ["torch", "torch_compile", "liger", "trl", "cce"]
ONE = 2 * 8 * 1024 * 4096 * 128256  # floating-point operations of a product at the published size


def make(implementation, base=SMALL, **changes):
    torch.manual_seed(0)
    return head_floor.function(implementation, "cpu", **{**base, **changes})


def paper(asked=()):
    preset = head_floor.preset("paper")
    cases = selection.select(head_floor, preset, [])
    implementations = selection.choose_implementations(head_floor, asked, preset)
    return cases, selection.rounds_of(preset, cases, implementations, [], asked=bool(asked))


def test_declaration():
    assert (head_floor.baseline, head_floor.compared) == ("floor", "known")
    assert list(head_floor.implementations) == [*FLOORS, *OURS, *OTHERS]
    assert list(head_floor.targets) == ["frostline.kernels"] and head_floor.target_device is not None


def test_the_paper_has_five_cases_and_measures_in_each_what_its_bars_need():
    cases, rounds = paper()
    found = [(case.params["vocab"], case.params["lm_head"], case.params["active"], case.params["ref_model"]) for case in cases]
    assert found == [
        (128256, "frozen", 1.0, "none"),
        (128256, "trainable", 1.0, "none"),
        (128256, "frozen", 0.5, "none"),
        (128256, "frozen", 1.0, "head"),
        (151936, "frozen", 1.0, "none"),
    ]
    taking_part = [[name for name, number in by_name.items() if number] for by_name in rounds]
    assert taking_part == [
        ["floor", *OURS, *OTHERS],
        [*FLOORS, *OURS, *OTHERS],
        ["floor", *OURS],
        ["floor", "known"],
        ["floor", *OURS],
    ]
    assert {number for by_name in rounds for number in by_name.values()} == {0, 3}


def test_every_bar_is_for_one_case_of_the_paper_in_which_its_sides_take_part():
    cases, rounds = paper()
    for bar in head_floor.bars:
        matching = [at for at, case in enumerate(cases) if bar.where.items() <= dict(case.params).items()]
        assert len(matching) == 1, bar.says
        taking_part = rounds[matching[0]]
        assert taking_part[bar.side] and taking_part[bar.against or bar.side], bar.says
        if bar.across:
            other = {**cases[matching[0]].params, **bar.across}
            assert any(dict(case.params) == other for case in cases), bar.says
    assert len({bar.says for bar in head_floor.bars}) == len(head_floor.bars)


def test_the_small_preset_runs_anywhere():
    preset = head_floor.preset("small")
    cases = selection.select(head_floor, preset, [])
    assert [(case.params["lm_head"], case.params["active"]) for case in cases] == [
        ("frozen", 1.0),
        ("trainable", 1.0),
        ("frozen", 0.5),
    ]
    assert selection.choose_implementations(head_floor, [], preset) == [*FLOORS, *OURS, "torch"]


def test_what_is_typed_takes_the_place_of_a_parts_values():
    cases = selection.select(head_floor, head_floor.preset("paper"), ["lm_head=trainable", "active=0.25"])
    assert [(case.params["vocab"], case.params["ref_model"]) for case in cases] == [
        (128256, "none"),
        (128256, "head"),
        (151936, "none"),
    ]
    assert {(case.params["lm_head"], case.params["active"]) for case in cases} == {("trainable", 0.25)}


@pytest.mark.parametrize("implementation", ["floor", *OURS, "torch"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", [{}, {"lm_head": "trainable"}, {"active": 0.5, "lm_head": "trainable"}])
def test_every_side_is_right(implementation, dtype, changes):
    errors = {error.output: error for error in verify_step(make(implementation, dtype=dtype, **changes))}
    gradients = {"d_hidden", "d_weight"} if "lm_head" in changes else {"d_hidden"}
    assert set(errors) == gradients | (set() if implementation == "floor" else {"logp", "loss"})
    assert all(error.ok for error in errors.values()), errors


@pytest.mark.parametrize("implementation", ["floor", "known", "torch"])
def test_a_reference_model_takes_part(implementation):
    plain, penalised = (make(implementation, ref_model=model).outputs()["d_hidden"] for model in ("none", "head"))
    assert not torch.allclose(plain, penalised, rtol=1e-2)
    assert all(error.ok for error in verify_step(make(implementation, ref_model="head")))


def test_the_floors_weight_gradient_is_one_rounding_away():
    """The yardstick of the bar: the exact gradient of the logits in bf16, one product, one rounding of the result."""
    (weight,) = [
        error for error in verify_step(make("floor", dtype="bfloat16", lm_head="trainable")) if error.output == "d_weight"
    ]
    assert 1e-3 < weight.relative < 4e-3


def test_a_timed_floor_multiplies_the_values_of_the_step():
    """What it multiplies before anything was verified is the step's own gradient of the logits, to the dtype's rounding."""
    step = make("floor", dtype="bfloat16", lm_head="trainable", active=0.5)
    floor = step.run.__self__
    timed = floor.d_logits.float()
    step.outputs()
    assert timed.shape == (3 * 5, 700) and float(timed.norm()) > 0
    assert float((timed - floor.d_logits.float()).norm() / timed.norm()) < 2e-2


def flops(implementation, **changes):
    with FakeTensorMode(), head_floor.target_device("cuda"):
        step = make(implementation, PAPER, **changes)
        with FlopCounterMode(display=False) as counter:
            step.run()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("changes", "products", "where_unknown"),
    [
        ({}, 2, 2),
        ({"lm_head": "trainable"}, 3, 4),
        ({"active": 0.5}, 1, 1),
        ({"active": 0.5, "lm_head": "trainable"}, 1.5, 2),
    ],
)
def test_the_sides_do_the_products_of_their_floor(changes, products, where_unknown):
    assert flops("floor", **changes) == flops("known", **changes) == products * ONE
    assert flops("unknown", **changes) == where_unknown * ONE
    if "lm_head" in changes:
        assert flops("floor_unknown", **changes) == where_unknown * ONE


def test_a_reference_head_is_one_product_more():
    assert flops("floor", ref_model="head") == flops("known", ref_model="head") == 3 * ONE


def test_the_floor_allocates_nothing():
    from frostline.harness.meters.memory import LiveBytes, measure_peaks

    with LiveBytes() as tracker:
        step = make("floor", lm_head="trainable", ref_model="head")
    assert measure_peaks(step, "cpu", tracker=tracker)["peak_above_inputs"] == 0


@pytest.mark.parametrize(
    ("implementation", "changes", "said"),
    [
        ("floor_unknown", {}, "an unknown loss needs no further product"),
        ("unknown", {"ref_model": "head"}, "a reference model belongs to the loss"),
    ],
)
def test_a_side_that_cannot_be_says_why(implementation, changes, said):
    with pytest.raises(Skipped, match=said):
        make(implementation, **changes)


def test_all_sides_get_the_same_batch():
    """The random upstream of `unknown` is drawn after the batch, so that nothing else moves."""
    logp = [make(name).outputs()["logp"] for name in ("known", "unknown", "torch")]
    assert all(torch.allclose(logp[0], other, atol=1e-4) for other in logp)
