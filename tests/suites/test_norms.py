"""The norms suite: every side is right, the pruned one does less, and presets and bars fit the published shapes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from frostline.harness import selection
from frostline.harness.cost import predict
from frostline.harness.declare import Skipped
from frostline.harness.meters.counts import count
from frostline.harness.verify import verify_step
from frostline.kernels.matmul import target_device
from frostline.suites.norm_backward import sides
from frostline.suites.norms import norms

SMALL = {"op": "rms_norm", "rows": 12, "columns": 48, "parameters": "frozen", "dtype": "float32"}
OWN, OTHERS = ["unpruned", "pruned", "torch"], ["torch_compile", "liger"]
OPS = ["rms_norm", "layer_norm", "fused_add_rms_norm"]


def make(implementation, device="cpu", **changes):
    torch.manual_seed(0)
    return norms.function(implementation, device, **{**SMALL, **changes})


def test_declaration():
    assert (norms.baseline, norms.compared) == ("unpruned", "pruned")
    assert list(norms.implementations) == [*OWN, *OTHERS, "bound"]
    assert list(norms.targets) == ["frostline.kernels"] and norms.target_device is not None


@pytest.mark.parametrize("implementation", OWN)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("parameters", ["frozen", "trainable"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_side_is_right(implementation, op, parameters, dtype):
    found = verify_step(make(implementation, op=op, parameters=parameters, dtype=dtype))
    leaves = ["d_x", "d_residual"] if op == "fused_add_rms_norm" else ["d_x"]
    trained = ["d_weight", "d_bias"][: 1 + (op == "layer_norm")] if parameters == "trainable" else []
    assert [one.output for one in found] == [*leaves, *trained]
    assert all(one.ok for one in found), found


def test_a_wrong_norm_is_found(monkeypatch):
    monkeypatch.setattr("frostline.suites.norms.norm_of", lambda *_: lambda x, weight: x * weight)
    assert not any(one.ok for one in verify_step(make("pruned")))


def test_a_step_is_one_backward_and_an_alike_one_has_tensors_of_its_own():
    step = make("pruned")
    (gradient,) = step.run()
    assert gradient.shape == (12, 48) and torch.equal(gradient, step.run()[0])
    (other,) = step.alike()()
    assert other.shape == (12, 48) and not torch.equal(gradient, other)
    assert step.times == ("step_time",), "without a GPU a backward is timed as it is called"


@pytest.mark.parametrize(("op", "all_of_them"), [("rms_norm", 2), ("layer_norm", 3), ("fused_add_rms_norm", 3)])
def test_pruned_computes_what_is_asked_for_and_unpruned_everything(op, all_of_them):
    leaves = 1 + (op == "fused_add_rms_norm")
    for run in (lambda step: step.run(), lambda step: step.alike()()):
        found = {(side, part): len(run(make(side, op=op, parameters=part))) for side in OWN for part in ("frozen", "trainable")}
        assert {found[side, "trainable"] for side in OWN} == {all_of_them}
        assert found["pruned", "frozen"] == found["torch", "frozen"] == leaves and found["unpruned", "frozen"] == all_of_them


@pytest.mark.parametrize(("op", "tensors"), [("rms_norm", 2), ("layer_norm", 2), ("fused_add_rms_norm", 3)])
def test_the_bound_reads_what_a_frozen_backward_reads(op, tensors):
    torch.manual_seed(0)
    step = make("bound", op=op)
    assert step.outputs is None and count(step)["operators"] == 1
    cost = predict(lambda: make("bound", op=op, rows=512, columns=1024))
    assert sum(call.bytes for call in cost.calls) == (tensors + 1) * 4 * 512 * 1024
    assert step.alike()().shape == (12, 48)


@pytest.mark.parametrize("implementation", OTHERS)
def test_peers_are_skipped_without_a_gpu(implementation):
    with pytest.raises(Skipped, match=r"GPU|CUDA"):
        make(implementation)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("parameters", ["frozen", "trainable"])
def test_a_frozen_backward_is_predicted_to_move_what_the_bound_does(op, parameters):
    def bytes_of(implementation):
        shape = {"op": op, "rows": 8192, "columns": 8192, "dtype": "bfloat16", "parameters": parameters}
        return sum(
            call.bytes * call.calls
            for call in predict(
                lambda: make(implementation, **shape), context=target_device("cuda"), device="cuda", traffic=norms.traffic()
            ).calls
        )

    assert 1 < bytes_of("pruned") / bytes_of("bound") < (1.001 if parameters == "frozen" else 1.06)


@pytest.mark.parametrize("implementation", [*OWN, "bound"])
def test_every_side_of_our_own_can_be_predicted(implementation):
    with FakeTensorMode():
        make(implementation, rows=8192, columns=8192, dtype="bfloat16").run()


def test_the_compiled_norm_is_compiled_at_its_first_call_alone(monkeypatch):
    calls = []
    monkeypatch.setattr(
        sides, "compiled_norm", lambda _: lambda *tensors: calls.append(1) or sides.torch_norm("rms_norm")(*tensors)
    )
    step = make("torch_compile")
    assert not calls and step.outputs is None and step.omit == ("flops", "operators")
    assert step.run()[0].shape == (12, 48) and step.run() and calls == [1]


@pytest.mark.parametrize("name", ["paper", "full"])
def test_the_paper_has_the_published_shapes_and_every_bar_has_a_case(name):
    preset = norms.preset(name)
    cases = [case.params for case in selection.select(norms, preset, [])]
    shapes = {(2048, 4096), (4096, 4096), (8192, 4096), (4096, 8192), (8192, 8192), (65536, 256)}
    for op in ("rms_norm", "layer_norm"):
        frozen = [(one["rows"], one["columns"]) for one in cases if (one["op"], one["parameters"]) == (op, "frozen")]
        assert len(frozen) == len(shapes) and set(frozen) == shapes
    assert len(cases) == {"paper": 2 * 6 + 2 * 3 + 1, "full": 3 * 2 * 6}[name]
    for bar in norms.bars:
        assert any(bar.where.items() <= case.items() for case in cases), bar.says
