"""Estimates against hand counts, and the tables of a prediction."""

from __future__ import annotations

import math
from typing import Any

import pytest

from frostline.results.breakdown import Breakdown, LiveTensor, total
from frostline.results.devices import DEVICES, Device, find_device
from frostline.results.record import ProcessRecord, Role, Status, UsageError

DEVICE = Device("Example", memory=1e9, bandwidth=1e9, half=1e12, single=1e11, capability=(9, 0), source="made up")


def call(operator: str, dtype: str, flops: int, moved: int, calls: int = 1, *, declared: bool = False) -> dict[str, Any]:
    return {"operator": operator, "dtype": dtype, "flops": flops, "bytes": moved, "declared": declared, "calls": calls}


def tensor(shape: list[int], size: int, line: str = "a.py:1 f") -> dict[str, Any]:
    return {"shape": shape, "dtype": "float32", "bytes": size, "operator": "aten.mm", "node": "", "where": [line], "born": 1}


def predicted(*calls: dict[str, Any], alive: tuple[dict[str, Any], ...] = ()) -> ProcessRecord:
    peak = {"bytes": 1000, "operator": "aten.mm", "node": "", "where": ["a.py:1 f"], "at": 3, "operators": 7}
    cost = {"peak": {**peak, "alive": list(alive)}, "calls": list(calls)}
    return ProcessRecord("p", "s", 0, "c", Role.PREDICT, -1, Status.OK, cost=cost)


def found(record: ProcessRecord) -> Breakdown:
    breakdown = Breakdown.of(record)
    assert breakdown is not None
    return breakdown


def test_an_operator_takes_the_longer_of_its_products_and_its_bytes_call_by_call() -> None:
    record = predicted(
        call("aten.mm", "bfloat16", flops=2 * 10**9, moved=10**6, calls=3),  # 2 ms of products, 1 ms of bytes
        call("aten.mm", "bfloat16", flops=10**9, moved=5 * 10**6),  # 1 ms, 5 ms
        call("aten.mm", "float32", flops=10**9, moved=0),  # 10 ms: no tensor cores
        call("aten.add", "float32", flops=0, moved=4 * 10**6, calls=2),
    )
    work = {(one.operator, one.dtype): one for one in found(record).work(DEVICE)}
    assert work["aten.mm", "bfloat16"].seconds == pytest.approx(3 * 2e-3 + 5e-3)
    assert work["aten.mm", "float32"].seconds == pytest.approx(10e-3)
    assert work["aten.add", "float32"].seconds == pytest.approx(8e-3)
    whole = total(work.values())
    assert (whole.calls, whole.flops, whole.bytes) == (7, 8 * 10**9, 16 * 10**6)
    assert whole.seconds == pytest.approx(29e-3)


def test_the_heaviest_comes_first() -> None:
    calls = [call("small", "bfloat16", 10, 10), call("copy", "", 0, 10**9), call("large", "bfloat16", 10**9, 10)]
    assert [one.operator for one in found(predicted(*calls)).work()] == ["large", "small", "copy"]
    assert [one.operator for one in found(predicted(*calls)).work(DEVICE)] == ["copy", "large", "small"]


def test_a_dtype_without_a_rate_has_no_estimate() -> None:
    assert math.isnan(DEVICE.seconds(1.0, 1.0, "float64"))
    assert DEVICE.seconds(0.0, 1e9, "float64") == 1.0


def test_tensors_alike_stand_together_the_most_bytes_first() -> None:
    alive = (tensor([10], 400), tensor([5], 300), tensor([5], 300), tensor([5], 300, "b.py:2 g"))
    assert [(one.shape, one.count) for one in found(predicted(alive=alive)).alive] == [((5,), 2), ((10,), 1), ((5,), 1)]
    assert all(isinstance(one, LiveTensor) for one in found(predicted(alive=alive)).alive)


def test_a_record_without_a_breakdown_has_none() -> None:
    assert Breakdown.of(ProcessRecord("p", "s", 0, "c", Role.PREDICT, -1, Status.OK)) is None


@pytest.mark.parametrize("name", ["h200", "H200", "RTX 4090", "rtx-4090"])
def test_devices_by_name(name: str) -> None:
    assert find_device(name).title.startswith(("H200", "GeForce"))


def test_an_unknown_device_says_which_there_are() -> None:
    with pytest.raises(UsageError, match=r"--device: got 'h2000', wanted one of b200, h200, h100, a100, .*rtx4090"):
        find_device("h2000")


def test_rates_are_of_dense_products_and_every_figure_has_a_source() -> None:
    for device in DEVICES.values():
        assert device.source and device.bandwidth < device.single < device.half
    # an A100's are its datasheet's, which has both columns: 312 dense, 624 with sparsity
    assert DEVICES["a100"].half == 312e12
