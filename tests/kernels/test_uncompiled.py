"""The compiler is neither loaded by the package nor let into it: it breaks its graph once, at the public function."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from frostline.kernels import FusedLinearGRPOLoss, linear_logprob


def test_the_package_does_not_load_the_compiler():
    script = "import sys, frostline.kernels; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", script], check=False).returncode == 0


def log_probs():
    weight, targets = torch.randn(11, 8), torch.randint(11, (2, 6))
    return lambda states: linear_logprob(torch.tanh(states), weight, targets).sum() * 2


def log_probs_of_some():
    weight, targets, active = torch.randn(11, 8), torch.randint(11, (2, 6)), torch.arange(12).reshape(2, 6) % 3 > 0

    def step(states):
        logp, entropy = linear_logprob(torch.tanh(states), weight, targets, active=active, return_entropy=True)
        return (logp + entropy).sum() * 2

    return step


def policy_loss(**more):
    def make():
        weight, targets, mask = torch.randn(11, 8), torch.randint(11, (2, 6)), torch.ones(2, 6)
        mask[1, 3:] = 0
        module, old = FusedLinearGRPOLoss(beta=0.1, use_ref_model=False, **more), torch.full((2, 6), -2.5)
        advantages = torch.tensor([1.0, -0.5])

        def step(states):
            return module(torch.tanh(states), weight, targets, mask, advantages, old_per_token_logps=old)[0] * 2

        return step

    return make


@pytest.mark.parametrize(
    "make",
    [log_probs, log_probs_of_some, policy_loss(), policy_loss(top_entropy_quantile=0.5), policy_loss(loss_type="vespo")],
    ids=["log-probs", "some log-probs", "formed in the forward", "over log-probs", "by completion"],
)
def test_one_break_at_the_public_function(make):
    """Two graphs, before and after: nothing of ours is traced, so nothing of ours is recompiled or broken."""
    step, states = make(), torch.randn(2, 6, 8, requires_grad=True)
    step(states).backward()
    wanted, states.grad = states.grad, None
    torch.compiler.reset()
    found = torch._dynamo.explain(step)(states)
    assert found.graph_count == 2 and found.graph_break_count == 1
    assert "disable" in found.break_reasons[0].reason
    operators = {node.target for graph in found.graphs for node in graph.graph.nodes if node.op == "call_function"}
    assert operators and not any("frostline" in str(operator) for operator in operators)
    counter = CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(step, backend=counter)
    for _ in range(3):
        states.grad = None
        compiled(states).backward()
        torch.testing.assert_close(states.grad, wanted)
    assert counter.frame_count == 2
