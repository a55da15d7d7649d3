"""The pure functions of the losses, on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from frostline.kernels.lm_head.policy_losses import (
    LOSSES,
    PolicyBatch,
    PolicyOptions,
    clipped_surrogate,
    k3,
    policy_loss,
    terms,
)

MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    "loss_type, items, wanted",
    [
        ("grpo", None, [[0.25, 0.25, 0], [0.5, 0, 0]]),
        ("bnpo", None, [[1 / 3, 1 / 3, 0], [1 / 3, 0, 0]]),
        ("dapo", None, [[1 / 3, 1 / 3, 0], [1 / 3, 0, 0]]),
        ("dapo", 12, [[1 / 12, 1 / 12, 0], [1 / 12, 0, 0]]),
        ("dapo", torch.tensor(12), [[1 / 12, 1 / 12, 0], [1 / 12, 0, 0]]),
        ("dr_grpo", None, [[0.1, 0.1, 0], [0.1, 0, 0]]),
    ],
)
def test_weights(loss_type, items, wanted):
    options = PolicyOptions(loss_type=loss_type, max_completion_length=5)
    torch.testing.assert_close(LOSSES[loss_type](MASK, options, items), torch.tensor(wanted))


@pytest.mark.parametrize("loss_type", list(LOSSES))
def test_weights_of_nothing_are_zero(loss_type):
    options = PolicyOptions(loss_type=loss_type, max_completion_length=5)
    for mask in (torch.zeros(2, 3), torch.zeros(0, 3)):
        assert torch.equal(LOSSES[loss_type](mask, options, None), mask)


def test_every_loss_says_its_formula_and_source():
    for function in LOSSES.values():
        assert "weight M" in function.__doc__ and ("arxiv.org" in function.__doc__ or "TRL" in function.__doc__)


@pytest.mark.parametrize(
    "ratio, advantage, delta, wanted",
    [
        (1.5, 2.0, None, -2.4),  # clipped from above
        (0.5, 2.0, None, -1.0),  # not clipped: the minimum is the ratio's own
        (0.5, -2.0, None, 1.6),  # clipped from below
        (5.0, -2.0, None, 10.0),  # unbounded without delta
        (5.0, -2.0, 3.0, 6.0),
    ],
)
def test_clipped_surrogate(ratio, advantage, delta, wanted):
    found = clipped_surrogate(torch.tensor(ratio), torch.tensor(advantage), PolicyOptions(delta=delta))
    torch.testing.assert_close(found, torch.tensor(wanted))


def test_k3_is_zero_only_where_the_models_agree():
    torch.testing.assert_close(k3(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0])), torch.tensor([0.0, math.e - 2]))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_bias_corrected_kl_uses_the_unclipped_ratio_of_its_level(level):
    logp, old, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.5]]), torch.tensor([[-1.5, -1.0]])
    mask = torch.ones(1, 2)
    batch = PolicyBatch(mask, mask / 2, torch.zeros(1, 2), old, reference)
    found = terms(logp, batch, PolicyOptions(beta=0.5, level=level, bias_correction=True))
    ratio = torch.tensor([[math.e, math.exp(0.5)]]) if level == "token" else torch.full((1, 2), math.exp(0.75))
    torch.testing.assert_close(found.kl, k3(logp, reference) * ratio)


def test_same_tokens_in_micro_batches_give_the_same_gradient():
    """num_items_in_batch: over 1, 2 or 4 accumulation steps the accumulated gradient of dapo is the same."""
    logp = torch.randn(4, 5)
    mask = (torch.rand(4, 5) > 0.4).float()
    advantages, old = torch.randn(4, 1).expand(4, 5), logp + 0.1 * torch.randn(4, 5)
    options = PolicyOptions(beta=0.0)
    found = []
    for parts in (1, 2, 4):
        leaf = logp.clone().requires_grad_()
        for rows in torch.arange(4).chunk(parts):
            weights = LOSSES["dapo"](mask[rows], options, mask.sum())
            policy_loss(leaf[rows], PolicyBatch(mask[rows], weights, advantages[rows], old[rows]), options)[0].backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"loss_type": "ppo"}, "loss_type: got 'ppo', wanted one of grpo, bnpo, dr_grpo, dapo"),
        ({"level": "word"}, "importance_sampling_level: got 'word'"),
        ({"delta": 0.0}, "delta: got 0.0"),
        ({"loss_type": "dr_grpo"}, "max_completion_length: got None"),
    ],
)
def test_errors_name_the_argument(changes, words):
    with pytest.raises(ValueError, match=words):
        PolicyOptions(**changes)
