"""Predicted tokens and their accuracy: ties, transformed logits, forbidden tokens."""

from __future__ import annotations

import math

import pytest
import torch
from cross_entropy_reference import EVERYTHING, Problem

from frostline.kernels import linear_cross_entropy
from frostline.kernels.lm_head.plan import override
from frostline.kernels.matmul import target_device

KINDS = pytest.mark.parametrize("kind", ["cpu", "cuda"])
HEADS = pytest.mark.parametrize("needs", [(True, True, True), (True, False, False)], ids=["trainable", "frozen"])


@pytest.fixture(params=[{}, {"row_block": 4, "vocab_tile": 128}], ids=["one tile", "many tiles"])
def tiling(request):
    with override(**request.param):
        yield


def predictions(problem, **options):
    return linear_cross_entropy(
        problem.hidden, problem.weight, problem.targets, problem.bias, **options, **EVERYTHING
    )  # fmt: skip


@KINDS
@pytest.mark.usefixtures("tiling")
def test_a_head_of_zeros(kind):
    """Every logit is the same: the first is predicted, and the loss is log V."""
    problem = Problem((14,), bias=False)
    problem.weight.zero_()
    problem.targets[3] = 0
    with target_device(kind):
        found = problem.ours()
    assert not found.output.predicted_tokens.any()
    torch.testing.assert_close(found.output.loss, torch.tensor(math.log(300)))
    torch.testing.assert_close(found.output.token_accuracy, (problem.targets == 0).float().mean())
    problem.check(found)


@KINDS
@HEADS
@pytest.mark.parametrize("copies", [(5, 6), (5, 130), (0, 299), (127, 128, 256), (140, 5, 299)], ids=str)
def test_the_first_of_equal_maxima_is_predicted(copies, needs, kind):
    """In one tile or in several. Whole numbers, so that equal rows give equal logits however they are summed."""
    problem = Problem((14,), 8, bias=False)
    problem.hidden = torch.randint(1, 4, (14, 8)).float()
    problem.weight = torch.randint(-3, 3, (300, 8)).float()
    problem.weight[list(copies)] = 5.0
    problem.targets[:5] = min(copies)
    problem.targets[5:9] = max(copies)  # as probable, and not what is predicted
    for sizes in ({}, {"row_block": 4, "vocab_tile": 128}):
        with override(**sizes), target_device(kind):
            hidden, weight, _ = (t if t is None else t.requires_grad_(n) for t, n in zip(problem.leaves(), needs, strict=True))
            found = linear_cross_entropy(hidden, weight, problem.targets, **EVERYTHING)
            found.loss.backward()
        assert (found.predicted_tokens == min(copies)).all()
        assert found.token_accuracy == (problem.targets == min(copies)).float().mean()


@KINDS
@pytest.mark.parametrize("options", [{"softcap": 0.5}, {"logit_scale": 1e-3}, {"softcap": 0.5, "logit_scale": 100.0}], ids=str)
def test_predictions_are_of_the_transformed_logits(options, kind):
    """A small softcap makes equals of all large logits, and the first of those is predicted."""
    problem = Problem((14,), 8, bias=False)
    problem.hidden, problem.weight = torch.ones(14, 8), torch.zeros(300, 8)
    problem.weight[40], problem.weight[200] = 100.0, 1000.0
    with target_device(kind):
        found = predictions(problem, **options).predicted_tokens
    assert (found == (40 if "softcap" in options else 200)).all()


def test_a_negative_scale_predicts_the_smallest_product():
    problem = Problem((14,), logit_scale=-0.7)
    problem.check()
    upside_down = (problem.hidden @ problem.weight.t() + problem.bias).argmin(-1)
    assert torch.equal(predictions(problem, logit_scale=-0.7).predicted_tokens, upside_down)


@KINDS
@pytest.mark.usefixtures("tiling")
def test_forbidden_tokens(kind):
    """A bias of -inf: such a token is never predicted, and a row whose label it is loses infinitely."""
    problem = Problem((14,), reduction="none")
    problem.bias[:130] = -torch.inf
    problem.bias[::2] = -torch.inf
    problem.targets = 131 + 2 * torch.randint(80, (14,))
    with target_device(kind):
        found = problem.ours()
        problem.check(found)
        assert (found.output.predicted_tokens >= 131).all() and (found.output.predicted_tokens % 2 == 1).all()
        problem.targets[3] = 6
        loss = predictions(problem, reduction="none").loss
    assert loss[3] == torch.inf and torch.isfinite(loss[[0, 1, 2, *range(4, 14)]]).all()


@KINDS
@HEADS
@pytest.mark.usefixtures("tiling")
def test_a_forbidden_label_with_smoothing(needs, kind):
    """It loses infinitely, as in eager code, among other forbidden tokens too; its gradients are finite."""
    for reduction, forbidden in (("none", [6]), ("mean", [6, 200]), ("none", [6, 200])):
        problem = Problem((14,), needs=needs, reduction=reduction, label_smoothing=0.1, ce_weight=True)
        problem.bias[forbidden] = -torch.inf
        problem.targets[3] = 6
        with target_device(kind):
            found = problem.ours()
        exact = problem.exact()
        assert torch.equal(found.output.loss.double(), exact.output.loss) and (found.output.loss == torch.inf).all()
        for ours, wanted in zip(found.gradients, exact.gradients, strict=True):
            if wanted is not None:
                torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-5)
