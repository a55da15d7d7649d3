"""Against Liger-Kernel 0.8.5's own module, called the same way."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import linear

from frostline.kernels import FusedLinearGRPOLoss

BATCH, LENGTH, HIDDEN, VOCAB = 4, 5, 8, 70
# Liger-Kernel refuses cispo and sapo at sequence level.
COMBINATIONS = [
    *itertools.product(("grpo", "bnpo", "dr_grpo", "dapo", "luspo"), ("token", "sequence")),
    *itertools.product(("cispo", "sapo", "vespo"), ("token",)),
]
OPTIONS = {
    "plain": ({}, {}),
    "no KL": ({"beta": 0.0}, {}),
    "bias-corrected": ({"use_bias_correction_kl": True, "delta": 1.15, "temperature": 0.8}, {}),
    "numbers": ({"sapo_temperature_neg": 2.0, "vespo_k_pos": 1.0, "vespo_lambda_neg": 1.5, "epsilon_low": 0.05}, {}),
    "reference head": ({}, {"reference": "head"}),
    "per completion": ({}, {"ratio": (BATCH,)}),
    "per token": ({}, {"ratio": (BATCH, LENGTH)}),
    "items": ({}, {"items": 40}),
}


@pytest.fixture
def theirs():
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed")
    from importlib.metadata import version

    if not version("liger_kernel").startswith("0.8."):
        pytest.skip(f"liger-kernel {version('liger_kernel')} is installed, 0.8 is what is compared")
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    return LigerFusedLinearGRPOLoss


@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trainable"])
@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("loss_type, level", COMBINATIONS)
def test_the_same_call_gives_the_same(theirs, loss_type, level, options, trained):
    numbers, inputs = OPTIONS[options]
    numbers = {"beta": 0.1, "epsilon_high": 0.9, "loss_type": loss_type, "importance_sampling_level": level} | numbers
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    if loss_type != "luspo" or (level == "sequence" and options == "no KL"):  # elsewhere Liger-Kernel does not mask luspo
        mask[0, 3:], mask[3, 1:] = 0, 0
    states, head, offset = torch.randn(BATCH, LENGTH, HIDDEN), torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB)
    targets = torch.randint(VOCAB, (BATCH, LENGTH))
    logp = linear(states, head, offset).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    given = {"old_per_token_logps": logp + 0.3 * torch.randn(BATCH, LENGTH), "num_items_in_batch": inputs.get("items")}
    if inputs.get("reference") == "head":
        given |= {
            "ref_input": torch.randn(BATCH, LENGTH, 5),
            "ref_weight": torch.randn(VOCAB, 5),
            "ref_bias": torch.randn(VOCAB),
        }
    else:
        given["ref_per_token_logps"] = logp + 0.5 * torch.randn(BATCH, LENGTH)
    if "ratio" in inputs:
        given["vllm_is_ratio"] = torch.rand(inputs["ratio"]) + 0.5
        if loss_type == "vespo" and given["vllm_is_ratio"].ndim == 2:  # Liger-Kernel sums its logarithm over padding as well
            given["vllm_is_ratio"][mask == 0] = 1.0
    found = []
    for module in (FusedLinearGRPOLoss, theirs):
        hidden, weight, bias = (leaf.clone().requires_grad_() for leaf in (states, head, offset))
        weight.requires_grad_(trained)
        bias.requires_grad_(trained)
        loss, metrics = module(compiled=False, max_completion_length=9, **numbers)(
            hidden, weight, targets, mask, torch.tensor([1.3, -0.7, 0.5, -1.1]), bias, **given
        )
        loss.backward()
        found.append([loss.detach(), *metrics, hidden.grad, weight.grad, bias.grad])
    for ours, liger in zip(*found, strict=True):
        assert (ours is None) == (liger is None)
        if ours is not None:
            torch.testing.assert_close(ours, liger, rtol=1e-4, atol=1e-5)


def test_padding_changes_the_luspo_of_liger_and_not_ours(theirs):
    """Why the two differ where luspo's terms are per token."""
    states, head = torch.randn(2, 6, HIDDEN), torch.randn(VOCAB, HIDDEN)
    targets, mask, old = torch.randint(VOCAB, (2, 6)), torch.ones(2, 6, dtype=torch.long), -8 + torch.randn(2, 6)
    mask[:, 4:] = 0
    same = {}
    for module in (FusedLinearGRPOLoss, theirs):
        loss = module(loss_type="luspo", beta=0.0, use_ref_model=False, compiled=False)
        values = [
            loss(states[:, :n], head, targets[:, :n], mask[:, :n], torch.ones(2), old_per_token_logps=old[:, :n])[0]
            for n in (6, 4)
        ]
        same[module] = torch.allclose(*values)
    assert same == {FusedLinearGRPOLoss: True, theirs: False}
