"""What a plan chooses, what it predicts, and that the engine allocates what was predicted."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frostline.kernels import FusedLinearGRPOLoss, alternatives, linear_cross_entropy, linear_logprob, plan
from frostline.kernels.lm_head import known_loss
from frostline.kernels.lm_head.alternatives import format_bytes
from frostline.kernels.lm_head.fused import fusable
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
    for chosen in (few, many):
        with override(keep_tiles=not chosen.keep_tiles):
            assert make_plan(chosen.problem).peak_bytes >= chosen.peak_bytes


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


# Products with the weight, counted by hand: the logits (again where they are recomputed), and one for each gradient.
HAND_COUNT = [
    (Needs(), {}, None, 1),
    (FROZEN, {}, None, 2),
    (FROZEN, {"loss_known": False}, None, 2),
    (FROZEN, {"loss_known": False, "entropy": True}, None, 3),
    (FROZEN, {"entropy": True}, None, 2),
    (TRAINED, {}, None, 3),
    (TRAINED, {"entropy": True}, None, 3),
    (TRAINED, {}, 1, 4),
    (TRAINED, {"loss_known": False}, None, 4),
    (Needs(weight=True), {}, None, 2),
    (Needs(weight=True), {"loss_known": False}, None, 3),
    (BIAS, {}, None, 2),
    (BIAS, {"loss_known": False}, None, 3),
    (Needs(bias=True), {}, None, 1),
    (Needs(bias=True), {"loss_known": False}, None, 2),
]


@pytest.mark.parametrize("needs, changes, budget, products", HAND_COUNT)
def test_products_and_flops(needs, changes, budget, products):
    chosen = make_plan(problem(needs, memory_budget=budget, **changes))
    assert chosen.products == products
    assert chosen.flops == products * 2 * 8192 * 4096 * 128256


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("needs, changes, budget, products", HAND_COUNT)
def test_flops_are_those_of_the_engine(needs, changes, budget, products, device):
    """As torch counts them while a step runs: on a CPU the products, under a GPU's branches the fused ops as well."""
    rows, hidden, vocab, known, entropy = 32, 16, 192, changes.get("loss_known", True), changes.get("entropy", False)
    states, weight = (torch.randn(n, hidden, dtype=torch.bfloat16) for n in (rows, vocab))
    offset = torch.randn(vocab, dtype=torch.bfloat16).requires_grad_(needs.bias)
    states.requires_grad_(needs.hidden), weight.requires_grad_(needs.weight)
    targets = torch.randint(vocab, (1, rows))
    with FlopCounterMode(display=False) as counter, target_device(device):
        if known and needs.any:
            loss = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, entropy_coef=0.1 * entropy, memory_budget=budget)(
                states[None], weight, targets, torch.ones(1, rows), torch.ones(1), offset
            )[0]
        else:
            found = linear_logprob(states[None], weight, targets, offset, return_entropy=True, entropy_in_loss=entropy)
            loss = found[0].sum() + entropy * found[1].sum() if entropy else found[0].sum()
        if needs.any:
            loss.backward()
    assert counter.get_total_flops() == products * 2 * rows * hidden * vocab


@pytest.mark.parametrize("rows, budget", [(2048, 1200 * 2**20), (8192, 2 * GIB), (8192, GIB), (6000, GIB)])
def test_a_known_loss_is_recomputed_under_a_tight_budget(live_bytes, strategies, rows, budget):
    """Four products instead of three, and what is predicted is what is allocated."""
    hidden, vocab = 4096, 128256
    asked = problem(TRAINED, rows=rows, masked=True, memory_budget=budget)
    chosen = make_plan(asked)
    assert chosen.strategy is Strategy.RECOMPUTE and not chosen.in_forward
    assert chosen.fits == (budget > GIB) and make_plan(replace(asked, memory_budget=None)).peak_bytes > budget
    with FakeTensorMode(), target_device("cuda"):
        step, _ = run_grpo(rows, hidden, vocab, torch.bfloat16, True, False, memory_budget=budget)
        with live_bytes() as tracker:
            step()
    assert strategies == [Strategy.RECOMPUTE]
    assert tracker.peak <= chosen.peak_bytes <= 1.1 * tracker.peak + 2**20


@pytest.mark.parametrize("budget", [1, 2**14, 2**20])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_budget_changes_no_result(known, trained, budget):
    found = []
    for memory_budget in (None, budget):
        torch.manual_seed(0)
        states, weight = torch.randn(1, 24, 16).requires_grad_(), torch.randn(600, 16).requires_grad_(trained)
        targets, ones = torch.randint(600, (1, 24)), torch.ones(1, 24)
        if known:
            loss = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, memory_budget=memory_budget)
            value = loss(states, weight, targets, ones, torch.ones(1))[0]
        else:
            value = linear_logprob(states, weight, targets, memory_budget=memory_budget).mean()
        value.backward()
        found.append([value, states.grad, *([weight.grad] if trained else [])])
    torch.testing.assert_close(*found)


def test_in_fp32_a_frozen_head_is_recomputed_where_two_hidden_gradients_are_too_much():
    free = make_plan(problem(dtype=torch.float32, fusable=False))
    assert free.strategy is Strategy.STREAM
    tight = make_plan(replace(free.problem, memory_budget=2**28))
    assert tight.strategy is Strategy.RECOMPUTE and tight.fits and tight.products == 3


@pytest.mark.parametrize(
    "changes, error, says",
    [
        ({"rows": -1}, ValueError, "rows: got -1, wanted at least 0"),
        ({"hidden": 0}, ValueError, "hidden: got 0, wanted at least 1"),
        ({"vocab": 0}, ValueError, "vocab: got 0, wanted at least 1"),
        ({"group": 0}, ValueError, "group: got 0, wanted at least 1"),
        ({"memory_budget": 0}, ValueError, "memory_budget: got 0, wanted a positive number of bytes, or None"),
        ({"dtype": torch.int8}, TypeError, "dtype: got torch.int8, wanted one of torch.bfloat16"),
        ({"device": "tpu"}, ValueError, "device: got 'tpu', wanted one of cuda, cpu"),
    ],
)
def test_plan_refuses(changes, error, says):
    with pytest.raises(error) as raised:
        plan(**{"rows": 8, "hidden": 4, "vocab": 16, **changes})
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize("call", [lambda: FusedLinearGRPOLoss(memory_budget=0), lambda: FusedLinearGRPOLoss(memory_budget=-5)])
def test_the_module_refuses_a_budget_at_once(call):
    with pytest.raises(ValueError, match="memory_budget: got"):
        call()


def test_plan_at_the_published_shape():
    frozen = plan(8192, 4096, 128256)
    assert (frozen.strategy, frozen.products, frozen.fits) == (Strategy.STREAM, 2, True)
    trained = plan(8192, 4096, 128256, needs_grad=TRAINED, loss_known=True, memory_budget=2 * GIB)
    assert (trained.strategy, trained.products, trained.fits) == (Strategy.RECOMPUTE, 4, True)
    assert plan(0, 4096, 128256).fits and plan(8192, 4096, 128256, torch.float16, loss_known=True).in_forward is False


@pytest.mark.parametrize(
    "needs, changes, says",
    [
        (FROZEN, {}, "Stream runs (2 products and "),
        (TRAINED, {}, "the fewest products, and of the forms that need as few the smaller."),
        (
            TRAINED,
            {"memory_budget": 2 * GIB},
            "blocks with 3 products needs 3.00 GiB at the least, more than the budget of 2.00 GiB.",
        ),
        (
            TRAINED,
            {"memory_budget": GIB},
            "Recompute runs: nothing fits the budget of 1.00 GiB, and it needs least (4 products",
        ),
        (TRAINED, {"loss_known": False}, "nothing else gives less than it computes"),
    ],
)
def test_why(needs, changes, says):
    assert says in alternatives(problem(needs, **changes)).why


@pytest.mark.parametrize(
    "needs, changes, strategy, note",
    [
        (Needs(), {}, Strategy.STREAM, "no gradient is needed"),
        (FROZEN, {}, Strategy.BLOCKS, "as many products as stream, and all logits of a block of rows in memory"),
        (FROZEN, {"entropy": True}, Strategy.STREAM, "a gradient goes through the entropy"),
        (FROZEN, {"spread": True}, Strategy.STREAM, "a gradient goes through a sum of the logits"),
        (TRAINED, {}, Strategy.STREAM, "the weight is trained"),
        (BIAS, {}, Strategy.STREAM, "the bias is trained"),
        (TRAINED, {"loss_known": False}, Strategy.BLOCKS, "the loss is not known when the forward runs"),
        (
            TRAINED,
            {"group": 16384, "rows": 16384},
            Strategy.BLOCKS,
            "16384 rows that are judged together are more than a block of rows holds",
        ),
        (
            TRAINED,
            {"dtype": torch.float16},
            Strategy.BLOCKS,
            "small fp16 gradients only survive once the loss scale has been applied",
        ),
    ],
)
def test_why_not(needs, changes, strategy, note):
    (option,) = (option for option in alternatives(problem(needs, **changes)).options if option.name == strategy)
    assert option.plan is None and option.note.startswith(note)


@pytest.mark.parametrize(
    ("size", "said"),
    [(1023, "1023 B"), (2**29, "512 MiB"), (3 * 2**30, "3.00 GiB"), (2**40, "1.00 TiB"), (3 * 2**39, "1.50 TiB")],
)
def test_sentences_have_the_units_of_the_table(size, said):
    assert format_bytes(size) == said


@pytest.mark.parametrize("capability, fused", [((9, 0), True), ((8, 0), False), ((8, 9), False)])
def test_the_generation_of_a_gpu_that_is_not_there_is_that_of_the_target(capability, fused):
    hidden, weight = torch.empty(8, 64, dtype=torch.bfloat16), torch.empty(32, 64, dtype=torch.bfloat16)
    assert not fusable(hidden, weight)
    with target_device("cuda", capability=capability):
        assert fusable(hidden, weight) is fused
    with target_device("cuda"):
        assert fusable(hidden, weight)


@pytest.mark.parametrize(
    ("needs", "strategy", "says"),
    [
        (
            FROZEN,
            Strategy.STREAM,
            r"nothing fits the budget of 129 MiB, and it needs least \(2 products and 129 MiB, 1 B more\)\.$",
        ),
        (
            TRAINED,
            Strategy.BLOCKS,
            r"blocks with 3 products needs 3.00 GiB at the least, 1 B more than the budget of 3.00 GiB\.$",
        ),
    ],
)
def test_a_budget_that_is_missed_by_less_than_is_shown_says_by_how_much(needs, strategy, says):
    """Not that 129 MiB do not fit 129 MiB."""
    tight = alternatives(problem(needs, memory_budget=1)).options
    least = min(one.plan.peak_bytes for one in tight if one.plan is not None and one.plan.strategy is strategy)
    assert re.search(says, alternatives(problem(needs, memory_budget=least - 1)).why)


@pytest.mark.parametrize("needs", [FROZEN, TRAINED])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"return_token_accuracy": True}])
def test_plan_asks_what_cross_entropy_asks(monkeypatch, needs, options):
    asked = []
    monkeypatch.setattr(known_loss, "make_plan", lambda problem, **how: asked.append(problem) or make_plan(problem, **how))
    hidden = torch.randn(6, 8, requires_grad=True)
    linear_cross_entropy(hidden, torch.randn(10, 8, requires_grad=needs.weight), torch.tensor([1, 2, 3, 4, 5, 6]), **options)
    wants = {"spread": "label_smoothing" in options, "best": "return_token_accuracy" in options}
    chosen = plan(6, 8, 10, torch.float32, needs, device="cpu", loss_known=True, told_again=True, **wants)
    assert chosen.problem == replace(asked[0], masked=False)
