"""What `linear_cross_entropy` costs: products, allocations and questions to the device, counted on tensors without data."""

from __future__ import annotations

import itertools

import pytest
import torch
from cross_entropy_reference import EVERYTHING, Problem
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frostline.kernels import linear_cross_entropy
from frostline.kernels.lm_head.plan import override
from frostline.kernels.matmul import target_device

ROWS, WIDTH, VOCAB = 64, 512, 16_384
TRAINED, FROZEN = (True, True, True), (True, False, False)
OPTIONS = {
    "plain": {},
    "smooth": {"label_smoothing": 0.1},
    "weights of classes": {"ce_weight": True, "label_smoothing": 0.1},
    "z loss": {"lse_square_scale": 0.1},
    "capped": {"softcap": 30.0, "logit_scale": 0.2},
    "token scaling": {"use_token_scaling": True},
    "sum": {"reduction": "sum"},
    "everything": {"label_smoothing": 0.1, "lse_square_scale": 0.1, "softcap": 30.0, **EVERYTHING},
}
KINDS = pytest.mark.parametrize("kind", ["cpu", "cuda"])


def step(needs, *, dtype=torch.bfloat16, rows=ROWS, vocab=VOCAB, bias=True, tracker=None, **options):
    """A step on tensors without data: their sizes are all that there is of them. Returns the leaves."""
    problem = Problem((rows,), WIDTH, vocab, dtype, needs=needs, bias=bias)
    if options.get("ce_weight") is True:
        options["ce_weight"] = torch.rand(vocab)
    leaves = [leaf for leaf in problem.leaves() if leaf is not None]
    if tracker is not None:
        tracker.ignore(*leaves)
        tracker.__enter__()
    found = linear_cross_entropy(leaves[0], leaves[1], problem.targets, leaves[2] if bias else None, **options)
    loss = found if isinstance(found, torch.Tensor) else found.loss
    if any(needs):
        loss.backward(torch.ones_like(loss))
    if tracker is not None:
        tracker.__exit__(None, None, None)
    return leaves


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("needs", [TRAINED, FROZEN], ids=["trainable", "frozen"])
def test_nothing_is_asked_of_the_device(needs, options, reduction):
    """A value that is read stalls the device; a tensor without data has none to give."""
    given = {"reduction": reduction, **OPTIONS[options]}
    for declared in (None, 40, ROWS):
        with FakeTensorMode(), target_device("cuda"):
            leaves = step(needs, active_rows=declared, **given)
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
    with FakeTensorMode(), target_device(kind), FlopCounterMode(display=False) as counter:
        step(needs, reduction=reduction, memory_budget=budget, **EVERYTHING)
    assert counter.get_total_flops() == products * 2 * ROWS * WIDTH * VOCAB


@pytest.mark.parametrize("options", list(OPTIONS))
@KINDS
def test_no_option_costs_a_product(kind, options):
    for needs, products in ((FROZEN, 2), (TRAINED, 3)):
        with FakeTensorMode(), target_device(kind), FlopCounterMode(display=False) as counter:
            step(needs, **OPTIONS[options])
        assert counter.get_total_flops() <= products * 2 * ROWS * WIDTH * VOCAB


@pytest.mark.parametrize("declared, share", [(None, 1.0), (32, 0.5), (0, 0.0)])
def test_ignored_rows_are_skipped_where_their_number_is_declared(declared, share):
    for needs, products in ((FROZEN, 2), (TRAINED, 3)):
        with FakeTensorMode(), target_device("cuda"), FlopCounterMode(display=False) as counter:
            step(needs, active_rows=declared)
        assert counter.get_total_flops() == share * products * 2 * ROWS * WIDTH * VOCAB


@pytest.mark.parametrize("budget", [None, 1])
@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("needs", [FROZEN, (True, False, True), (False, False, True)], ids=["frozen", "bias too", "bias alone"])
def test_a_frozen_weight_has_no_allocation_of_its_size(live_bytes, needs, options, budget):
    """Not at any moment, whichever options: frozen means that nothing of the size of the weight is there but the weight."""
    for kind, reduction in itertools.product(("cpu", "cuda"), ("mean", "none")):
        with FakeTensorMode(), target_device(kind), override(row_block=16, vocab_tile=2048):
            tracker = live_bytes()
            given = {"reduction": reduction} | OPTIONS[options]
            step(needs, dtype=torch.float32, tracker=tracker, memory_budget=budget, **given)
        assert max(tracker.sizes) < VOCAB * WIDTH * 4 // 4
        assert tracker.peak < VOCAB * WIDTH * 4


@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_of_gradients_without_grad(live_bytes, mode, options):
    """Trained leaves, and nobody asks for their gradients: one product, and no room for a gradient of the hidden states."""
    rows, vocab = 2048, 512
    with FakeTensorMode(), target_device("cuda"), override(row_block=64, vocab_tile=256), mode():
        tracker = live_bytes()
        with FlopCounterMode(display=False) as counter:
            step((False,) * 3, rows=rows, vocab=vocab, dtype=torch.float32, tracker=tracker, **OPTIONS[options])
    assert counter.get_total_flops() == 2 * rows * WIDTH * vocab
    assert tracker.peak < rows * WIDTH * 4 // 4


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
    """And the leanest plan needs little more than the gradient of the weight."""
    rows, vocab, peaks = 4096, 65_536, []
    weight = vocab * WIDTH * 2
    for budget in (None, 2**30, 2**28, 2**27, 1):
        with FakeTensorMode(), target_device("cuda"):
            tracker = live_bytes()
            step(TRAINED, rows=rows, vocab=vocab, tracker=tracker, memory_budget=budget)
        peaks.append(tracker.peak)
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[1] <= 2**30 and peaks[2] <= 2**28
    assert peaks[-1] <= weight + 2**26


@pytest.mark.parametrize("rows", [1024, 2048, 4096, 8192, 16_384])
@pytest.mark.parametrize("needs", [(True, True), (True, False)], ids=["trainable", "frozen"])
def test_at_the_published_head_the_peak_is_below_plain_codes(live_bytes, needs, rows):
    """V = 202,048 and H = 6656 in bf16: at every length, head frozen and trainable; and the leanest plan needs half a GiB
    above the weight's gradient at most."""
    width, vocab = 6656, 202_048

    def peak(function):
        with FakeTensorMode(), target_device("cuda"):
            hidden = torch.empty(rows, width, dtype=torch.bfloat16, requires_grad=needs[0])
            weight = torch.empty(vocab, width, dtype=torch.bfloat16, requires_grad=needs[1])
            targets, tracker = torch.empty(rows, dtype=torch.int64), live_bytes()
            tracker.ignore(hidden, weight, targets)
            with tracker:
                function(hidden, weight, targets).backward()
        return tracker.peak

    def plain(hidden, weight, targets):
        return torch.nn.functional.cross_entropy((hidden @ weight.t()).float(), targets)

    assert peak(linear_cross_entropy) <= peak(plain)
    lean = peak(lambda *given: linear_cross_entropy(*given, memory_budget=1))
    gradients = needs[1] * vocab * width * 2 + rows * width * 2
    assert lean <= gradients + 2**29 + rows * width * 4
