"""The weight of a head is all of it, or the head is refused: with PEFT's own layers where PEFT is installed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from frostline.kernels import head_parameters, linear_logprob


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.lm_head = nn.Linear(8, 8), nn.Linear(8, 20)

    def forward(self, states):
        return self.lm_head(self.body(states))


@pytest.mark.parametrize("bias", [False, True])
def test_a_plain_head(bias):
    head = nn.Linear(8, 20, bias=bias)
    weight, offset = head_parameters(head)
    assert weight is head.weight and offset is head.bias


@pytest.mark.parametrize("module", [nn.ReLU(), nn.Conv1d(3, 4, 5), nn.LayerNorm(8)], ids=lambda module: type(module).__name__)
def test_what_is_no_head(module):
    with pytest.raises(TypeError, match=f"lm_head: got {type(module).__name__}, wanted a module with a weight"):
        head_parameters(module)


def test_an_adapter_around_the_head():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_layer = nn.Linear(8, 20)
            self.weight = self.base_layer.weight

    with pytest.raises(RuntimeError, match="lm_head: got Adapted with an adapter, wanted a plain Linear: leave lm_head out"):
        head_parameters(Adapted())


def test_the_adapters_of_peft():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(Model(), peft.LoraConfig(target_modules=["body", "lm_head"]))
    with pytest.raises(RuntimeError, match="lm_head: got Linear with an adapter"):
        head_parameters(adapted.get_base_model().lm_head)
    head_parameters(adapted.merge_and_unload().lm_head)


def test_a_head_that_peft_trains_whole():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(Model(), peft.LoraConfig(target_modules=["body"], modules_to_save=["lm_head"]))
    weight, bias = head_parameters(model.get_base_model().lm_head)
    with torch.no_grad():
        weight.mul_(2.0)
    states, targets = torch.randn(5, 8), torch.randint(20, (5,))
    wanted = model(states).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    found = linear_logprob(model.get_base_model().body(states), weight, targets, bias)
    torch.testing.assert_close(found, wanted)
    found.sum().backward()
    assert weight.requires_grad and weight.grad is not None
