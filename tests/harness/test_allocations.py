"""The ledger: the bytes of `LiveBytes`, and for each storage who made it, where, and whether it lives at the peak."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from frostline.harness.cost import predict
from frostline.harness.declare import Step
from frostline.harness.meters.allocations import Ledger, Peak
from frostline.harness.meters.memory import LiveBytes
from frostline.suites.grpo import grpo


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


def own_line(offset: int = 0) -> int:
    return sys._getframe(1).f_lineno + offset


def test_the_fullest_moment_and_what_is_alive_then() -> None:
    with Ledger() as ledger:
        given = torch.ones(100)
        ledger.reset_peak()
        early = given + 1
        del early
        large = given.repeat(5)
        small = large[:50] * 2
        line = own_line(-1)
        del large
        last = given - 1
    peak = ledger.peak_of_step()
    assert [one.shape for one in peak.alive] == [(500,), (100,), (50,)], "neither what was freed before nor what came after"
    assert sum(one.bytes for one in peak.alive) == peak.bytes == ledger.peak == 4 * 650
    assert (peak.operator, peak.at, peak.operators) == ("aten.mul", 4, 5)
    assert peak.where[0] == f"tests/harness/test_allocations.py:{line} test_the_fullest_moment_and_what_is_alive_then"
    assert [one.operator for one in peak.alive] == ["aten.repeat", "aten.ones", "aten.mul"]
    assert small.numel() + last.numel() == 150


def test_a_backward_is_told_by_its_node() -> None:
    with Ledger() as ledger:
        x = torch.ones(4, 4, requires_grad=True)
        w = torch.ones(4, 4)
        ledger.reset_peak()
        (x @ w).sum().backward()
    gradient = next(one for one in ledger.peak_of_step().alive if one.node == "MmBackward0")
    assert (gradient.operator, gradient.shape) == ("aten.mm", (4, 4))
    assert "test_a_backward_is_told_by_its_node" in gradient.where[0]


def test_a_storage_that_grows_is_another_from_then_on() -> None:
    with Ledger() as ledger:
        out = torch.ones(10)
        ledger.reset_peak()
        out.resize_(1000)
    (one,) = ledger.peak_of_step().alive
    assert one.bytes == 4000


def test_tensors_from_elsewhere_have_no_operator() -> None:
    outside = torch.ones(100)
    with Ledger() as ledger:
        outside.sum()
    (one, _) = ledger.peak_of_step().alive
    assert (one.operator, one.bytes) == ("", 400)


def step() -> Step:
    hidden, weight = torch.randn(48, 32, requires_grad=True), torch.randn(300, 32, requires_grad=True)
    targets = torch.randint(0, 300, (48,))

    def run() -> None:
        functional.cross_entropy(functional.linear(hidden, weight), targets).backward()

    def reset() -> None:
        hidden.grad = weight.grad = None

    return Step(run=run, reset=reset)


def test_the_same_peak_as_without_a_memory_of_it() -> None:
    peaks = []
    for tracker in (LiveBytes(), Ledger()):
        with tracker:
            made = step()
            tracker.reset_peak()
            made.run()
        peaks.append(tracker.peak)
    assert peaks[0] == peaks[1] == sum(one.bytes for one in tracker.peak_of_step().alive)


@pytest.mark.parametrize("implementation", ["unpruned", "pruned", "torch"])
@pytest.mark.parametrize("lm_head", ["frozen", "trainable"])
def test_the_bytes_at_the_peak_add_up_at_full_size(implementation: str, lm_head: str) -> None:
    case = {axis: values[0] for axis, values in grpo.axes.items()} | {"lm_head": lm_head, "vocab": 8192, "hidden": 256}
    assert grpo.target_device is not None
    cost = predict(lambda: grpo.function(implementation, "cpu", **case), context=grpo.target_device("cuda"), device="cuda")
    assert sum(one.bytes for one in cost.peak.alive) == cost.peak.bytes == cost.figures["peak_allocated"]
    assert all(one.where for one in cost.peak.alive)


def test_lines_are_of_the_code_measured_and_name_no_folder() -> None:
    case = {axis: values[0] for axis, values in grpo.axes.items()} | {"vocab": 8192, "hidden": 256, "lm_head": "trainable"}
    assert grpo.target_device is not None
    peak: Peak = predict(lambda: grpo.function("pruned", "cpu", **case), context=grpo.target_device("cuda"), device="cuda").peak
    logits = next(one for one in peak.alive if one.dtype == "float32" and one.shape[-1:] == (8192,))
    innermost, caller, *_ = logits.where
    assert innermost.startswith("frostline/kernels/lm_head/head.py:") and innermost.endswith(" empty")
    assert caller.startswith("frostline/kernels/lm_head/engine.py:") and caller.endswith(" blocks")
    assert not any(str(Path(__file__).parents[2]) in line for one in peak.alive for line in one.where)


def test_predicting_loads_no_compiler_and_leaves_the_real_one_to_who_wants_it() -> None:
    code = """
import sys, torch
from frostline.harness.cost import predict
from frostline.harness.declare import Step
def build():
    x = torch.ones(4, requires_grad=True)
    return Step(run=lambda: ((x + 1).clone() < torch.arange(4)).sum())
print(predict(build).figures["operators"])
print("torch._dynamo" in sys.modules, "torch._dynamo.config" in sys.modules)
import torch._dynamo.config
print(torch._dynamo.config.fake_tensor_cache_enabled, torch._dynamo.__file__ is not None, torch._dynamo.disable(len)([1]))
print(predict(build).figures["operators"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == ["5.0", "False False", "True True 1", "5.0"]


def test_code_that_imports_the_compiler_while_it_is_predicted_gets_the_real_one() -> None:
    code = """
import torch
from frostline.harness.cost import predict
from frostline.harness.declare import Step
def build():
    x = torch.ones(4)
    def run():
        import torch._dynamo.utils
        assert torch._dynamo.__file__ and torch._dynamo.config.cache_size_limit
        return x + 1
    return Step(run=run)
print(predict(build).figures["operators"])
import torch._dynamo
print(torch._dynamo.config.fake_tensor_cache_enabled)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1.0", "True"]


def test_a_package_that_only_gets_ready_for_the_compiler_does_not_load_it(tmp_path: Path) -> None:
    (tmp_path / "ready.py").write_text(
        "import torch\nimport torch._dynamo.config\n"
        "@torch._dynamo.disable(recursive=False)\ndef double(x):\n"
        "    torch._dynamo.maybe_mark_dynamic(x, 0)\n    return x * torch.tensor(2.0)\n"
    )
    code = f"""
import sys, torch
sys.path.insert(0, {str(tmp_path)!r})
from frostline.harness.cost import predict
from frostline.harness.declare import Step
def build():
    import ready
    x = torch.ones(4)
    return Step(run=lambda: ready.double(x))
finders = list(sys.meta_path)
print(predict(build).figures["peak_above_inputs"], "torch._dynamo" in sys.modules, sys.meta_path == finders)
import ready, torch._dynamo.source
print(ready.double(torch.ones(4)).sum().item(), torch._dynamo.source.ConstantSource.__module__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["20.0 False True", "8.0 torch._dynamo.source"]
