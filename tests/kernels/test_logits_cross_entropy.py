"""Cross entropy of logits that are there, against eager float64: its values, and the gradient in the logits' place."""

from __future__ import annotations

import pytest
import torch
from cross_entropy_reference import EVERYTHING, eager
from norm_reference import error

from frostline.kernels import CrossEntropyOutput, cross_entropy
from frostline.kernels.lm_head import logits_cross_entropy

SHAPE, V = (3, 5), 70
OPTIONS = [
    {},
    {"reduction": "sum", "ignore_index": 7},
    {"reduction": "none", "label_smoothing": 0.1},
    {"softcap": 3.0, "logit_scale": 0.4},
    {"weight": True, "lse_square_scale": 0.05},
    {"weight": True, "label_smoothing": 0.2, "lse_square_scale": 0.05, "softcap": 4.0, "reduction": "none"},
]


def problem(dtype=torch.float32, ignored=0.3, ignore_index=-100):
    logits = torch.randn(*SHAPE, V).mul(3).to(dtype)
    target = torch.randint(V, SHAPE)
    target[torch.rand(SHAPE) < ignored] = ignore_index
    target[0, 0] = 1
    return logits, target


def given(options):
    """The options for `cross_entropy`, and for the eager form."""
    ours = dict(options)
    theirs = {name: value for name, value in options.items() if name != "weight"}
    if options.get("weight"):
        ours["weight"] = theirs["ce_weight"] = torch.rand(V) + 0.5
    return ours, theirs


def exactly(logits, target, upstream=None, dtype=torch.float64, **options):
    """The eager outputs and gradient: `logits` are a product with one."""
    leaf = logits.detach().to(torch.float64 if dtype == torch.float64 else logits.dtype).requires_grad_()
    found = eager(leaf, torch.eye(V, dtype=leaf.dtype), target, dtype=dtype, **options)
    return found, torch.autograd.grad(found.loss, leaf, None if upstream is None else upstream.to(found.loss.dtype))[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rows", [1, 100], ids=["many blocks", "one block"])
def test_against_eager(monkeypatch, options, dtype, rows):
    monkeypatch.setattr(logits_cross_entropy, "_BLOCK_BYTES", 4 * V * rows)
    logits, target = problem(dtype, ignore_index=options.get("ignore_index", -100))
    ours, theirs = given(options)
    upstream = torch.randn(SHAPE) if options.get("reduction") == "none" else torch.tensor(0.7)
    wanted, gradient = exactly(logits, target, upstream, **theirs)
    plain, rounded = exactly(logits, target, upstream, torch.float32, **theirs)
    leaf = logits.clone().requires_grad_()
    found = cross_entropy(leaf * 1, target, **ours, **EVERYTHING)
    found.loss.backward(upstream.to(found.loss.dtype))
    floor = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 2 * torch.finfo(dtype).eps)
    assert error(leaf.grad, gradient) <= max(1.5 * error(rounded, gradient), floor)
    assert error(found.loss, wanted.loss) <= max(1.5 * error(plain.loss, wanted.loss), 1e-6)
    assert error(found.z_loss, wanted.z_loss) <= max(1.5 * error(plain.z_loss, wanted.z_loss), 1e-6)
    torch.testing.assert_close(found.token_accuracy.double(), wanted.token_accuracy.double(), atol=1e-6, rtol=0)
    assert torch.equal(found.predicted_tokens, wanted.predicted_tokens)


def test_the_gradient_takes_the_place_of_the_logits(live_bytes):
    logits, target = problem(torch.bfloat16)
    scores = logits.requires_grad_() * 1
    address = scores.data_ptr()
    seen = []
    scores.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
    cross_entropy(scores, target).backward()
    assert seen == [address]
    big = torch.randn(4096, 512, requires_grad=True)
    twice = big * 1
    with live_bytes() as used:
        cross_entropy(twice, torch.randint(512, (4096,))).backward()
    assert used.peak < 1.2 * big.numel() * 4  # the leaf's own gradient, which autograd keeps, and rows


def test_without_a_gradient_logits_are_left_alone():
    logits, target = problem()
    before = logits.clone()
    with torch.no_grad():
        cross_entropy(logits.requires_grad_(), target)
    cross_entropy(logits.detach(), target)
    assert torch.equal(logits, before)


def test_a_second_backward_is_refused_and_so_is_one_that_needs_the_logits():
    logits, target = problem()
    loss = cross_entropy(logits.requires_grad_() * 1, target)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a second backward through one forward"):
        loss.backward()
    scores = torch.tanh(logits)  # saves what is written over
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        cross_entropy(scores, target).backward()


def test_nothing_that_counts_and_rows_that_are_no_numbers():
    logits, target = problem()
    logits[1] = torch.nan
    target[1] = -100
    leaf = logits.clone().requires_grad_()
    loss = cross_entropy(leaf * 1, target)
    loss.backward()
    assert loss.isfinite() and leaf.grad.isfinite().all() and not leaf.grad[1].any()
    leaf.grad = None
    loss = cross_entropy(leaf * 1, torch.full_like(target, -100))
    loss.backward()
    assert loss == 0 and not leaf.grad.any()
    assert cross_entropy(torch.zeros(0, V), torch.zeros(0, dtype=torch.int64)) == 0


def test_strided_logits_are_copied():
    logits, target = problem()
    wide = torch.stack((logits, logits), dim=-1)
    leaf = wide[..., 0].requires_grad_()
    cross_entropy(leaf, target).backward()
    torch.testing.assert_close(leaf.grad, exactly(logits, target)[1].float())
    assert torch.equal(wide[..., 1], logits)


MISTAKES = {
    r"logits: got shape \(3,\)": lambda x, t: cross_entropy(x[0, :3, 0], t),
    "logits: got torch.int64": lambda x, t: cross_entropy(x.long(), t),
    r"target: got shape \(5,\)": lambda x, t: cross_entropy(x, t[0]),
    "target: got torch.float32": lambda x, t: cross_entropy(x, t.float()),
    r"weight: got shape \(3,\), wanted \(70,\)": lambda x, t: cross_entropy(x, t, torch.ones(3)),
    "reduction: got 'max'": lambda x, t: cross_entropy(x, t, reduction="max"),
    "targets: got 70 in row 0": lambda x, t: cross_entropy(x, torch.full_like(t, V)),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    with pytest.raises((ValueError, TypeError), match=message):
        MISTAKES[message](*problem())


def test_more_is_returned_where_it_is_asked_for():
    logits, target = problem()
    assert isinstance(cross_entropy(logits, target), torch.Tensor)
    found = cross_entropy(logits, target, return_predicted_tokens=True)
    assert isinstance(found, CrossEntropyOutput) and found.token_accuracy is None and found.predicted_tokens.shape == SHAPE
