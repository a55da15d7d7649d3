"""Rows that cannot contribute are left out in both directions, and nothing that is returned tells."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from frostline.kernels import FusedLinearGRPOLoss, linear_logprob
from frostline.kernels.lm_head import autograd
from frostline.kernels.lm_head import rows as chosen_rows
from frostline.kernels.lm_head.grpo import contributing
from frostline.kernels.lm_head.policy_options import LOSS_TYPES

BATCH, LENGTH, HIDDEN, VOCAB = 4, 6, 8, 40
COMBINATIONS = [pair for pair in itertools.product(LOSS_TYPES, ("token", "sequence")) if pair != ("vespo", "sequence")]
PRODUCT = 2 * HIDDEN * VOCAB  # FLOPs of a row with the weight


def module_of(loss_type="dapo", level="token", **more):
    more = {"beta": 0.0, "use_ref_model": False, "epsilon_high": 1.1 if loss_type == "cispo" else 0.2} | more
    return FusedLinearGRPOLoss(loss_type=loss_type, importance_sampling_level=level, max_completion_length=LENGTH, **more)


class Batch:
    """A quarter of the tokens masked, and half of the completions, or of the tokens, without advantage."""

    def __init__(self, *, per_token=False, trained=False, dtype=torch.float32):
        self.hidden = torch.randn(BATCH, LENGTH, HIDDEN, dtype=dtype)
        self.weight, self.trained = torch.randn(VOCAB, HIDDEN, dtype=dtype) / 2, trained
        self.ids = torch.randint(VOCAB, (BATCH, LENGTH))
        self.mask = torch.ones(BATCH, LENGTH)
        self.mask[0, 3:], self.mask[2, 3:] = 0, 0
        self.advantages = torch.tensor([1.3, -0.7, 0.0, -0.0])
        if per_token:
            self.advantages = torch.randn(BATCH, LENGTH)
            self.advantages[torch.rand(BATCH, LENGTH) < 0.5] = 0.0
            self.advantages[2] = 0.0
        with torch.no_grad():
            logp = linear_logprob(self.hidden, self.weight, self.ids)
        self.old = logp + 0.3 * torch.randn(BATCH, LENGTH)

    def run(self, module, *, old=None, backward=True, **more):
        """(loss, metrics, gradients)."""
        hidden, weight = self.hidden.clone().requires_grad_(), self.weight.clone().requires_grad_(self.trained)
        more = {"old_per_token_logps": self.old if old is None else old} | more
        loss, metrics = module(hidden, weight, self.ids, self.mask, self.advantages, **more)
        if backward:
            loss.backward()
        return loss.detach(), metrics, [hidden.grad, weight.grad]


def assert_same(found, wanted):
    torch.testing.assert_close(found[:2], wanted[:2], rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(found[2], wanted[2], strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.fixture
def everything_counts(monkeypatch):
    """Run a call with every token that is not masked computed, as if each had an advantage."""

    def run(function):
        with monkeypatch.context() as patched:
            patched.setattr("frostline.kernels.lm_head.grpo.contributing", lambda mask, *_: mask != 0)
            return function()

    return run


@pytest.mark.parametrize("more", [{}, {"off_policy_mask_threshold": 0.05}, {"delta": 1.1}], ids=str)
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_tokens_without_advantage_change_nothing(everything_counts, loss_type, level, per_token, trained, more):
    """Loss, metrics and gradients are those of the loss that looks at every token."""
    batch, module = Batch(per_token=per_token, trained=trained), module_of(loss_type, level, **more)
    ratio = {"vllm_is_ratio": torch.rand(BATCH, LENGTH) + 0.5}
    found = batch.run(module, **ratio)
    assert_same(found, everything_counts(lambda: batch.run(module, **ratio)))
    left_out = contributing(batch.mask, batch.advantages, module.options).logical_not()
    assert left_out.sum() > (batch.mask == 0).sum() and (found[2][0][left_out] == 0).all()


@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_nothing_of_such_a_token_is_looked_at(loss_type, level):
    """A ratio that overflows, or a hidden state that is not a number, meets an advantage of 0."""
    batch, module = Batch(), module_of(loss_type, level)
    wanted = batch.run(module)
    garbage = batch.old.clone()
    garbage[2], garbage[3] = -300.0, float("nan")
    batch.hidden[3] = float("inf")
    batch.ids[3] = -100
    assert_same(batch.run(module, old=garbage), wanted)


@pytest.mark.parametrize(
    "more",
    [{"beta": 0.1}, {"report_entropy": True}, {"entropy_coef": 0.1}, {"top_entropy_quantile": 0.5}],
    ids=str,
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_token_that_a_metric_or_a_penalty_needs_stays(level, more):
    batch, module = Batch(), module_of("grpo", level, **more)
    assert torch.equal(contributing(batch.mask, batch.advantages, module.options), batch.mask != 0)
    batch.hidden[3, 0] = float("nan")
    loss, metrics, _ = batch.run(module, ref_per_token_logps=batch.old)
    assert loss.isnan() or metrics[-1].isnan()


def test_a_completion_judged_as_a_whole_stays_whole():
    mask, advantages = torch.tensor([[1, 1, 0], [1, 1, 1]]), torch.tensor([[0.0, 2.0, 5.0], [0.0, 0.0, 0.0]])
    for options, wanted in (
        (module_of("grpo", "token").options, [[False, True, False], [False] * 3]),
        (module_of("grpo", "sequence").options, [[True, True, False], [False] * 3]),
        (module_of("vespo", "token").options, [[True, True, False], [False] * 3]),
        (module_of("dapo", "token", off_policy_mask_threshold=1.0).options, [[True, True, False], [False] * 3]),
    ):
        assert contributing(mask, advantages, options).tolist() == wanted
    masked_advantage = contributing(mask, torch.tensor([[0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]), module_of("vespo").options)
    assert not masked_advantage.any()


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("trained", [False, True])
def test_work_is_that_of_the_rows_that_contribute(trained, level):
    """9 of 24 tokens count and have an advantage. At sequence level a trained head takes one product more on those."""
    batch, module = Batch(trained=trained), module_of("grpo", level)
    with FlopCounterMode(display=False) as counter:
        batch.run(module)
    products = 2 + trained + (trained and level == "sequence")
    assert counter.get_total_flops() == products * 9 * PRODUCT


def test_a_few_rows_left_out_do_not_cost_the_loss_its_place_in_the_forward():
    """A trained head at sequence level: three products of all rows are less than four of 23 in 24."""
    batch = Batch(trained=True)
    batch.mask.fill_(1)[0, 5], batch.advantages = 0, torch.ones(BATCH)
    with FlopCounterMode(display=False) as counter:
        batch.run(module_of("grpo", "sequence"))
    assert counter.get_total_flops() == 3 * BATCH * LENGTH * PRODUCT


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("declared", [9, 18, "ask"])
def test_on_a_device(monkeypatch, declared, trained):
    """Where the mask cannot be read, the declared count may be that of the mask or the smaller one; "ask" finds the smaller."""
    batch, module = Batch(trained=trained), module_of("dapo")
    wanted = batch.run(module)
    monkeypatch.setattr(chosen_rows, "is_readable", lambda _: False)
    monkeypatch.setattr(autograd, "is_readable", lambda _: False)
    assert_same(batch.run(module), wanted)
    with FlopCounterMode(display=False) as counter:
        assert_same(batch.run(module, active_rows=declared), wanted)
    assert counter.get_total_flops() == (2 + trained) * (9 if declared == "ask" else declared) * PRODUCT
    assert batch.run(module, active_rows=8)[0].isnan()


def test_asking_about_the_mask_of_log_probs(monkeypatch):
    hidden, weight, targets = torch.randn(10, HIDDEN), torch.randn(VOCAB, HIDDEN), torch.randint(VOCAB, (10,))
    active = torch.arange(10) < 4
    wanted = linear_logprob(hidden, weight, targets, active=active)
    monkeypatch.setattr(chosen_rows, "is_readable", lambda _: False)
    with FlopCounterMode(display=False) as counter:
        found = linear_logprob(hidden, weight, targets, active=active, active_rows="ask")
    assert torch.equal(found, wanted) and counter.get_total_flops() == 4 * PRODUCT


@pytest.mark.parametrize(
    "given, words",
    [
        ({"active_rows": "all"}, "active_rows: got 'all', wanted a count, 'ask' or None"),
        ({"active_rows": 11, "active": torch.ones(10).bool()}, "active_rows: got 11, wanted a count from 0 to 10"),
    ],
)
def test_a_count_that_is_none(given, words):
    with pytest.raises(ValueError, match=words):
        linear_logprob(torch.randn(10, HIDDEN), torch.randn(VOCAB, HIDDEN), torch.randint(VOCAB, (10,)), **given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("through", ["log-probs", "entropy", "both"])
@pytest.mark.parametrize("trained", [False, True])
def test_an_upstream_of_zero(monkeypatch, trained, through, dtype):
    """The backward that computes the logits again does so for the rows that a gradient arrives at."""
    hidden, weight = torch.randn(12, HIDDEN).to(dtype), torch.randn(VOCAB, HIDDEN).to(dtype)
    bias, targets, upstream = torch.randn(VOCAB).to(dtype), torch.randint(VOCAB, (12,)), torch.randn(12, 2)
    upstream[::3], upstream[1] = 0.0, 0.0
    if through != "both":
        upstream[:, 0 if through == "entropy" else 1] = 0.0
    found = []
    for readable in (True, False):
        with monkeypatch.context() as patched:
            if not readable:
                patched.setattr(autograd, "is_readable", lambda _: False)
            leaves = [hidden.clone().requires_grad_(), *(t.clone().requires_grad_(trained) for t in (weight, bias))]
            logp = linear_logprob(leaves[0], leaves[1], targets, leaves[2], return_entropy=True)
            with FlopCounterMode(display=False) as counter:
                torch.autograd.backward(logp, upstream.unbind(1))
            assert counter.get_total_flops() == (2 + trained) * (7 if readable else 12) * PRODUCT
            found.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-6)
    assert (found[0][0][::3] == 0).all()


def test_an_upstream_of_nothing_else(monkeypatch):
    hidden, weight = torch.randn(5, HIDDEN, requires_grad=True), torch.randn(VOCAB, HIDDEN, requires_grad=True)
    logp = linear_logprob(hidden, weight, torch.randint(VOCAB, (5,)))
    with FlopCounterMode(display=False) as counter:
        (logp * 0).sum().backward()
    assert counter.get_total_flops() == 0
    assert torch.equal(hidden.grad, torch.zeros_like(hidden)) and torch.equal(weight.grad, torch.zeros_like(weight))
