"""Why a prediction is more than another one of the same step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frostline.results.causes import cause_of_more
from frostline.results.record import ProcessRecord, Role, Status, new_id


def tensor(size: int, operator: str = "aten.mm", line: int = 1, shape: tuple[int, ...] = (4, 4)) -> dict[str, Any]:
    where = [f"lib.py:{line} step"]
    return {"shape": shape, "dtype": "float32", "bytes": size, "operator": operator, "node": "", "where": where}


def call(operator: str, flops: float, calls: int = 1) -> dict[str, Any]:
    return {"operator": operator, "dtype": "float32", "flops": flops, "bytes": 0.0, "declared": False, "calls": calls}


def record(cost: Mapping[str, Any]) -> ProcessRecord:
    return ProcessRecord(new_id(), "session", 0, "case", Role.PREDICT, -1, Status.OK, cost=cost)


def predicted(alive: list[dict[str, Any]], calls: list[dict[str, Any]] | None = None) -> ProcessRecord:
    peak = {"bytes": sum(one["bytes"] for one in alive), "operator": "", "node": "", "where": [], "at": 1, "operators": 2}
    return record({"peak": {**peak, "alive": alive}, "calls": calls or []})


def test_the_tensor_of_which_there_is_most_more_is_named_wherever_its_line_has_moved():
    before = predicted([tensor(4096, line=1), tensor(1024, "aten.exp")])
    after = predicted([tensor(4096, line=9), tensor(1024, "aten.exp"), tensor(1024, "aten.exp"), tensor(512, "aten.log")])
    said = cause_of_more("peak_allocated", after, before)
    assert said == "Alive at its peak and not before: 1.000 KiB of [4, 4] float32, made by aten.exp at lib.py:1 step."


def test_a_tensor_that_grew_is_another_one():
    said = cause_of_more("peak_above_inputs", predicted([tensor(2048, shape=(4, 8))]), predicted([tensor(1024)]))
    assert "2.000 KiB of [4, 8] float32" in said


def test_the_operator_that_does_most_more():
    before = predicted([], [call("aten.mm", 1e9, 2), call("aten.add", 0, 3)])
    after = predicted([], [call("aten.mm", 1e9, 3), call("aten.add", 0, 9)])
    assert cause_of_more("flops", after, before) == "Most of it is aten.mm: 1.000 GFLOP more."
    assert cause_of_more("operators", after, before) == "Most of it is aten.add: 6 calls more."


def test_nothing_is_said_where_the_records_do_not_tell():
    one = predicted([tensor(1024)], [call("aten.mm", 1e9)])
    for metric in ("peak_allocated", "flops", "operators", "step_time"):
        assert cause_of_more(metric, one, one) == ""
        assert cause_of_more(metric, one, record({})) == ""
