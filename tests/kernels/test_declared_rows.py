"""A declared number of active rows where the mask cannot be read, as on a GPU: too many is harmless, too few is NaN."""

from __future__ import annotations

import pytest
import torch

from frostline.kernels import FusedLinearGRPOLoss
from frostline.kernels.lm_head import rows


def loss_and_gradient(active_rows):
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 3, 4, requires_grad=True), torch.randn(11, 4)
    ids, mask = torch.randint(0, 11, (2, 3)), torch.tensor([[1, 1, 0], [1, 0, 1]])  # the last row counts
    module = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False)
    loss, _ = module(
        hidden,
        weight,
        ids,
        mask,
        torch.tensor([1.0, -1.0]),
        old_per_token_logps=torch.full((2, 3), -3.0),
        active_rows=active_rows,
    )
    loss.backward()
    return loss.detach(), hidden.grad


@pytest.fixture
def unreadable(monkeypatch):
    wanted = loss_and_gradient(None)
    monkeypatch.setattr(rows, "is_readable", lambda _: False)
    return wanted


@pytest.mark.parametrize("declared", [None, 4, 5, 6])
def test_enough_rows_give_the_same_loss(unreadable, declared):
    for found, wanted in zip(loss_and_gradient(declared), unreadable, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("declared", [1, 2, 3])
def test_too_few_rows_give_nan(unreadable, declared):
    assert loss_and_gradient(declared)[0].isnan()


@pytest.mark.parametrize("shape", [(2, 0), (0, 0), (0, 3)])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_batch_without_tokens_has_a_loss_of_zero(shape, level):
    hidden = torch.randn(*shape, 4, requires_grad=True)
    module = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, importance_sampling_level=level)
    loss, _ = module(hidden, torch.randn(11, 4), torch.zeros(shape, dtype=torch.long), torch.ones(shape), torch.ones(shape[0]))
    loss.backward()
    assert loss == 0 and hidden.grad.shape == hidden.shape


def test_a_length_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="max_completion_length: got -5, wanted a positive number"):
        FusedLinearGRPOLoss(loss_type="dr_grpo", max_completion_length=-5)
