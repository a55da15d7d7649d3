"""`linear_logprob` against float64: every combination of needs, transforms, masks, layouts and dtypes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from frostline.kernels import linear_logprob
from frostline.kernels.lm_head.plan import Strategy, override
from frostline.kernels.matmul import target_device

HIDDEN, VOCAB = 12, 300
MANY_TILES = {"row_block": 4, "vocab_tile": 128}  # 300 is more than one tile and no multiple of it
TRANSFORMS = [{}, {"temperature": 0.6, "softcap": 3.0, "logit_scale": 0.7}]


def eager(hidden, weight, targets, bias=None, *, temperature=1.0, softcap=None, logit_scale=1.0, dtype=torch.float64):
    """(logp, entropy) as people write it, in `dtype`."""
    logits = linear(hidden, weight, bias).to(dtype) * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = (logits / temperature).log_softmax(-1)
    return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


def inputs(dtype=torch.float64, shape=(2, 7), needs=(True, True, True), bias=True, vocab=VOCAB):
    hidden = torch.randn(*shape, HIDDEN, dtype=dtype).requires_grad_(needs[0])
    weight = torch.randn(vocab, HIDDEN, dtype=dtype).requires_grad_(needs[1])
    offset = torch.randn(vocab, dtype=dtype).requires_grad_(needs[2]) if bias else None
    return hidden, weight, torch.randint(vocab, shape), offset


def gradients(tensors):
    return [None if t is None else t.grad for t in tensors]


@pytest.fixture(params=[{}, MANY_TILES], ids=["one tile", "many tiles"])
def tiling(request):
    with override(**request.param):
        yield


@pytest.mark.parametrize("transform", TRANSFORMS, ids=["plain", "softcap"])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)))
@pytest.mark.usefixtures("tiling")
def test_every_combination_of_needs(needs, entropy, transform):
    hidden, weight, targets, bias = inputs(needs=needs)
    doubles = [t.detach().clone().requires_grad_(t.requires_grad) for t in (hidden, weight, bias)]
    found = linear_logprob(hidden, weight, targets, bias, return_entropy=entropy, **transform)
    wanted = eager(doubles[0], doubles[1], targets, doubles[2], **transform)
    found = found if entropy else (found,)
    for ours, theirs in zip(found, wanted, strict=False):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    if any(needs):
        upstream = [torch.randn(targets.shape, dtype=torch.float64) for _ in found]
        torch.autograd.backward(found, upstream)
        torch.autograd.backward(wanted[: len(found)], upstream)
    for ours, theirs in zip(gradients((hidden, weight, bias)), gradients(doubles), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("differentiated", ["logp", "entropy", "both"])
@pytest.mark.parametrize("transform", TRANSFORMS, ids=["plain", "softcap"])
@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)))
@pytest.mark.usefixtures("tiling")
def test_an_entropy_that_nobody_plans_to_differentiate(needs, transform, differentiated):
    """It is right all the same, and so is a gradient that comes after all; a second backward gives it again."""
    hidden, weight, targets, bias = inputs(needs=needs)
    doubles = [t.detach().clone().requires_grad_(t.requires_grad) for t in (hidden, weight, bias)]
    found = linear_logprob(hidden, weight, targets, bias, return_entropy=True, entropy_in_loss=False, **transform)
    wanted = eager(doubles[0], doubles[1], targets, doubles[2], **transform)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    if not any(needs):
        return
    chosen = {"logp": [0], "entropy": [1], "both": [0, 1]}[differentiated]
    upstream = [torch.randn(targets.shape, dtype=torch.float64) for _ in chosen]
    leaves, their_leaves = ([leaf for leaf in group if leaf.requires_grad] for group in ((hidden, weight, bias), doubles))
    theirs = torch.autograd.grad([wanted[i] for i in chosen], their_leaves, upstream)
    for _ in range(2):
        ours = torch.autograd.grad([found[i] for i in chosen], leaves, upstream, retain_graph=True)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "options, differentiated, products",
    [
        ({}, False, 2),
        ({"return_entropy": True, "entropy_in_loss": False}, False, 2),
        ({"return_entropy": True, "entropy_in_loss": False}, True, 4),
        ({"return_entropy": True}, True, 3),
    ],
)
def test_products_with_a_frozen_head(options, differentiated, products):
    hidden, weight, targets = torch.randn(24, 8, requires_grad=True), torch.randn(40, 8), torch.randint(40, (24,))
    with FlopCounterMode(display=False) as counter:
        found = linear_logprob(hidden, weight, targets, **options)
        logp, entropy = found if options else (found, None)
        (logp.sum() + entropy.sum() if differentiated else logp.sum()).backward()
    assert counter.get_total_flops() == products * 2 * 24 * 8 * 40


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_gradcheck(entropy, trained):
    hidden, weight, targets, bias = inputs(needs=(True, trained, trained), shape=(5,), vocab=70)
    active = torch.tensor([True, False, True, True, False])
    leaves = (hidden, weight, bias) if trained else (hidden,)

    def function(*given):
        used = given if trained else (given[0], weight, bias)
        return linear_logprob(used[0], used[1], targets, used[2], return_entropy=entropy, active=active, softcap=2.0)

    with override(row_block=2, vocab_tile=64):
        assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.usefixtures("tiling")
def test_error_is_at_most_plain_torch(dtype, trained):
    """Against float64 of the same rounded inputs, relative to what plain torch in the same dtype gets wrong."""
    hidden, weight, targets, bias = inputs(dtype, shape=(64,), needs=(True, trained, trained), vocab=900)
    upstream = torch.randn(64)

    def run(function, cast):
        leaves = [t.detach().to(cast).requires_grad_(t.requires_grad) for t in (hidden, weight, bias)]
        logp = function(leaves[0], leaves[1], targets, leaves[2])
        logp.backward(upstream.to(logp.dtype))
        return [logp.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)]

    ours = run(linear_logprob, dtype)
    plain = run(lambda *args: eager(*args, dtype=torch.float32)[0], dtype)
    exact = run(lambda *args: eager(*args)[0], torch.float64)
    assert (ours[0] - exact[0]).abs().max() < 1e-5
    for found, yardstick, wanted in zip(ours, plain, exact, strict=True):
        assert found.dtype == yardstick.dtype
        assert (found - wanted).norm() <= 1.5 * (yardstick - wanted).norm() + 1e-6 * wanted.norm()


@pytest.mark.parametrize("blocks", [1, 16, 64])
def test_weight_gradient_error_does_not_grow_with_the_tiles(blocks):
    """Summed in bf16 over many tiles, it does."""
    rows = 256
    hidden, weight = torch.randn(rows, 32, dtype=torch.bfloat16), torch.randn(64, 32, dtype=torch.bfloat16)
    targets, upstream = torch.randint(64, (rows,)), torch.rand(rows)
    exact = weight.double().requires_grad_()
    eager(hidden.double(), exact, targets)[0].backward(upstream.double())
    weight.requires_grad_()
    with override(row_block=rows // blocks, vocab_tile=64):
        linear_logprob(hidden, weight, targets).backward(upstream)
    rounding = (exact.grad.to(torch.bfloat16).double() - exact.grad).norm()
    assert (weight.grad.double() - exact.grad).norm() <= 1.1 * rounding


@pytest.mark.parametrize("declared", [None, 9, 12])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.usefixtures("tiling")
def test_masked_rows_hold_garbage(trained, declared):
    """Exact zeros out, zero gradient, and NaN in them reaches nothing."""
    hidden, weight, targets, bias = inputs(torch.float32, needs=(True, trained, trained), shape=(14,))
    active = torch.zeros(14, dtype=torch.bool)
    active[torch.randperm(14)[:9]] = True
    with torch.no_grad():
        hidden[~active] = float("nan")
        targets[~active] = -100
    logp, entropy = linear_logprob(hidden, weight, targets, bias, active=active, active_rows=declared, return_entropy=True)
    assert torch.equal(logp[~active], torch.zeros(5)) and torch.equal(entropy[~active], torch.zeros(5))
    wanted = eager(hidden.detach()[active].double(), weight.double(), targets[active], bias.double())
    torch.testing.assert_close(logp[active].double(), wanted[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy[active].double(), wanted[1], rtol=1e-5, atol=1e-5)
    (logp.sum() + entropy.sum()).backward()
    assert torch.equal(hidden.grad[~active], torch.zeros(5, HIDDEN)) and (hidden.grad[active] != 0).all()
    for parameter in (weight, bias) if trained else ():
        assert torch.isfinite(parameter.grad).all()


def test_masked_rows_when_the_mask_cannot_be_read(monkeypatch):
    """On a device the count is not read: all rows are computed and masked, or as many as declared are gathered."""
    from frostline.kernels.lm_head import rows

    monkeypatch.setattr(rows, "is_readable", lambda _: False)
    for declared in (None, 9, 12, 14):
        hidden, weight, targets, bias = inputs(torch.float32, shape=(14,))
        active = torch.arange(14) % 14 < 9
        with torch.no_grad():
            hidden[9:] = float("nan")
        targets[9:] = 10**6
        logp = linear_logprob(hidden, weight, targets, bias, active=active, active_rows=declared)
        assert torch.equal(logp[9:], torch.zeros(5)) and torch.isfinite(logp).all()
        logp.sum().backward()
        assert torch.equal(hidden.grad[9:], torch.zeros(5, HIDDEN)) and torch.isfinite(weight.grad).all()
    with pytest.raises(AssertionError):  # a count that is too small is loud, without asking the device
        assert torch.isfinite(linear_logprob(hidden, weight, targets, bias, active=active, active_rows=4)).all()


@pytest.mark.usefixtures("tiling")
def test_all_rows_masked():
    hidden, weight, targets, bias = inputs(torch.float32)
    logp = linear_logprob(hidden, weight, targets, bias, active=torch.zeros(2, 7, dtype=torch.bool))
    logp.sum().backward()
    assert torch.equal(logp, torch.zeros(2, 7))
    for leaf in (hidden, weight, bias):
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("trained", [False, True])
def test_empty_batch(trained):
    hidden, weight, targets, bias = inputs(torch.float32, shape=(0, 7), needs=(True, trained, trained))
    logp = linear_logprob(hidden, weight, targets, bias)
    assert logp.shape == (0, 7)
    logp.sum().backward()
    assert hidden.grad.shape == hidden.shape
    assert not trained or torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("trained", [False, True])
def test_layouts(trained):
    """3-D, transposed and expanded hidden states; a weight that is a transposed view."""
    base = torch.randn(7, 2, HIDDEN, requires_grad=True)
    rows = torch.randn(1, 1, HIDDEN, requires_grad=True)
    weight = torch.randn(HIDDEN, VOCAB, requires_grad=trained)
    targets = torch.randint(VOCAB, (2, 7))
    for leaf, hidden in ((base, base.transpose(0, 1)), (rows, rows.expand(2, 7, HIDDEN))):
        linear_logprob(hidden, weight.t(), targets).sum().backward()
        double = leaf.detach().double().requires_grad_()
        shaped = double.transpose(0, 1) if leaf is base else double.expand(2, 7, HIDDEN)
        eager(shaped, weight.detach().t().double(), targets)[0].sum().backward()
        torch.testing.assert_close(leaf.grad.double(), double.grad, rtol=1e-4, atol=1e-4)
        assert (weight.grad is not None) == trained


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.usefixtures("tiling")
def test_backward_twice_gives_the_same(trained):
    """Nothing that is kept may be scaled in place."""
    hidden, weight, targets, bias = inputs(torch.float32, needs=(True, trained, trained))
    logp = linear_logprob(hidden, weight, targets, bias)
    upstream = torch.randn(2, 7)
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf.requires_grad]
    first = torch.autograd.grad(logp, leaves, upstream, retain_graph=True)
    second = torch.autograd.grad(logp, leaves, upstream)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_frozen_weight_changes_nothing_but_the_work():
    """With the same strategy (a differentiable entropy), the hidden gradient is the same bit for bit."""
    found = []
    for trained in (False, True):
        torch.manual_seed(1)
        hidden, weight, targets, bias = inputs(torch.float32, needs=(True, trained, trained))
        with override(**MANY_TILES):
            sum(x.sum() for x in linear_logprob(hidden, weight, targets, bias, return_entropy=True)).backward()
        found.append(hidden.grad)
        assert (weight.grad is not None) == trained
    assert torch.equal(*found)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_computed_without_grad(live_bytes, strategies, mode):
    hidden, weight, targets, bias = inputs(torch.float32, shape=(64,))
    with mode(), override(row_block=8, vocab_tile=64), live_bytes() as tracker:
        logp = linear_logprob(hidden, weight, targets, bias)
    assert strategies == [Strategy.FORWARD]
    assert not logp.requires_grad
    assert tracker.peak < hidden.numel() * 4 + 16384  # no room for a gradient of hidden beside the tile


def test_autocast_casts_as_linear_does():
    hidden, weight, targets, bias = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logp = linear_logprob(hidden, weight, targets, bias)
    wanted = linear_logprob(hidden.bfloat16(), weight.bfloat16(), targets, bias.bfloat16())
    assert logp.dtype == torch.float32 and torch.equal(logp, wanted)
    logp.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == bias.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("softcap, vocab", list(itertools.product([1.0, 30.0], [32000, 65537, 256000])))
def test_softcap_at_real_vocabularies(softcap, vocab, dtype):
    """Nothing beyond the last column counts, in log-probs nor gradients."""
    hidden, weight, targets, _ = inputs(dtype, shape=(3,), needs=(True, False, False), vocab=vocab)
    double = hidden.detach().double().requires_grad_()
    wanted = eager(double, weight.double(), targets, softcap=softcap)[0]
    found = linear_logprob(hidden, weight, targets, softcap=softcap)
    assert (found - wanted).abs().max() < 1e-5
    wanted.sum().backward()
    found.sum().backward()
    rounding = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-5}[dtype]
    assert (hidden.grad - double.grad).abs().max() <= rounding * double.grad.abs().max()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_temperature_divides_in_fp32(dtype, kind):
    """Rounded to 16 bits before or after the division, log-probs would be wrong by 1e-2."""
    hidden, weight, targets, bias = inputs(dtype, shape=(16,), needs=(True, False, False))
    wanted = eager(hidden.detach().double(), weight.double(), targets, bias.double(), temperature=0.6)[0]
    with target_device(kind):
        found = linear_logprob(hidden, weight, targets, bias, temperature=0.6)
    assert (found - wanted).abs().max() < 2e-5


def test_compiled_around_gives_the_same():
    hidden, weight, targets, bias = inputs(torch.float32)

    def loss(states):
        return (linear_logprob(torch.tanh(states), weight, targets, bias) * 2).sum()

    eager_value = loss(hidden)
    eager_value.backward()
    wanted, hidden.grad = hidden.grad, None
    value = torch.compile(loss, backend="aot_eager")(hidden)
    value.backward()
    torch.testing.assert_close(value, eager_value)
    torch.testing.assert_close(hidden.grad, wanted)


@pytest.mark.parametrize("masked", [False, True])
def test_triton_tiles_through_the_engine(masked):
    """The interpreter runs the real kernels under the engine, GPU branches included."""
    if torch.cuda.is_available():
        pytest.skip("interpreter only")
    from frostline.kernels.lm_head.tiles import interpreted
    from frostline.kernels.matmul import target_device

    hidden, weight, targets, bias = inputs(torch.float16, shape=(6,))
    doubles = [t.detach().double().requires_grad_() for t in (hidden, weight, bias)]
    active = torch.tensor([True, True, not masked, True, True, True])
    with interpreted(), target_device("cuda"), override(row_block=4, vocab_tile=128):
        for trained in (False, True):
            weight.requires_grad_(trained), bias.requires_grad_(trained)
            logp = linear_logprob(hidden, weight, targets, bias, active=active if masked else None, softcap=4.0)
            logp.sum().backward()  # whose upstream is expanded: one value for all rows
    (eager(doubles[0], doubles[1], targets, doubles[2], softcap=4.0)[0] * active).sum().backward()
    torch.testing.assert_close(hidden.grad.double() / 2, doubles[0].grad, rtol=1e-2, atol=2e-2)
    torch.testing.assert_close(weight.grad.double(), doubles[1].grad, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(bias.grad.double(), doubles[2].grad, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "changes, error, words",
    [
        ({"weight": torch.randn(VOCAB, HIDDEN + 1)}, ValueError, "hidden: got shape"),
        ({"weight": torch.randn(VOCAB, HIDDEN).bfloat16()}, TypeError, "weight: got torch.bfloat16, wanted torch.float32"),
        ({"weight": torch.nn.Linear(HIDDEN, VOCAB)}, TypeError, "weight: got Linear, wanted a tensor"),
        ({"weight": torch.empty(0)}, RuntimeError, "weight: got shape .* empty storage"),
        ({"bias": torch.randn(VOCAB + 1)}, ValueError, r"bias: got shape \(301,\), wanted \(300,\)"),
        ({"targets": torch.zeros(3, 7).long()}, ValueError, r"targets: got shape \(3, 7\), wanted \(2, 7\)"),
        ({"targets": torch.zeros(2, 7)}, TypeError, "targets: got torch.float32, wanted an integer"),
        ({"targets": torch.full((2, 7), VOCAB)}, ValueError, "targets: got 300 in row 0, wanted 0 to 299"),
        ({"hidden": torch.zeros(2, 7, HIDDEN).long()}, TypeError, "hidden: got torch.int64"),
        ({"hidden": torch.zeros(2, 7, HIDDEN, device="meta")}, ValueError, "weight: got device cpu, wanted meta"),
        ({"active": torch.ones(2, dtype=torch.bool)}, ValueError, r"active: got shape \(2,\)"),
        ({"active_rows": 15}, ValueError, "active_rows: got 15, wanted a count from 0 to 14"),
        ({"active_rows": 3}, ValueError, "active_rows: got 3 without a mask"),
        ({"active_rows": 3, "active": torch.ones(2, 7).bool()}, ValueError, "active_rows: got 3, wanted 14"),
        ({"temperature": 0.0}, ValueError, "temperature: got 0.0, wanted a positive number"),
        ({"softcap": -1.0}, ValueError, "softcap: got -1.0"),
        ({"logit_scale": float("inf")}, ValueError, "logit_scale: got inf"),
    ],
)
def test_errors_name_the_argument(changes, error, words):
    hidden, weight, targets, bias = inputs(torch.float32)
    given = {"hidden": hidden, "weight": weight, "targets": targets, "bias": bias, **changes}
    with pytest.raises(error, match=words):
        linear_logprob(**given)


def test_freed_storage_is_refused():
    """FSDP frees a parameter's storage between uses and keeps its shape."""
    hidden, weight, targets, bias = inputs(torch.float32)
    with torch.no_grad():
        weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"weight: got shape .* gather it first"):
        linear_logprob(hidden, weight, targets, bias)


@pytest.mark.parametrize("width", [64, 60], ids=["fused", "product and tile"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_token_that_is_almost_certain(width, trained):
    """Its gradient hangs on 1 - p, which probabilities rounded to bf16 would lose: each row against float64."""
    rows, vocab = 40, 300
    weight = torch.randn(vocab, width).bfloat16()
    targets = torch.randint(vocab, (rows,))
    states = (weight[targets].float() * torch.linspace(0.1, 0.25, rows)[:, None]).bfloat16()
    double = states.double().requires_grad_()
    logp = (double @ weight.double().t()).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    logp.sum().backward()
    assert 1e-9 < 1 - logp.max().exp() < 1e-3
    with target_device("cuda"):
        ours = states.clone().requires_grad_()
        linear_logprob(ours, weight.clone().requires_grad_(trained), targets).sum().backward()
    errors = (ours.grad.double() - double.grad).norm(dim=1) / double.grad.norm(dim=1)
    assert errors.max() < 2**-7


@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_logits_far_from_zero_keep_their_digits(offset):
    """A common offset of all logits changes no log-prob and no gradient."""
    rows, width, vocab = 12, 16, 200
    states, weight, targets = torch.randn(rows, width), torch.randn(vocab, width), torch.randint(vocab, (rows,))
    found = []
    for bias in (torch.zeros(vocab), torch.full((vocab,), offset)):
        ours = states.clone().requires_grad_()
        logp = linear_logprob(ours, weight, targets, bias)
        logp.sum().backward()
        found.append((logp.detach(), ours.grad))
    # what fp32 loses is the rounding of the logits themselves: 1e4 has digits of 1e-3
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=3e-3)
    assert (found[1][1] - found[0][1]).norm() <= 3e-3 * found[0][1].norm()


@pytest.mark.parametrize("width", [64, 60], ids=["fused", "product and tile"])
def test_a_frozen_head_rounds_its_gradient_once(width):
    """The kept unit gradient is not rounded before the upstream arrives: the error is that of one rounding to bf16."""
    rows, vocab = 256, 500
    states, weight = torch.randn(rows, width).bfloat16(), torch.randn(vocab, width).mul_(width**-0.5).bfloat16()
    targets, upstream = torch.randint(vocab, (rows,)), torch.randn(rows)
    double = states.double().requires_grad_()
    logp = (double @ weight.double().t()).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    logp.backward(upstream.double())
    ours = states.clone().requires_grad_()
    with target_device("cuda"):
        linear_logprob(ours, weight, targets).backward(upstream)
    rounding = (double.grad.bfloat16().double() - double.grad).norm()
    assert (ours.grad.double() - double.grad).norm() < 1.1 * rounding


@pytest.mark.parametrize("way", [{}, {"return_entropy": True}, {"memory_budget": 1}], ids=str)
@pytest.mark.parametrize("trained", [False, True])
def test_under_activation_checkpointing(trained, way):
    """What is saved is unpacked once: `torch.utils.checkpoint` refuses a second time."""
    states, weight, targets = torch.randn(10, 8), torch.randn(30, 8), torch.randint(30, (10,))
    found = []
    for run in (checkpoint, lambda f, *x, **_: f(*x)):
        ours = [states.clone().requires_grad_(), weight.clone().requires_grad_(trained)]

        def total(hidden, head):
            result = linear_logprob(hidden, head, targets, **way)
            return result.sum() if isinstance(result, torch.Tensor) else result[0].sum() + result[1].sum()

        run(total, *ours, use_reentrant=False).backward()
        found.append([t.grad for t in ours])
    for checked, plain in zip(*found, strict=True):
        assert (checked is None) == (plain is None) and (checked is None or torch.equal(checked, plain))


@pytest.mark.parametrize("trained", [False, True])
def test_a_second_derivative_is_refused(trained):
    """A gradient penalty would miss a term; asking for the graph alone is no mistake."""
    states = torch.randn(6, 8, requires_grad=True)
    weight, targets = torch.randn(20, 8, requires_grad=trained), torch.randint(20, (6,))
    logp = linear_logprob(states, weight, targets)
    (gradient,) = torch.autograd.grad(logp.sum(), states, create_graph=True)
    assert torch.isfinite(gradient).all()
    with pytest.raises(RuntimeError, match="no second derivative"):
        (logp.sum() + gradient.square().sum()).backward()


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"memory_budget": "512MiB"}, "memory_budget: got '512MiB'"),
        ({"memory_budget": 1.5}, "memory_budget: got 1.5"),
        ({"memory_budget": True}, "memory_budget: got True"),
        ({"active_rows": 4.5}, "active_rows: got 4.5"),
        ({"active_rows": True}, "active_rows: got True"),
        ({"temperature": "1"}, "temperature: got '1'"),
        ({"logit_scale": None}, "logit_scale: got None"),
    ],
)
def test_numbers_that_are_none(wrong, said):
    with pytest.raises(ValueError, match=said):
        linear_logprob(torch.randn(4, 8), torch.randn(20, 8), torch.randint(20, (4,)), **wrong)


def test_asking_without_a_mask_is_all_rows():
    states, weight, targets = torch.randn(4, 8), torch.randn(20, 8), torch.randint(20, (4,))
    assert torch.equal(linear_logprob(states, weight, targets, active_rows="ask"), linear_logprob(states, weight, targets))
