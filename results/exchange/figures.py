"""Figures of other programs as sessions of ours: what every reader of a file makes, and how the store gets it.

A table holds the figures of one suite on one machine. Its ids are hashes of its content, so that reading the same figures twice
adds nothing, wherever the file lies.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

from frostline.results.record import (
    IMPORTED,
    METRICS,
    PEAK_ALLOCATED,
    STEP_TIME,
    Case,
    Direction,
    Imported,
    Interleave,
    Kind,
    Machine,
    Metric,
    Params,
    ProcessRecord,
    Role,
    Sample,
    Session,
    SideRecord,
    Status,
    UsageError,
    content_id,
)

UNITS: Mapping[str, tuple[float, str]] = {
    "s": (1e9, "ns"),
    "seconds": (1e9, "ns"),
    "ms": (1e6, "ns"),
    "us": (1e3, "ns"),
    "ns": (1.0, "ns"),
    "B": (1.0, "B"),
    "bytes": (1.0, "B"),
    "GB": (1e9, "B"),
    "MiB": (2.0**20, "B"),
    "GiB": (2.0**30, "B"),
}
"""Units as files write them: what a value is multiplied by, and the unit that the store keeps."""

_NAMESPACE = uuid.UUID("6f7a2f0e-4a53-5b0e-8f0c-46524f530001")  # fixed once: other ids would make all imports new
_VERSION = "imported"  # of every suite: no case of ours is one of theirs


@dataclass(frozen=True)
class Figure:
    """One side at one point. `values` has for each metric every reading that the file has, in the unit of `Figures.units`."""

    implementation: str
    source: str
    params: Params
    values: Mapping[str, Sequence[float]]
    status: Status = Status.OK
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """One suite on one machine. `units` has the file's unit for each metric's name, `created_at` is "" where it is not told."""

    suite: str
    machine: Mapping[str, Any]
    device: str
    units: Mapping[str, str]
    figures: Sequence[Figure]
    baseline: str = ""
    created_at: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


def scalar(value: object) -> int | float | str | bool:
    """A parameter as an axis value: what is no number or text becomes JSON."""
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def number(value: object, what: str) -> float:
    """A finite number out of a file. Raises UsageError, with `what` it was to be, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{what}: got {value!r}, wanted a finite number")
    return float(value)


def imported(found: Figures, origin: str, command: str) -> Imported:
    """The session that holds these figures. `origin` is the form and file that they came from.

    Raises:
        UsageError: nothing in it, or a unit that does not fit its metric.
    """
    if not found.figures:
        raise UsageError(f"FILE: {origin}: no figure of {found.suite}")
    metrics = {name: _metric(name, unit) for name, unit in found.units.items()}
    machine = Machine(dict(found.machine))
    content = [found.suite, dict(found.machine), found.device, found.created_at, [_plain(one) for one in found.figures]]
    session_id = _identity("session", content)
    named = list(dict.fromkeys((one.implementation, one.source) for one in found.figures))
    first = next((place for place, (name, _) in enumerate(named) if name == found.baseline), 0)
    sides = [
        SideRecord(place, name, source, IMPORTED, content_id([name, source, origin]), baseline=place == first)
        for place, (name, source) in enumerate(named)
    ]
    cases = list({(case := Case(found.suite, _VERSION, one.params)).id: case for one in found.figures}.values())
    created_at = found.created_at or datetime.now(UTC).isoformat()
    rounds: dict[tuple[int, str], int] = {}
    processes = []
    for at, one in enumerate(found.figures):
        position, case_id = named.index((one.implementation, one.source)), Case(found.suite, _VERSION, one.params).id
        number_of = rounds[position, case_id] = rounds.get((position, case_id), -1) + 1
        scaled = {
            name: [value * _scale(found.units[name]) for value in values] for name, values in one.values.items() if values
        }
        processes.append(
            ProcessRecord(
                _identity("process", [session_id, at]), session_id, position, case_id, Role.MEASURE, number_of, one.status,
                one.reason, interleave=Interleave.PROCESS, isolation=IMPORTED, started_at=created_at,
                measurements={name: median(values) for name, values in scaled.items()},
                samples=[Sample(name, 0, 0, value) for name, values in scaled.items() if len(values) > 1 for value in values],
                environment=dict(one.detail),
            )
        )  # fmt: skip
    session = Session(session_id, command, created_at, machine.id, found.device, {}, dict(found.detail), origin)
    return Imported(session, machine, sides, cases, processes, list(metrics.values()))


def _plain(one: Figure) -> list[Any]:
    return [one.implementation, one.source, dict(one.params), dict(one.values), one.status, one.reason]


def _identity(kind: str, content: Any) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{kind} {content_id(content)} {json.dumps(content, sort_keys=True, default=str)}"))


def _scale(unit: str) -> float:
    return UNITS.get(unit, (1.0, unit))[0]


def _metric(name: str, unit: str) -> Metric:
    kept = UNITS.get(unit, (1.0, unit))[1]
    if name in METRICS:
        if METRICS[name].unit != kept:
            raise UsageError(f"FILE: {name}: got the unit {unit!r}, wanted one of {METRICS[name].unit}")
        return METRICS[name]
    kind = {"ns": Kind.TIMING, "B": Kind.BYTES}.get(kept, Kind.TIMING if kept.endswith("/s") else Kind.EXACT)
    direction = Direction.HIGHER if kept.endswith("/s") else Direction.LOWER
    return Metric(name, kept, kind, "as another program recorded it", direction)


def metric_of(unit: str, name: str) -> str:
    """What a reading is by its unit: a step's time, a peak of memory, else a metric of the name that the file has."""
    kept = UNITS.get(unit, (1.0, unit))[1]
    return {"ns": STEP_TIME.name, "B": PEAK_ALLOCATED.name}.get(kept, name)
