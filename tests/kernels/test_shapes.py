"""Sizes, dtypes and modes at the edges of the head, against plain torch in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import linear

from frostline.kernels import FusedLinearGRPOLoss, linear_logprob
from frostline.kernels.lm_head.plan import override
from frostline.kernels.matmul import target_device

# Primes, powers of two, and one below and above a tile: of 64 (padding), 128 x 256 (an output tile), 2048 (a slice).
VOCABS = [2, 3, 63, 64, 65, 127, 129, 255, 256, 257, 509, 2047, 2048, 2049, 4099, 32003, 65537, 151936, 262144]
WIDTHS = [1, 5, 8, 60, 72]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}


def compare(rows, width, vocab, dtype=torch.float32, *, trained=False, kind="cpu"):
    """Log-probs and gradients, with random upstream; the error is relative to the largest row of the right answer."""
    hidden = torch.randn(rows, width).to(dtype).requires_grad_()
    weight = torch.randn(vocab, width).mul_(width**-0.5).to(dtype).requires_grad_(trained)
    targets, upstream = torch.randint(vocab, (rows,)), torch.randn(rows)
    if rows:
        targets[-1] = vocab - 1  # the last column of the last tile
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in (hidden, weight)]
    wanted = linear(*exact).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    wanted.backward(upstream.double())
    with target_device(kind):
        found = linear_logprob(hidden, weight, targets)
        found.backward(upstream)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip((hidden, weight), exact, strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if theirs.grad is not None and theirs.grad.numel():
            limit = TOLERANCE[dtype] * theirs.grad.abs().max()
            assert (ours.grad - theirs.grad).abs().max() <= limit, (rows, width, vocab)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("vocab", VOCABS)
def test_vocabularies(vocab, kind):
    """Frozen and trained; "cuda" walks the tiles that a GPU would."""
    for trained in (False, True):
        compare(7, 16, vocab, torch.bfloat16 if kind == "cuda" else torch.float32, trained=trained, kind=kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_hidden_sizes_that_are_no_multiple_of_anything(width, trained, dtype):
    for vocab, kind in itertools.product((2, 257), ("cpu", "cuda")):
        compare(7, width, vocab, dtype, trained=trained, kind=kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_rows(rows, trained, dtype):
    for kind in ("cpu", "cuda"):
        compare(rows, 16, 67, dtype, trained=trained, kind=kind)


@pytest.mark.parametrize("tile", [1, 2, 64, 65])
@pytest.mark.parametrize("block", [1, 3, 100])
def test_tiles_of_any_size(tile, block):
    with override(row_block=block, vocab_tile=tile):
        for trained in (False, True):
            compare(7, 8, 131 if tile > 2 else 11, trained=trained)


def grpo(hidden, weight, targets, mask, advantages, old, level):
    """The clipped surrogate as people write it, grpo averaging, in float64."""
    logp = linear(hidden, weight).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    moved = logp - old
    if level == "sequence":
        moved = ((moved * mask).sum(1) / mask.sum(1))[:, None]
    ratio = moved.exp()
    loss = -torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
    return ((loss * mask).sum(1) / mask.sum(1)).mean()


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_completion_of_70000_tokens(level, trained):
    """Longer than any block of rows: a loss that judges it as a whole is formed from log-probs."""
    length, width, vocab = 70_000, 8, 50
    hidden = torch.randn(1, length, width).requires_grad_()
    weight = torch.randn(vocab, width).requires_grad_(trained)
    targets, mask = torch.randint(vocab, (1, length)), (torch.arange(length) < length - 5).float()[None]
    advantages = torch.tensor([1.5])
    doubles = [t.detach().double().requires_grad_(t.requires_grad) for t in (hidden, weight)]
    with torch.no_grad():
        old = linear(*doubles).log_softmax(-1).gather(-1, targets[..., None])[..., 0] + 0.1 * torch.randn(1, length)
    wanted = grpo(*doubles, targets, mask, advantages.double(), old, level)
    wanted.backward()
    module = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, loss_type="grpo", importance_sampling_level=level)
    loss, _ = module(hidden, weight, targets, mask, advantages, old_per_token_logps=old.float())
    loss.backward()
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip((hidden, weight), doubles, strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-3, atol=1e-3 * float(theirs.grad.abs().max()))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, trained):
    """The loss, with leaves in fp32 and 16-bit products: what the module computes of leaves that were cast by hand."""
    hidden, weight = torch.randn(2, 5, 16), torch.randn(67, 16)
    arguments = torch.randint(67, (2, 5)), torch.ones(2, 5), torch.tensor([1.0, -0.5])
    module, found = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False), []
    for cast in (False, True):
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_(trained)]
        given = [leaf.to(dtype) for leaf in leaves] if cast else leaves
        with torch.autocast("cpu", dtype=dtype, enabled=not cast):
            loss, _ = module(*given, *arguments)
        loss.backward()
        found.append([loss.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == torch.float32 and torch.equal(ours, theirs)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_log_probs_may_be_changed_in_place(trained, entropy):
    """As those of plain torch: nothing that the backward needs lies in what was returned."""
    hidden, weight = torch.randn(2, 5, 8).requires_grad_(), torch.randn(30, 8).requires_grad_(trained)
    targets, found = torch.randint(30, (2, 5)), []
    leaves = [hidden, weight] if trained else [hidden]
    for in_place in (False, True):
        given = linear_logprob(hidden, weight, targets, return_entropy=entropy)
        logp, other = given if entropy else (given, None)
        logp = logp.mul_(3.0) if in_place else logp * 3.0
        if other is not None:
            logp = logp.add_(other.exp_()) if in_place else logp + other.exp()
        found.append(torch.autograd.grad(logp.sum(), leaves))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("keep_tiles", [False, True])
@pytest.mark.parametrize("blocks", [1, 16, 64])
def test_weight_gradient_of_a_loss_does_not_lose_digits_with_its_blocks(blocks, keep_tiles):
    """Over however many blocks it is formed, it is rounded to bf16 once; each of its terms is a bf16 tile's."""
    rows, width, vocab = 256, 32, 64
    hidden, weight = torch.randn(1, rows, width).bfloat16(), torch.randn(vocab, width).bfloat16()
    targets, advantages = torch.randint(vocab, (1, rows)), torch.rand(1, rows)
    exact = weight.double().requires_grad_()
    logp = linear(hidden.double(), exact).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    (-(logp * advantages).sum() / rows).backward()
    module = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, loss_type="bnpo")
    found = weight.clone().requires_grad_()
    with target_device("cuda"), override(row_block=rows // blocks, keep_tiles=keep_tiles):
        loss, _ = module(hidden.requires_grad_(), found, targets, torch.ones(1, rows), advantages)
        loss.backward()
    rounding = (exact.grad.to(torch.bfloat16).double() - exact.grad).norm()
    assert (found.grad.double() - exact.grad).norm() <= 1.5 * rounding
