"""Predictions beside measurements: what is off by how much, and what the libraries hold besides."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from frostline.results.devices import gemm_workspace
from frostline.results.record import Case as RecordCase
from frostline.results.record import ProcessRecord, Role, SideRecord, Status, UsageError
from frostline.results.validation import load_checked, validation_table

MIB = 2**20
CASE = RecordCase("suite", "1", {"n": 1})


def record(role: Role, peak: float, above: float, flops: float, **more: Any) -> ProcessRecord:
    measurements = {"peak_allocated": peak, "peak_above_inputs": above, "flops": flops}
    return ProcessRecord("p", "s", 0, CASE.id, role, 0, Status.OK, measurements=measurements, **more)


def evidence(*records: ProcessRecord) -> Any:
    def found(case_id: str, position: int, role: Role) -> list[ProcessRecord]:
        return [one for one in records if one.role is role]

    side = SideRecord(0, "known", "installed", "installed", "x", True)
    machine, session = SimpleNamespace(label="a machine"), SimpleNamespace(id="abc")
    return SimpleNamespace(cases=[CASE], sides=[side], records=found, machine=machine, session=session)


@pytest.fixture
def pair() -> Callable[..., Any]:
    def make(measured: float, capability: list[int] | None = None, flops: float = 100.0) -> Any:
        environment = {} if capability is None else {"capability": capability}
        cost = {"products_in": ["backward", "forward"]}
        return evidence(
            record(Role.PREDICT, 1000 * MIB, 400 * MIB, 100.0, cost=cost),
            record(Role.MEASURE, measured, 410 * MIB, flops, environment=environment),
        )

    return make


def test_on_a_gpu_each_thread_that_multiplies_has_a_workspace(pair: Callable[..., Any]) -> None:
    (one,) = load_checked(pair(1064 * MIB, [9, 0]))
    assert (one.predicted, one.error, one.holds) == (1064 * MIB, 0.0, True)
    (one,) = load_checked(pair(1000 * MIB))
    assert (one.predicted, one.error) == (1000 * MIB, 0.0), "a CPU has none"
    assert one.error_above == pytest.approx(400 / 410 - 1)


def test_workspaces_by_generation() -> None:
    assert gemm_workspace((9, 0)) == gemm_workspace((10, 0)) == 32 * MIB
    assert gemm_workspace((8, 0)) == 8519680


@pytest.mark.parametrize(
    ("measured", "flops", "holds"), [(1019, 100, True), (981, 100, True), (1021, 100, False), (1000, 99, False)]
)
def test_the_bar_is_two_per_cent_of_what_was_measured_and_the_same_flops(
    pair: Callable[..., Any], measured: int, flops: int, holds: bool
) -> None:
    (one,) = load_checked(pair(measured * MIB, flops=float(flops)))
    assert one.holds is holds
    table = validation_table(pair(measured * MIB, flops=float(flops))).text()
    assert ("holds" if holds else "missed") in table
    assert f"FLOPs are equal in {int(flops == 100)} of 1" in table


def test_a_session_without_both_is_refused() -> None:
    with pytest.raises(UsageError, match="abc has nothing that was both predicted and measured"):
        load_checked(evidence(record(Role.PREDICT, 1.0, 1.0, 1.0)))
