"""Two processes under DDP (gloo) have the gradients of one that sees both halves of the batch."""

from __future__ import annotations

import itertools
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

SCRIPT = Path(__file__).with_name("two_processes.py")
OPTIONS = [
    {"loss_type": "grpo"},
    {"loss_type": "dapo"},  # averaged over the tokens of both
    {"loss_type": "dapo", "entropy_coef": 0.1},
    {"loss_type": "vespo"},  # judges completions as a whole
    {"loss_type": "cispo", "importance_sampling_level": "sequence", "top_entropy_quantile": 0.5},
]


def case_of(options, trained, masked, silent):
    body, head = nn.Linear(6, 8), nn.Linear(8, 33)
    state = {
        f"{name}.{key}": value for name, layer in (("body", body), ("head", head)) for key, value in layer.state_dict().items()
    }
    states, ids = torch.randn(4, 5, 6), torch.randint(33, (4, 5))
    mask = (torch.arange(5) < torch.tensor([[5], [2], [4], [3]])).long()
    advantages = torch.tensor([1.0, -0.5, 0.7, -1.2])
    if masked:
        mask[2:] = 0  # all that the second process has
    if silent:
        advantages[:2] = 0  # all that the first process has: it computes no logits without an entropy term
    old = torch.full((4, 5), -3.5) + 0.2 * torch.randn(4, 5)
    more = {"num_items_in_batch": 17} if options["loss_type"] in ("vespo", "cispo") else {}
    return {
        "state": state, "trained": trained, "options": options, "more": more, "batch": (states, ids, mask, advantages, old),
    }  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """(case, gradients of process 0, of process 1) of all cases: starting processes is what takes time."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("ddp")
    halves = ((False, False), (True, False), (False, True))
    cases = [case_of(*given, *half) for given in itertools.product(OPTIONS, (False, True)) for half in halves]
    torch.save(cases, folder / "cases")
    command = [sys.executable, str(SCRIPT)]
    arguments = [str(folder / "meeting"), str(folder / "cases")]
    processes = [subprocess.Popen([*command, str(rank), *arguments], stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    try:
        for process in processes:
            _, words = process.communicate(timeout=90)
            assert process.returncode == 0, words
    finally:
        for process in processes:
            process.kill()
    return list(zip(cases, *(torch.load(folder / f"cases.{rank}") for rank in (0, 1)), strict=True))


def test_gradients_are_those_of_one_process(results):
    script = runpy.run_path(str(SCRIPT))
    for case, first, second in results:
        model = script["Model"](case)
        model(*case["batch"], **case["more"]).backward()
        wanted = script["gradients"](model)
        assert len(wanted) == (4 if case["trained"] else 2)
        for name, gradient in wanted.items():
            assert torch.equal(first[name], second[name])
            torch.testing.assert_close(
                first[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda m, c=case: f"{c['options']}: {m}"
            )


def test_a_process_without_tokens_takes_part(results):
    """It has zeros to add, and nobody waits for it in vain: the others' gradients arrive."""
    lonely = [(case, first) for case, first, _ in results if not case["batch"][2][2:].any()]
    assert len(lonely) == 2 * len(OPTIONS)
    for _, gradients in lonely:
        assert all(gradient.isfinite().all() for gradient in gradients.values()) and gradients["body.weight"].any()
