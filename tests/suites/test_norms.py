"""The norms suite: every side is right, the pruned one does less, and presets and bars fit the published shapes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from frostline.harness import selection
from frostline.harness.declare import Skipped
from frostline.harness.meters.counts import count
from frostline.harness.verify import verify_step
from frostline.suites import norms as module
from frostline.suites.norms import norms

SMALL = {
    "op": "rms_norm",
    "rows": 12,
    "columns": 48,
    "parameters": "frozen",
    "timed": "called",
    "backwards": 3,
    "dtype": "float32",
}
OWN, OTHERS = ["unpruned", "pruned", "torch"], ["torch_compile", "liger"]


def make(implementation, device="cpu", **changes):
    torch.manual_seed(0)
    return norms.function(implementation, device, **{**SMALL, **changes})


def test_declaration():
    assert (norms.baseline, norms.compared) == ("unpruned", "pruned")
    assert list(norms.implementations) == [*OWN, *OTHERS, "bound"]
    assert list(norms.targets) == ["frostline.kernels"] and norms.target_device is not None


@pytest.mark.parametrize("implementation", OWN)
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("parameters", ["frozen", "trainable"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_side_is_right(implementation, op, parameters, dtype):
    found = verify_step(make(implementation, op=op, parameters=parameters, dtype=dtype))
    wanted = ["d_x", "d_weight", "d_bias"][: 1 if parameters == "frozen" else 2 + (op == "layer_norm")]
    assert [one.output for one in found] == wanted
    assert all(one.ok for one in found), found


def test_a_wrong_norm_is_found(monkeypatch):
    monkeypatch.setattr(module, "_own", lambda _: lambda x, weight: x * weight)
    assert not any(one.ok for one in verify_step(make("pruned")))


def test_a_step_is_as_many_backwards_as_are_asked_for_on_tensors_of_their_own():
    gradients = make("pruned").run()
    assert len(gradients) == 3 and all(len(one) == 1 and one[0].shape == (12, 48) for one in gradients)
    assert not torch.equal(gradients[0][0], gradients[1][0])
    assert all(torch.equal(*pair) for pair in zip(gradients[1], make("pruned").run()[1], strict=True))


@pytest.mark.parametrize(("op", "all_of_them"), [("rms_norm", 2), ("layer_norm", 3)])
def test_pruned_computes_what_is_asked_for_and_unpruned_everything(op, all_of_them):
    found = {(side, part): len(make(side, op=op, parameters=part).run()[0]) for side in OWN for part in ("frozen", "trainable")}
    assert {found[side, "trainable"] for side in OWN} == {all_of_them}
    assert found["pruned", "frozen"] == found["torch", "frozen"] == 1 and found["unpruned", "frozen"] == all_of_them


def test_the_bound_adds_two_tensors_for_each_backward():
    step = make("bound")
    assert step.outputs is None
    assert count(step)["operators"] == 2 * 3  # an addition each, and the detached view of its input


@pytest.mark.parametrize("implementation", OTHERS)
def test_peers_are_skipped_without_a_gpu(implementation):
    with pytest.raises(Skipped, match=r"GPU|CUDA"):
        make(implementation)


def test_a_graph_needs_a_gpu_and_is_not_predicted():
    with pytest.raises(Skipped, match="needs a GPU"):
        make("pruned", timed="graph")
    with FakeTensorMode(), pytest.raises(Skipped, match="not predicted"):
        make("pruned", timed="graph")


@pytest.mark.parametrize("implementation", [*OWN, "bound"])
def test_every_side_of_our_own_can_be_predicted(implementation):
    with FakeTensorMode():
        make(implementation, rows=8192, columns=8192, dtype="bfloat16").run()


def test_the_paper_has_the_published_shapes_and_every_bar_is_for_one_of_its_cases():
    preset = norms.preset("paper")
    cases = [case.params for case in selection.select(norms, preset, [])]
    graphs = {(one["rows"], one["columns"]) for one in cases if one["timed"] == "graph"}
    assert graphs == {(2048, 4096), (4096, 4096), (8192, 4096), (4096, 8192), (8192, 8192), (65536, 256)}
    assert {(one["rows"], one["columns"]) for one in cases if one["timed"] == "called"} == {(2048, 4096)}
    assert len(cases) == 2 * 2 * (6 + 1)
    for bar in norms.bars:
        assert sum(bar.where.items() <= case.items() for case in cases) == 1, bar.says


def test_a_graph_is_captured_once_and_replayed(monkeypatch):
    """With a stand-in for CUDA: what is warmed up, captured and given back."""
    calls = []

    class Graph:
        def replay(self):
            calls.append("replay")

    class Scope:
        def __init__(self, *_, **options):
            self.captures = "stream" in options

        def __enter__(self):
            calls.append("capture" if self.captures else "stream")

        def __exit__(self, *_):
            calls.append("end")

    class Stream:
        def wait_stream(self, _):
            calls.append("wait")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Scope)
    monkeypatch.setattr(torch.cuda, "stream", Scope)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))

    def run():
        calls.append("run")
        return [calls.count("run")]

    replayed = module._graph_of(run, Stream())
    assert calls == ["wait", "stream", "run", "run", "end", "synchronize", "capture", "run", "end"]
    assert replayed() == replayed() == [3] and calls[-2:] == ["replay", "replay"] and calls.count("run") == 3
