"""The GRPO example trains, leaves the head alone, and follows the curve of plain torch."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("peft", reason="peft is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo_lora.py"
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")  # PEFT calls what transformers 5 has renamed


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("grpo_lora", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "grpo_lora", module)  # its dataclasses look there for their annotations
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def curves(example):
    """float64, so that a rounding never changes which token is sampled."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two would spend their time on waiting for each other
    try:
        return {name: example.train(name, steps=20, dtype=torch.float64) for name in ("frostline", "torch")}
    finally:
        torch.set_num_threads(threads)


def test_the_reward_rises(curves):
    rewards = torch.tensor(curves["frostline"].rewards)
    assert rewards[-5:].mean() > rewards[:5].mean() + 0.2


def test_a_second_step_on_the_same_samples_lowers_the_loss(curves):
    losses = torch.tensor(curves["frostline"].losses).view(-1, 2)
    assert (losses[:, 1] < losses[:, 0]).float().mean() > 0.8


def test_the_head_is_left_alone(curves):
    assert curves["frostline"].head_gradient is None and not curves["frostline"].head_moved


def test_plain_torch_follows_the_same_curve(curves):
    for ours, theirs in zip(vars(curves["frostline"]).values(), vars(curves["torch"]).values(), strict=True):
        if isinstance(ours, list):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_the_command_prints_the_same_curve_for_both(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--steps", "3", "--implementation"]
    running = [
        subprocess.Popen([*command, name], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in ("frostline", "torch")
    ]
    printed = []
    for process, (out, err) in [(process, process.communicate(timeout=120)) for process in running]:
        assert process.returncode == 0, err
        assert out.endswith("gradient of the head: None\n")
        printed.append([float(number) for number in re.findall(r"[-+]?\d+\.\d+", out)])
    assert len(printed[0]) == 3 * 4  # a reward, two losses and a KL in each step
    torch.testing.assert_close(printed[0], printed[1], rtol=0, atol=2e-4)  # in the last digit that is printed
    assert not list(tmp_path.iterdir())


def test_an_adapter_on_the_head_is_refused(example):
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = get_peft_model(LlamaForCausalLM(LlamaConfig(vocab_size=9, **shape)), LoraConfig(target_modules=["lm_head"]))
    with pytest.raises(RuntimeError, match=r"lm_head: got .* with an adapter, wanted a plain Linear: leave lm_head"):
        example.head_of(model)
