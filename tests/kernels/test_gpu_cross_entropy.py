"""`linear_cross_entropy` on a real device: compiled kernels against float64, no waiting, and the peak of the plan."""

from __future__ import annotations

import warnings

import pytest
import torch
from cross_entropy_reference import EVERYTHING, Problem

from frostline.kernels import Needs, linear_cross_entropy, plan
from frostline.kernels.lm_head.plan import override

pytestmark = pytest.mark.gpu

TRAINED, FROZEN = (True, True, True), (True, False, False)
HEADS = pytest.mark.parametrize("needs", [TRAINED, FROZEN], ids=["trainable", "frozen"])
LUCK = {torch.bfloat16: 1e-4, torch.float16: 1e-4, torch.float32: 1e-5}  # sums in another order than eager code's
TILES = {"row_block": 128, "vocab_tile": 2048}
OPTIONS = {
    "plain": {},
    "sum, smooth": {"reduction": "sum", "label_smoothing": 0.1},
    "z loss, token scaling": {"lse_square_scale": 0.1, "use_token_scaling": True},
    "weights of classes, smooth": {"ce_weight": True, "label_smoothing": 0.1},
    "capped and scaled": {"softcap": 3.0, "logit_scale": 0.4, "ignore_index": 7},
    "of each row, all": {
        "reduction": "none",
        "label_smoothing": 0.1,
        "lse_square_scale": 0.1,
        "softcap": 30.0,
        "ce_weight": True,
        "use_token_scaling": True,
    },
}
WAYS = {
    "tiles kept": (TRAINED, {"keep_tiles": True}, {}),
    "accumulator": (TRAINED, {"keep_tiles": False}, {}),
    "recompute": (TRAINED, {}, {"memory_budget": 1}),
    "frozen": (FROZEN, {}, {}),
    "frozen, lean": (FROZEN, {}, {"memory_budget": 1}),
}


def problem_of(dtype=torch.bfloat16, **options):
    return Problem((300,), 128, 5003, dtype, device="cuda", **options)


@pytest.mark.parametrize(
    "dtype, options",
    [
        *((torch.bfloat16, name) for name in OPTIONS),
        *((torch.float16, name) for name in ("plain", "of each row, all")),
        *((torch.float32, name) for name in ("capped and scaled", "weights of classes, smooth")),
    ],
)
@HEADS
def test_every_option(needs, dtype, options):
    """A third of the rows ignored, NaN in them, and several blocks and tiles; fused kernels in 16 bits, tiles alone in fp32."""
    problem = problem_of(dtype, needs=needs, ignored=0.3, **OPTIONS[options])
    problem.hidden[~problem.counted] = float("nan")
    with override(**TILES):
        problem.check(luck=LUCK[dtype])


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("declared", [False, True])
def test_every_way(way, declared):
    needs, sizes, given = WAYS[way]
    problem = problem_of(needs=needs, ignored=0.3, label_smoothing=0.1, lse_square_scale=0.1)
    rows = int(problem.counted.sum()) if declared else None
    with override(**TILES, **sizes):
        problem.check(problem.ours(active_rows=rows, **given))


@HEADS
def test_a_column_and_a_row_that_are_no_multiple_of_anything(needs):
    for rows, width, vocab in ((1, 8, 2), (3, 72, 257), (129, 64, 131), (5, 60, 1001)):
        problem = Problem((rows,), width, vocab, torch.bfloat16, needs=needs, device="cuda", label_smoothing=0.1)
        problem.targets[-1] = vocab - 1
        problem.check(luck=2**-7)


@HEADS
@pytest.mark.parametrize("copies", [(5, 4000), (130, 2047, 2048, 5002)], ids=str)
def test_the_first_of_equal_maxima(copies, needs):
    """Whole numbers, so that equal rows give equal logits however they are summed."""
    for dtype in (torch.bfloat16, torch.float32):
        hidden = torch.randint(1, 4, (300, 64), device="cuda").to(dtype).requires_grad_()
        weight = torch.randint(-1, 2, (5003, 64), device="cuda").to(dtype)
        weight[list(copies)] = 2.0
        weight.requires_grad_(needs[1])
        targets = torch.full((300,), max(copies), device="cuda")
        with override(**TILES):
            found = linear_cross_entropy(hidden, weight, targets, **EVERYTHING)
        assert (found.predicted_tokens == min(copies)).all() and found.token_accuracy == 0


@HEADS
def test_all_labels_ignored(needs):
    for reduction in ("mean", "sum", "none"):
        problem = problem_of(needs=needs, reduction=reduction)
        problem.targets.fill_(-100)
        found = problem.ours()
        assert not found.output.loss.any() and (found.output.predicted_tokens == -1).all()
        for gradient, need in zip(found.gradients, needs, strict=True):
            assert (gradient is not None) == need and (gradient is None or not gradient.any())


def waits(step):
    """How often a step waits for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)  # not that the mode is a prototype


@pytest.mark.parametrize("options", ["plain", "weights of classes, smooth", "of each row, all"])
@HEADS
def test_the_device_is_waited_for_only_where_that_is_wished(needs, options):
    problem = problem_of(needs=needs, ignored=0.3, **OPTIONS[options])
    leaves, count = problem.leaves(), int(problem.counted.sum())

    def step(rows):
        for leaf in leaves:
            leaf.grad = None
        found = linear_cross_entropy(
            leaves[0], leaves[1], problem.targets, leaves[2], **problem.options, **EVERYTHING, active_rows=rows
        )
        found.loss.backward(problem.upstream)

    for rows, expected in ((None, 0), (count, 0), (count + 9, 0), ("ask", 1)):
        step(rows)  # compiles what it needs
        assert waits(lambda rows=rows: step(rows)) == expected, rows


@pytest.mark.parametrize("memory_budget", [None, 1])
@pytest.mark.parametrize("trained", [False, True])
def test_the_peak_is_what_the_plan_predicts(trained, memory_budget):
    rows, width, vocab = 4096, 1024, 64_000
    hidden = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(vocab, width, device="cuda", dtype=torch.bfloat16).mul_(0.03).requires_grad_(trained)
    targets = torch.randint(vocab, (rows,), device="cuda")

    def step():
        hidden.grad = weight.grad = None
        linear_cross_entropy(hidden, weight, targets, memory_budget=memory_budget).backward()

    step()
    hidden.grad = weight.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    chosen = plan(rows, width, vocab, torch.bfloat16, Needs(True, trained), memory_budget, loss_known=True, masked=True)
    assert torch.cuda.max_memory_allocated() - before <= 1.1 * chosen.peak_bytes


def test_other_lengths_compile_nothing():
    """A batch of another length is as fast as any: the first step of it compiles no kernel."""
    from frostline.kernels.lm_head import fused_triton, tiles_triton

    def compiled():
        kernels = [k for module in (fused_triton, tiles_triton) for k in vars(module).values() if hasattr(k, "device_caches")]
        return sum(len(kernel.device_caches[torch.cuda.current_device()][0]) for kernel in kernels)

    def step(rows):
        for needs in (FROZEN, TRAINED):
            problem = Problem((rows,), 128, 5008, torch.bfloat16, needs=needs, device="cuda", **OPTIONS["sum, smooth"])
            problem.ours()

    step(1024)
    before = compiled()
    assert before > 3
    for rows in (1000, 777, 1536, 16, 300):
        step(rows)
    assert compiled() == before
