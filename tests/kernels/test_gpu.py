"""The CUDA path on a real device: cuBLAS with fp32 results under compiled Triton tiles."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.functional import linear

from frostline.kernels import FusedLinearGRPOLoss, linear_logprob
from frostline.kernels.lm_head.plan import override

pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def exact(hidden, weight, targets, bias=None, softcap=None):
    logits = linear(hidden.double(), weight.double(), None if bias is None else bias.double())
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = logits.log_softmax(-1)
    return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


def leaves(dtype, rows, hidden, vocab, trained=True, bias=True):
    states = torch.randn(rows, hidden, device="cuda", dtype=dtype).requires_grad_()
    weight = torch.randn(vocab, hidden, device="cuda", dtype=dtype).mul_(hidden**-0.5).requires_grad_(trained)
    offset = torch.randn(vocab, device="cuda", dtype=dtype).requires_grad_(trained) if bias else None
    return states, weight, torch.randint(vocab, (rows,), device="cuda"), offset


def relative(found, wanted):
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.0, 30.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trained", [False, True])
def test_logprob(dtype, trained, softcap, entropy):
    states, weight, targets, bias = leaves(dtype, 300, 128, 5003, trained)
    doubles = [t.detach().double().requires_grad_(t.requires_grad) for t in (states, weight, bias)]
    upstream = torch.randn(300, device="cuda")
    with override(row_block=128, vocab_tile=2048):
        found = linear_logprob(states, weight, targets, bias, softcap=softcap, return_entropy=True)
        found = found if entropy else (linear_logprob(states, weight, targets, bias, softcap=softcap),)
        torch.autograd.backward(found, [upstream] * len(found))
    wanted = exact(doubles[0], doubles[1], targets, doubles[2], softcap)[: len(found)]
    torch.autograd.backward(wanted, [upstream.double()] * len(found))
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() < 5e-5
    tolerance = {torch.bfloat16: 4e-3, torch.float16: 1e-3, torch.float32: 1e-5}[dtype]
    for ours, theirs in zip((states, weight, bias), doubles, strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            assert relative(ours.grad, theirs.grad) < tolerance


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_entropy_that_is_only_logged(dtype, softcap):
    """It comes with the streaming pass, and a gradient that arrives after all is right."""
    states, weight, targets, bias = leaves(dtype, 300, 128, 5003, trained=False)
    double = states.detach().double().requires_grad_()
    with override(row_block=128, vocab_tile=2048):
        found = linear_logprob(states, weight, targets, bias, softcap=softcap, return_entropy=True, entropy_in_loss=False)
        (found[0].sum() + found[1].sum()).backward()
    wanted = exact(double, weight, targets, bias, softcap)
    (wanted[0].sum() + wanted[1].sum()).backward()
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() < 5e-5
    assert relative(states.grad, double.grad) < {torch.bfloat16: 6e-3, torch.float16: 2e-3, torch.float32: 1e-5}[dtype]


@pytest.mark.parametrize("trained", [False, True])
def test_accuracy_at_the_published_head(trained):
    """H = 4096, V = 128,256 at fewer rows: fp32 logits, and hidden gradients within the rounding of a bf16 result."""
    rows = 512
    states, weight, targets, _ = leaves(torch.bfloat16, rows, 4096, 128256, trained, bias=False)
    advantages = torch.randn(1, device="cuda")
    loss, _ = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False)(
        states.unsqueeze(0), weight, targets.unsqueeze(0), torch.ones(1, rows, device="cuda"), advantages
    )
    loss.backward()
    doubles = [t.detach().double().requires_grad_(t.requires_grad) for t in (states, weight)]
    logp, _ = exact(*doubles, targets)
    (-logp.mean() * advantages.double()).sum().backward()
    with torch.no_grad():
        assert (linear_logprob(states, weight, targets) - logp).abs().max() <= 5e-5
    assert relative(states.grad, doubles[0].grad) <= 2.5e-3
    if trained:
        assert relative(weight.grad, doubles[1].grad) <= 3.5e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("trained", [False, True])
def test_a_logit_far_above_the_reference(dtype, trained):
    """The references of some rows must move, by far, in a later tile: the product is computed again."""
    states, weight, targets, _ = leaves(dtype, 300, 128, 5003, trained, bias=False)
    with torch.no_grad():
        weight[4000] = states[7] * 2
        weight[4500] = states[299]
    doubles = [t.detach().double().requires_grad_(t.requires_grad) for t in (states, weight)]
    with override(row_block=128, vocab_tile=2048):
        found = linear_logprob(states, weight, targets)
    found.sum().backward()
    wanted, _ = exact(*doubles, targets)
    wanted.sum().backward()
    assert ((found - wanted).abs() <= 5e-5 + 2e-6 * wanted.abs()).all() and wanted.min() < -100
    for ours, theirs in zip((states, weight), doubles, strict=True):
        if theirs.grad is not None:
            assert relative(ours.grad, theirs.grad) < 4e-3


def test_another_length_compiles_nothing():
    from frostline.kernels.lm_head import fused_triton, tiles_triton

    def compiled():
        kernels = [k for module in (fused_triton, tiles_triton) for k in vars(module).values() if hasattr(k, "device_caches")]
        assert len(kernels) > 10
        return sum(len(kernel.device_caches[torch.cuda.current_device()][0]) for kernel in kernels)

    def step(rows):
        for trained in (False, True):
            states, weight, targets, _ = leaves(torch.bfloat16, rows, 128, 5008, trained, bias=False)
            linear_logprob(states, weight, targets).sum().backward()
            loss = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False)
            advantages, mask = torch.ones(1, device="cuda"), torch.ones(1, rows, device="cuda")
            loss(states.unsqueeze(0), weight, targets.unsqueeze(0), mask, advantages)[0].backward()

    step(1024)
    before = compiled()
    assert before > 5
    for rows in (1000, 777, 1536, 16, 300):
        step(rows)
    assert compiled() == before


def test_more_elements_than_an_int32_counts():
    """A block of logits beyond 2^31 elements: the last row is right."""
    rows, vocab = 16500, 131072
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free memory")
    states, weight, targets, _ = leaves(torch.bfloat16, rows, 64, vocab, trained=True, bias=False)
    with override(row_block=rows, keep_tiles=True):
        loss, _ = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, loss_type="grpo")(
            states.unsqueeze(0), weight, targets.unsqueeze(0), torch.ones(1, rows, device="cuda"), torch.ones(1, device="cuda")
        )
        loss.backward()
    double = states.detach()[-5:].double().requires_grad_()
    (-exact(double, weight.detach(), targets[-5:])[0].sum() / rows).backward()
    assert relative(states.grad[-5:], double.grad) < 4e-3


ONE_TILE = {"row_block": 66000, "vocab_tile": 32768}  # 2.2e9 elements


@pytest.mark.parametrize("trained", [False, True], ids=["stream", "recompute"])
@pytest.mark.parametrize(
    "rows, width, vocab, sizes",
    [(16500, 64, 131072, {}), (66000, 64, 32768, ONE_TILE), (66000, 60, 32768, ONE_TILE)],
    ids=["planned tiles", "one fused tile", "one tile beside its product"],
)
def test_log_probs_of_more_elements_than_an_int32_counts(trained, rows, width, vocab, sizes):
    """The last rows are right, and so is the weight gradient, which comes from them alone."""
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free memory")
    states, weight, targets, _ = leaves(torch.bfloat16, rows, width, vocab, trained, bias=False)
    upstream = torch.zeros(rows, device="cuda")
    upstream[-5:] = torch.randn(5, device="cuda")
    targets[-1] = vocab - 1
    with override(**sizes):
        found = linear_logprob(states, weight, targets)
        found.backward(upstream)
    doubles = [states.detach()[-5:].double().requires_grad_(), weight.detach().double().requires_grad_()]
    wanted, _ = exact(*doubles, targets[-5:])
    wanted.backward(upstream[-5:].double())
    assert (found[-5:] - wanted).abs().max() < 5e-5 and found.isfinite().all()
    assert relative(states.grad[-5:], doubles[0].grad) < 4e-3 and not states.grad[:-5].any()
    assert not trained or relative(weight.grad, doubles[1].grad) < 6e-3


def syncs(step):
    """How often a step waits for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)  # not that the mode is a prototype


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("declared, waits", [(None, 0), (20, 0), (40, 0), ("ask", 1)])
def test_tokens_without_advantage(trained, declared, waits):
    """20 of 64 tokens count and have an advantage: declared, or asked for once. The gradients are those of every token."""
    states, weight, targets, _ = leaves(torch.bfloat16, 64, 64, 1000, trained, bias=False)
    shape = (4, 16)
    mask = (torch.arange(16, device="cuda") < 10).long().expand(shape)
    advantages, old = torch.tensor([1.0, 0.0, -0.5, 0.0], device="cuda"), torch.full(shape, -7.0, device="cuda")
    old[1] = -300.0  # a ratio that overflows

    def gradients(module, **more):
        for leaf in (states, weight):
            leaf.grad = None
        ids = targets.reshape(shape)
        loss, metrics = module(
            states.reshape(*shape, 64), weight, ids, mask, advantages, old_per_token_logps=old.clamp(min=floor), **more
        )
        loss.backward()
        return [loss.detach(), metrics[0], states.grad, weight.grad]

    floor = -8.0
    plain = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, report_entropy=True)  # which looks at every token
    wanted = gradients(plain)
    floor = -400.0
    module = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False)
    found = gradients(module, active_rows=declared)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=1e-6)
    assert syncs(lambda: gradients(module, active_rows=declared)) == waits


@pytest.mark.parametrize(
    "more",
    [{}, {"loss_type": "vespo"}, {"top_entropy_quantile": 0.3, "entropy_coef": 0.1}, {"off_policy_mask_threshold": 0.1}],
    ids=str,
)
@pytest.mark.parametrize("trained", [False, True])
def test_no_synchronisation(trained, more):
    """Neither forward nor backward asks the device for a value, with a mask and a declared count."""
    states, weight, targets, _ = leaves(torch.bfloat16, 64, 64, 1000, trained, bias=False)
    mask = (torch.arange(64, device="cuda") < 40).long().unsqueeze(0)
    module = FusedLinearGRPOLoss(beta=0.1, **more)
    advantages, reference = torch.ones(1, device="cuda"), torch.full((1, 64), -7.0, device="cuda")

    def step():
        arguments = (states.unsqueeze(0), weight, targets.unsqueeze(0), mask, advantages, None, reference)
        module(*arguments, active_rows=40)[0].backward()

    step()  # compiles the tiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_frozen_peak_is_what_the_plan_predicts():
    from frostline.kernels.lm_head.plan import Needs, Problem, make_plan

    rows, hidden, vocab = 4096, 1024, 64000
    states, weight, targets, _ = leaves(torch.bfloat16, rows, hidden, vocab, trained=False, bias=False)

    def step():
        states.grad = None
        linear_logprob(states, weight, targets).sum().backward()

    step()
    states.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    plan = make_plan(Problem(rows, hidden, vocab, torch.bfloat16, Needs(hidden=True), device="cuda"))
    assert torch.cuda.max_memory_allocated() - before <= 1.1 * plan.peak_bytes
