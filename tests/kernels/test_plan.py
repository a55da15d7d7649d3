"""What a plan chooses, what it predicts, and that the engine allocates what was predicted."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from frostline.kernels import FusedLinearGRPOLoss, linear_logprob
from frostline.kernels.lm_head.plan import Needs, Problem, Strategy, forms_in_forward, make_plan, override
from frostline.kernels.matmul import target_device

GIB = 2**30
FROZEN, TRAINED, BIAS = Needs(hidden=True), Needs(hidden=True, weight=True), Needs(hidden=True, bias=True)


def problem(needs=FROZEN, **changes):
    base = {"rows": 8192, "hidden": 4096, "vocab": 128256, "dtype": torch.bfloat16, "device": "cuda", "loss_known": True}
    given = {**base, **changes}
    return Problem(needs=needs, **{"fusable": given["device"] == "cuda" and given["dtype"].itemsize == 2, **given})


@pytest.mark.parametrize(
    "wanted, needs, changes",
    [
        (Strategy.FORWARD, Needs(), {}),
        (Strategy.STREAM, FROZEN, {}),
        (Strategy.STREAM, FROZEN, {"loss_known": False}),
        (Strategy.BLOCKS, TRAINED, {}),
        (Strategy.BLOCKS, BIAS, {}),
        (Strategy.RECOMPUTE, TRAINED, {"loss_known": False}),
        (Strategy.RECOMPUTE, BIAS, {"loss_known": False}),
        (Strategy.RECOMPUTE, FROZEN, {"loss_known": False, "entropy": True}),
        (Strategy.BLOCKS, FROZEN, {"entropy": True}),
        (Strategy.BLOCKS, TRAINED, {"entropy": True}),
    ],
)
def test_strategy(wanted, needs, changes):
    assert make_plan(problem(needs, **changes)).strategy is wanted


def test_frozen_head_at_the_published_shape_needs_a_third_of_a_gibibyte():
    assert make_plan(problem()).peak_bytes <= 0.30 * GIB
    assert make_plan(problem(loss_known=False)).peak_bytes <= 0.30 * GIB
    assert make_plan(problem(TRAINED)).peak_bytes < 3.3 * GIB


@pytest.mark.parametrize("needs", [Needs(), FROZEN, TRAINED, BIAS])
@pytest.mark.parametrize("fusable", [False, True])
@pytest.mark.parametrize("device, dtype", [("cuda", torch.bfloat16), ("cuda", torch.float32), ("cpu", torch.float32)])
def test_never_above_the_unfused_path(needs, device, dtype, fusable):
    fusable &= device == "cuda" and dtype.itemsize == 2
    shapes = itertools.product([16, 256, 4096, 65536], [256, 4096, 6656], [32000, 128256, 262144], [False, True])
    for rows, hidden, vocab, known in shapes:
        given = problem(
            needs, rows=rows, hidden=hidden, vocab=vocab, loss_known=known, device=device, dtype=dtype, fusable=fusable
        )
        plan = make_plan(given)
        assert plan.peak_bytes <= given.unfused_bytes, plan


def test_tiles_do_not_grow_with_the_problem():
    """V = 262144, H = 5376 at 12k tokens: a tile in proportion to N * H once took 2 GiB."""
    for rows, needs in itertools.product((8192, 12288, 1 << 20), (Needs(), FROZEN)):
        plan = make_plan(problem(needs, rows=rows, hidden=5376, vocab=262144, fusable=False))
        assert plan.row_block * plan.vocab_tile * 4 <= GIB
        fused = make_plan(problem(needs, rows=rows, hidden=5376, vocab=262144))
        kept = 2 * fused.problem.gradient_bytes  # in the backward, beside its scaled copy
        assert fused.peak_bytes <= kept + rows * 128 + GIB // 2


def test_weight_gradient_takes_the_smaller_way():
    few, many = make_plan(problem(TRAINED, rows=2048)), make_plan(problem(TRAINED, rows=65536))
    assert few.keep_tiles and not many.keep_tiles
    for plan in (few, many):
        with override(keep_tiles=not plan.keep_tiles):
            assert make_plan(plan.problem).peak_bytes >= plan.peak_bytes


def test_budget_shrinks_the_tiles():
    free = make_plan(problem(TRAINED, rows=65536))
    tight = make_plan(problem(TRAINED, rows=65536, memory_budget=free.peak_bytes - GIB // 4))
    assert tight.row_block < free.row_block and tight.peak_bytes <= free.peak_bytes - GIB // 4


@pytest.mark.parametrize("name", ["row_block", "vocab_tile"])
def test_override_refuses_nothing(name):
    with pytest.raises(ValueError, match=name), override(**{name: 0}):
        pass


def test_whole_sequences_share_a_block():
    for group in (7, 1024, 1500):
        plan = make_plan(problem(TRAINED, rows=group * 8, group=group))
        assert plan.in_forward and plan.row_block % group == 0
    assert forms_in_forward(problem(TRAINED, group=1024))
    assert not forms_in_forward(problem(TRAINED, group=4096))
    assert not forms_in_forward(problem(FROZEN, group=1 << 20))


def test_no_sliver_at_the_end():
    plan = make_plan(problem(vocab=151936, fusable=False))
    tiles = -(-151936 // plan.vocab_tile)
    assert 151936 - (tiles - 1) * plan.vocab_tile > plan.vocab_tile // 2


@pytest.mark.parametrize("vocab", [128256, 151936, 262144, 32003])
@pytest.mark.parametrize("rows", [128, 1000, 3000, 4096, 8192, 50000])
def test_a_fused_tile_fills_the_multiprocessors(rows, vocab):
    """Output tiles of 128 x 256 on 132 multiprocessors: at most 6 % of their turns are idle, where there are turns enough."""
    plan = make_plan(problem(rows=rows, vocab=vocab))
    down, turns = -(-min(plan.row_block, rows) // 128), 0
    for first in range(0, vocab, plan.vocab_tile):
        across = -(-min(plan.vocab_tile, vocab - first) // 256)
        turns += -(-down * across // 132)
    ideal = down * -(-vocab // 256) / 132
    assert plan.vocab_tile % 256 == 0 or plan.vocab_tile == vocab
    assert turns <= 1.06 * ideal + 1


def run_grpo(rows, hidden, vocab, dtype, trained, bias, active_rows=None, **more):
    states = torch.randn(1, rows, hidden, dtype=dtype).requires_grad_()
    weight = torch.randn(vocab, hidden, dtype=dtype).requires_grad_(trained)
    offset = torch.randn(vocab, dtype=dtype).requires_grad_(trained) if bias else None
    targets, mask = torch.randint(vocab, (1, rows)), torch.ones(1, rows)
    loss = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, **more)

    def step():
        loss(states, weight, targets, mask, torch.ones(1), offset, active_rows=active_rows)[0].backward()

    return step, (states, weight, *(() if offset is None else (offset,)))


CASES = [(FROZEN, False), (TRAINED, False), (Needs(True, True, True), True)]


@pytest.mark.parametrize("needs, bias", CASES)
@pytest.mark.parametrize("dtype, device", [(torch.bfloat16, "cuda"), (torch.float32, "cuda"), (torch.bfloat16, "cpu")])
@pytest.mark.parametrize("rows", [2048, 16384])
def test_predicted_peak_is_what_the_engine_allocates(live_bytes, needs, bias, dtype, device, rows):
    """Full size on fake tensors: the prediction is an upper bound, and not more than a tenth above."""
    hidden, vocab = (4096, 128256) if device == "cuda" else (512, 8000)
    with FakeTensorMode(), target_device(device):
        step, _ = run_grpo(rows, hidden, vocab, dtype, needs.weight, bias)
        with live_bytes() as tracker:
            step()
    masked = True  # fake tensors cannot be asked whether every row counts
    given = {"rows": rows, "hidden": hidden, "vocab": vocab, "dtype": dtype, "device": device}
    plan = make_plan(problem(needs, masked=masked, **given))
    slack = 2**20 if device == "cuda" else 2**24  # a CPU widens its operands in slabs of at most 16 MiB
    assert tracker.peak <= plan.peak_bytes <= 1.1 * tracker.peak + slack


@pytest.mark.parametrize("more", [{"entropy_coef": 0.1}, {"report_entropy": True}], ids=str)
@pytest.mark.parametrize("needs", [FROZEN, TRAINED])
def test_predicted_peak_with_entropies(live_bytes, needs, more):
    rows, hidden, vocab, dtype = 8192, 1024, 64000, torch.bfloat16
    with FakeTensorMode(), target_device("cuda"):
        step, _ = run_grpo(rows, hidden, vocab, dtype, needs.weight, False, **more)
        with live_bytes() as tracker:
            step()
    entropy = "entropy_coef" in more
    plan = make_plan(problem(needs, rows=rows, hidden=hidden, vocab=vocab, entropy=entropy, masked=True))
    assert tracker.peak <= plan.peak_bytes <= 1.1 * tracker.peak + 2**20


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("needs", [Needs(), FROZEN, TRAINED])
@pytest.mark.parametrize("rows", [2048, 65536])
def test_predicted_peak_with_an_unknown_loss(live_bytes, needs, entropy, rows):
    hidden, vocab, dtype = 1024, 64000, torch.bfloat16
    with FakeTensorMode(), target_device("cuda"):
        states = torch.randn(rows, hidden, dtype=dtype).requires_grad_(needs.hidden)
        weight = torch.randn(vocab, hidden, dtype=dtype).requires_grad_(needs.weight)
        targets = torch.randint(vocab, (rows,))
        with live_bytes() as tracker:
            found = linear_logprob(states, weight, targets, return_entropy=entropy)
            if needs.any:
                (found[0].sum() + found[1].sum() if entropy else found.sum()).backward()
    plan = make_plan(problem(needs, rows=rows, hidden=hidden, vocab=vocab, entropy=entropy, loss_known=False))
    assert tracker.peak <= plan.peak_bytes <= 1.1 * tracker.peak + 2**20


@pytest.mark.parametrize("trained_bias", [False, True])
def test_frozen_weight_allocates_nothing_of_its_size(live_bytes, trained_bias):
    """At no moment, forward or backward, on real tensors."""
    rows, hidden, vocab = 24, 32, 512
    step, (_, weight, bias) = run_grpo(rows, hidden, vocab, torch.float32, False, True)
    bias.requires_grad_(trained_bias)
    with override(row_block=8, vocab_tile=128), live_bytes() as tracker:
        step()
    assert weight.grad is None and (bias.grad is not None) == trained_bias
    assert max(tracker.sizes) < vocab * hidden * 4
    step, (_, weight, _) = run_grpo(rows, hidden, vocab, torch.float32, True, True)
    with override(row_block=8, vocab_tile=128), live_bytes() as tracker:
        step()
    assert max(tracker.sizes) >= vocab * hidden * 4  # the tracker does see one where there is one
