"""The pure functions of the losses, on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from frostline.kernels.lm_head.entropy import quantile
from frostline.kernels.lm_head.policy_batch import PolicyBatch
from frostline.kernels.lm_head.policy_losses import LOSSES, Importance, k3, policy_loss, terms
from frostline.kernels.lm_head.policy_options import LOSS_TYPES, PolicyOptions

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
        ("luspo", None, [[0.5, 0.5, 0], [0.5, 0, 0]]),
    ],
)
def test_weights(loss_type, items, wanted):
    options = PolicyOptions(loss_type=loss_type, max_completion_length=5)
    torch.testing.assert_close(LOSSES[loss_type].weights(MASK, options, items), torch.tensor(wanted))


@pytest.mark.parametrize("loss_type", list(LOSSES))
def test_weights_of_nothing_are_zero(loss_type):
    options = PolicyOptions(loss_type=loss_type, max_completion_length=5)
    for mask in (torch.zeros(2, 3), torch.zeros(0, 3)):
        assert torch.equal(LOSSES[loss_type].weights(mask, options, None), mask)


def test_the_table_has_every_loss_with_its_formula_and_source():
    assert tuple(LOSSES) == LOSS_TYPES
    for loss in LOSSES.values():
        assert "weight M" in loss.weights.__doc__ and ("arxiv.org" in loss.weights.__doc__ or "TRL" in loss.weights.__doc__)
        assert " A" in loss.objective.__doc__ and "https://arxiv.org" in loss.objective.__doc__


def objective_of(loss_type, log_ratio, advantage, logp=-3.0, **numbers):
    """The objective of one token alone in its completion."""
    options = PolicyOptions(loss_type=loss_type, max_completion_length=1, beta=0.0, **numbers)
    one, values = torch.ones(1, 1), torch.full((1, 1), logp)
    batch = PolicyBatch(one, one, one * advantage, values - log_ratio)
    return LOSSES[loss_type].objective(values, Importance.of(values, batch, "token"), batch, options)


@pytest.mark.parametrize(
    "loss_type, ratio, advantage, numbers, wanted",
    [
        ("grpo", 1.5, 2.0, {}, -2.4),  # clipped from above
        ("grpo", 0.5, 2.0, {}, -1.0),  # not clipped: the minimum is the ratio's own
        ("grpo", 0.5, -2.0, {}, 1.6),  # clipped from below
        ("grpo", 5.0, -2.0, {}, 10.0),  # unbounded without delta
        ("grpo", 5.0, -2.0, {"delta": 3.0}, 6.0),
        ("cispo", 5.0, 2.0, {"epsilon_high": 3.0}, 18.0),  # -3 * 2 * -3
        ("cispo", 0.1, -2.0, {"epsilon_high": 3.0}, -0.6),  # never clipped from below
        ("sapo", 1.0, 2.0, {"sapo_temperatures": (2.0, 1.0)}, -2.0),  # -4/2 * 0.5 * 2
        ("sapo", 1.0, -2.0, {"sapo_temperatures": (2.0, 1.0)}, 4.0),
        ("sapo", 2.0, 1.0, {}, -4 / (1 + math.exp(-1))),
        ("vespo", 1.0, 2.0, {}, 6.0),  # phi(1) = 1
        ("vespo", 2.0, 1.0, {}, 3 * 4 * math.exp(-3)),  # w^2 e^(3 (1 - w))
        ("vespo", 2.0, -1.0, {}, -3 * 8 * math.exp(-2)),  # w^3 e^(2 (1 - w))
        ("vespo", math.exp(60), 1.0, {}, 0.0),  # far away, nothing is left, and nothing overflows
    ],
)
def test_objectives(loss_type, ratio, advantage, numbers, wanted):
    torch.testing.assert_close(objective_of(loss_type, math.log(ratio), advantage, **numbers), torch.tensor([[wanted]]))


@pytest.mark.parametrize("size", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.77, 1.0])
def test_quantile_is_that_of_torch(size, share):
    values = torch.randn(size)
    with_gaps = torch.cat([values, torch.full((3,), float("nan"))])[torch.randperm(size + 3)]
    torch.testing.assert_close(quantile(with_gaps, share), torch.quantile(values, share))


def test_quantile_of_nothing():
    assert quantile(torch.empty(0), 0.5).isnan() and quantile(torch.full((3,), float("nan")), 0.5).isnan()


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
            weights = LOSSES["dapo"].weights(mask[rows], options, mask.sum())
            policy_loss(leaf[rows], PolicyBatch(mask[rows], weights, advantages[rows], old[rows]), options)[0].backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"loss_type": "ppo"}, "loss_type: got 'ppo', wanted one of grpo, bnpo, dr_grpo, dapo, cispo"),
        ({"level": "word"}, "importance_sampling_level: got 'word'"),
        ({"delta": 0.0}, "delta: got 0.0"),
        ({"loss_type": "dr_grpo"}, "max_completion_length: got None"),
    ],
)
def test_errors_name_the_argument(changes, words):
    with pytest.raises(ValueError, match=words):
        PolicyOptions(**changes)
