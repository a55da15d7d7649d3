"""What `linear_cross_entropy` costs: products, allocations and questions to the device, counted on tensors without data."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from cross_entropy_reference import EVERYTHING, Problem
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frostline.kernels import linear_cross_entropy
from frostline.kernels.lm_head import plan as plans
from frostline.kernels.lm_head.peaks import row_allowance
from frostline.kernels.lm_head.plan import override
from frostline.kernels.matmul import target_device

ROWS, WIDTH, VOCAB = 64, 256, 4096
TRAINED, FROZEN = (True, True, True), (True, False, False)
OPTIONS = {
    "plain": {},
    "smooth": {"label_smoothing": 0.1},
    "weights of classes": {"ce_weight": True, "label_smoothing": 0.1},
    "z loss": {"lse_square_scale": 0.1},
    "capped": {"softcap": 30.0, "logit_scale": 0.2},
    "token scaling": {"use_token_scaling": True},
    "sum": {"reduction": "sum"},
    "of each row": {"reduction": "none", "label_smoothing": 0.1, "lse_square_scale": 0.1},
    "everything": {"label_smoothing": 0.1, "lse_square_scale": 0.1, "softcap": 30.0, **EVERYTHING},
}
KINDS = pytest.mark.parametrize("kind", ["cpu", "cuda"])


def step(needs, *, dtype=torch.bfloat16, rows=ROWS, width=WIDTH, vocab=VOCAB, tracker=None, mode=nullcontext, **options):
    """Forward and backward, the forward alone in a mode without gradients. Returns the leaves."""
    problem = Problem((rows,), width, vocab, dtype, needs=needs, right=0)
    if options.get("ce_weight") is True:
        options["ce_weight"] = torch.rand(vocab)
    hidden, weight, bias = leaves = problem.leaves()
    if tracker is not None:
        tracker.ignore(*leaves)
    with nullcontext() if tracker is None else tracker:
        with mode():
            found = linear_cross_entropy(hidden, weight, problem.targets, bias, **options)
        loss = found if isinstance(found, torch.Tensor) else found.loss
        if loss.requires_grad:
            loss.backward(torch.ones_like(loss))
    return leaves


@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("needs", [TRAINED, FROZEN], ids=["trainable", "frozen"])
def test_nothing_is_asked_of_the_device(needs, options):
    """A value that is read stalls the device; a tensor without data has none to give."""
    for declared in (None, 40):
        with FakeTensorMode(), target_device("cuda"):
            leaves = step(needs, active_rows=declared, **OPTIONS[options])
        assert [leaf.grad is not None for leaf in leaves] == list(needs)


@pytest.mark.parametrize(
    ("needs", "reduction", "budget", "products"),
    [
        (FROZEN, "mean", None, 2),
        (FROZEN, "sum", None, 2),
        (FROZEN, "none", None, 2),
        (TRAINED, "mean", None, 3),
        (TRAINED, "sum", None, 3),
        (TRAINED, "none", None, 4),  # the upstream is not known while the logits are at hand
        (TRAINED, "mean", 1, 4),
        ((False, True, False), "mean", None, 2),
        ((False, False, False), "mean", None, 1),
    ],
)
@KINDS
def test_products(kind, needs, reduction, budget, products):
    with FakeTensorMode(), target_device(kind), override(vocab_tile=1024), FlopCounterMode(display=False) as counter:
        step(needs, reduction=reduction, memory_budget=budget, **EVERYTHING)
    assert counter.get_total_flops() == products * 2 * ROWS * WIDTH * VOCAB


def test_fp16_waits_for_its_loss_scale():
    """Small fp16 gradients only survive once the loss scale has been applied: a trained head is computed again for it."""
    for needs, options, products in ((FROZEN, "plain", 2), (FROZEN, "smooth", 3), (TRAINED, "plain", 4)):
        with FakeTensorMode(), target_device("cuda"), FlopCounterMode(display=False) as counter:
            step(needs, dtype=torch.float16, **OPTIONS[options])
        assert counter.get_total_flops() == products * 2 * ROWS * WIDTH * VOCAB


@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("kind, dtype", [("cpu", torch.float32), ("cuda", torch.bfloat16)])
def test_no_option_costs_a_product(kind, dtype, options):
    more = "none" in OPTIONS[options].values()  # what arrives at each row is not known while the logits are at hand
    for needs, products in ((FROZEN, 2), (TRAINED, 3)):
        with FakeTensorMode(), target_device(kind), FlopCounterMode(display=False) as counter:
            step(needs, dtype=dtype, **OPTIONS[options])
        assert counter.get_total_flops() == (products + more) * 2 * ROWS * WIDTH * VOCAB


@pytest.mark.parametrize("declared, share", [(None, 1.0), (32, 0.5), (0, 0.0)])
def test_ignored_rows_are_skipped_where_their_number_is_declared(declared, share):
    for needs, products in ((FROZEN, 2), (TRAINED, 3)):
        with FakeTensorMode(), target_device("cuda"), FlopCounterMode(display=False) as counter:
            step(needs, active_rows=declared)
        assert counter.get_total_flops() == share * products * 2 * ROWS * WIDTH * VOCAB


@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("needs", [FROZEN, (True, False, True), (False, False, True)], ids=["frozen", "bias too", "bias alone"])
def test_a_frozen_weight_has_no_allocation_of_its_size(live_bytes, needs, options):
    """Not at any moment, whichever options: nothing of the size of the weight is there but the weight."""
    for kind, reduction, budget in (("cpu", "mean", None), ("cuda", "none", None), ("cuda", "mean", 1)):
        tracker, given = live_bytes(), {"reduction": reduction} | OPTIONS[options]
        with target_device(kind), override(row_block=8, vocab_tile=1024):
            step(needs, rows=16, dtype=torch.float32, tracker=tracker, memory_budget=budget, **given)
        assert max(tracker.sizes) < VOCAB * WIDTH * 4 // 4
        assert tracker.peak < VOCAB * WIDTH * 4


def test_the_tracker_sees_the_gradient_of_a_trained_weight(live_bytes):
    tracker = live_bytes()
    step(TRAINED, rows=16, dtype=torch.float32, tracker=tracker)
    assert max(tracker.sizes) == VOCAB * WIDTH * 4


@pytest.mark.parametrize("options", list(OPTIONS))
def test_nothing_of_gradients_without_grad(live_bytes, options):
    """Trained leaves, and nobody asks for their gradients: one product, and no room for a gradient of the hidden states."""
    rows, vocab = 1024, 128
    for mode in (torch.no_grad, torch.inference_mode):
        tracker = live_bytes()
        with target_device("cuda"), override(row_block=128, vocab_tile=128), FlopCounterMode(display=False) as counter:
            step(TRAINED, rows=rows, vocab=vocab, dtype=torch.float32, tracker=tracker, mode=mode, **OPTIONS[options])
        assert counter.get_total_flops() == 2 * rows * WIDTH * vocab
        assert tracker.peak < rows * WIDTH * 4 // 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad_the_loss_is_the_same(mode):
    for options in OPTIONS.values():
        problem = Problem(ignored=0.2, **{name: value for name, value in options.items() if not name.startswith("return_")})
        wanted = problem.ours().output
        hidden, weight, bias = problem.leaves()
        with mode():
            found = linear_cross_entropy(hidden, weight, problem.targets, bias, **problem.options, **EVERYTHING)
        assert not found.loss.requires_grad
        for ours, theirs in zip(vars(found).values(), vars(wanted).values(), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-7)


def test_a_smaller_budget_has_no_larger_peak(live_bytes):
    """And is kept, down to a little more than the gradient of the weight."""
    rows, vocab, peaks = 1024, 16_384, []
    budgets = (None, 2**26, 2**25, 2**24, 1)
    for budget in budgets:
        with FakeTensorMode(), target_device("cuda"):
            tracker = live_bytes()
            step(TRAINED, rows=rows, vocab=vocab, tracker=tracker, memory_budget=budget)
        peaks.append(tracker.peak)
    assert peaks == sorted(peaks, reverse=True)
    assert all(peak <= budget for peak, budget in zip(peaks[1:-1], budgets[1:-1], strict=True)), peaks
    assert peaks[-1] <= vocab * WIDTH * 2 + 2**22, peaks


@pytest.fixture
def followed(monkeypatch):
    """The plans that were made, the last the one that is followed."""
    made, make = [], plans._make_plan

    def recorded(*given):
        made.append(make(*given))
        return made[-1]

    monkeypatch.setattr(plans, "_make_plan", recorded)
    return made


@pytest.mark.parametrize("budget", [None, 2**28])
@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("needs", [TRAINED, FROZEN], ids=["trainable", "frozen"])
def test_the_peak_is_the_plans(live_bytes, followed, needs, options, budget):
    """Never above it, and below by no more than what it allows for single rows and for vectors of the vocabulary's length."""
    rows, vocab = 4096, 32_000
    tracker, declared = live_bytes(), None if budget else rows // 2
    with FakeTensorMode(), target_device("cuda"):
        step(needs, rows=rows, vocab=vocab, tracker=tracker, active_rows=declared, memory_budget=budget, **OPTIONS[options])
    plan = followed[-1]
    assert tracker.peak <= plan.peak_bytes <= tracker.peak + row_allowance(plan) + 4 * 4 * vocab


def test_the_peak_of_a_trained_bias_is_the_plans(live_bytes, followed):
    """Of a narrow head nothing is larger while its gradients are rounded."""
    tracker = live_bytes()
    with FakeTensorMode(), target_device("cuda"), override(row_block=2, vocab_tile=512):
        step(TRAINED, width=4, rows=4, vocab=16_384, tracker=tracker, memory_budget=1)
    assert followed[-1].strategy is plans.Strategy.RECOMPUTE and tracker.peak <= followed[-1].peak_bytes


@pytest.mark.parametrize("trained, rows", [(False, 1024), (False, 16_384), (True, 1024), (True, 16_384)])
def test_the_leanest_plan_at_a_large_head(live_bytes, trained, rows):
    """V = 202,048 and H = 6656 in bf16: half a GiB above the weight's gradient."""
    width, vocab, tracker = 6656, 202_048, live_bytes()
    with FakeTensorMode(), target_device("cuda"):
        hidden = torch.empty(rows, width, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(vocab, width, dtype=torch.bfloat16, requires_grad=trained)
        targets = torch.empty(rows, dtype=torch.int64)
        tracker.ignore(hidden, weight, targets)
        with tracker:
            linear_cross_entropy(hidden, weight, targets, memory_budget=1).backward()
    assert tracker.peak <= trained * vocab * width * 2 + 2**29
