"""Records as rows of the store and back: one pair of small functions for each table.

Mappings and lists are kept as JSON. SQLite has no NaN (it stores NULL), so columns that may be NaN are read back through
`_number`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from frostline.results.record import (
    Case,
    Direction,
    Interleave,
    Kind,
    Machine,
    Metric,
    Module,
    Outcome,
    ProcessRecord,
    Reason,
    Role,
    RoundRatio,
    Session,
    SideRecord,
    Status,
    Verdict,
    Verification,
    content_id,
    new_id,
)

Row = Mapping[str, Any]

CONTENT_KEYS = {
    "machine": "id",
    "metric": "name",
    "suite_case": "id",
    "module": "id",
    "session_case": "session_id, case_id",
}
"""Tables whose rows are what they contain, with their key: a second row of the same key is the same row."""


TABLES_IN_ORDER = (
    "machine", "metric", "suite_case", "session", "session_case", "side", "process", "module", "process_module",
    "verification", "sample", "measurement", "round_ratio", "verdict",
)  # fmt: skip
"""Every table, after those that it refers to."""


def _json(value: Any) -> str:
    return json.dumps(value, default=str)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def metric_row(metric: Metric) -> Row:
    """A metric as a row; its title is its name in words."""
    return {
        "name": metric.name,
        "title": metric.name.replace("_", " "),
        "unit": metric.unit,
        "kind": metric.kind,
        "direction": metric.direction,
        "description": metric.description,
    }


def metric(row: Row) -> Metric:
    """A metric from its row."""
    return Metric(row["name"], row["unit"], Kind(row["kind"]), row["description"], Direction(row["direction"]))


def machine_row(machine: Machine) -> Row:
    """A machine as a row."""
    return {"id": machine.id, "label": machine.label, "content": _json(dict(machine.content))}


def machine(row: Row) -> Machine:
    """A machine from its row."""
    return Machine(json.loads(row["content"]))


def case_row(case: Case) -> Row:
    """A case as a row; the order of its axes is kept."""
    return {"id": case.id, "suite": case.suite, "suite_version": case.suite_version, "params": _json(dict(case.params))}


def case(row: Row) -> Case:
    """A case from its row."""
    return Case(row["suite"], row["suite_version"], json.loads(row["params"]))


def session_row(session: Session) -> Row:
    """A session as a row."""
    return {
        "id": session.id,
        "command": session.command,
        "created_at": session.created_at,
        "machine_id": session.machine_id,
        "device": session.device,
        "plan": _json(dict(session.plan)),
        "detail": _json(dict(session.detail)),
        "origin": session.origin,
    }


def session(row: Row) -> Session:
    """A session from its row."""
    return Session(**{**row, "plan": json.loads(row["plan"]), "detail": json.loads(row["detail"])})


def side_row(session_id: str, side: SideRecord) -> Row:
    """A side as a row of its session."""
    return {
        "session_id": session_id,
        "position": side.position,
        "implementation": side.implementation,
        "source": side.source,
        "source_kind": side.source_kind,
        "source_id": side.source_id,
        "baseline": int(side.baseline),
        "detail": _json(dict(side.detail)),
    }


def side(row: Row) -> SideRecord:
    """A side from its row."""
    fields = {name: value for name, value in row.items() if name != "session_id"}
    return SideRecord(**{**fields, "baseline": bool(row["baseline"]), "detail": json.loads(row["detail"])})


def process_row(record: ProcessRecord) -> Row:
    """A process as a row, without what has tables of its own (`PROCESS_CHILDREN`)."""
    return {
        "id": record.id,
        "session_id": record.session_id,
        "position": record.position,
        "case_id": record.case_id,
        "role": record.role,
        "round": record.round,
        "status": record.status,
        "reason": record.reason,
        "counted": int(record.counted),
        "attempt": record.attempt,
        "interleave": record.interleave,
        "isolation": record.isolation,
        "started_at": record.started_at,
        "seconds": record.seconds,
        "stderr": record.stderr,
        "telemetry": _json(dict(record.telemetry)),
        "environment": _json(dict(record.environment)),
        "cost": _json(dict(record.cost)),
        "code_id": record.code_id,
    }


def process(row: Row, measurement: Sequence[Row], verification: Sequence[Row], modules: Sequence[Module] = ()) -> ProcessRecord:
    """A process from its row, the rows of its children (`CHILD_QUERIES`) and its modules."""
    plain = (
        "id",
        "session_id",
        "position",
        "case_id",
        "round",
        "reason",
        "attempt",
        "isolation",
        "started_at",
        "seconds",
        "stderr",
    )
    return ProcessRecord(
        **{name: row[name] for name in plain},
        role=Role(row["role"]),
        status=Status(row["status"]),
        counted=bool(row["counted"]),
        interleave=Interleave(row["interleave"]),
        measurements={one["metric"]: one["value"] for one in measurement},
        verifications=tuple(
            Verification(one["output"], _number(one["relative"]), _number(one["maximum"]), _number(one["allowed"]))
            for one in verification
        ),
        modules=modules,
        telemetry=json.loads(row["telemetry"]),
        environment=json.loads(row["environment"]),
        cost=json.loads(row["cost"]),
    )


def module_id(module: Module) -> str:
    """The id of a module: what it contains."""
    return content_id([module.name, module.file, module.sha256])


def module(row: Row) -> Module:
    """A module from its row."""
    return Module(row["name"], row["file"], row["sha256"])


def module_row(module: Module) -> Row:
    """A module as a row."""
    return {"id": module_id(module), "name": module.name, "file": module.file, "sha256": module.sha256}


def _sample_rows(record: ProcessRecord) -> Iterator[Row]:
    taken: dict[str, int] = {}
    for one in record.samples:
        seq = taken[one.metric] = taken.get(one.metric, -1) + 1
        yield {
            "process_id": record.id,
            "metric": one.metric,
            "block": one.block,
            "seq": seq,
            "t_ns": one.t_ns,
            "value": one.value,
        }


def _measurement_rows(record: ProcessRecord) -> Iterator[Row]:
    for name, value in record.measurements.items():
        yield {"process_id": record.id, "metric": name, "value": value}


def _verification_rows(record: ProcessRecord) -> Iterator[Row]:
    for one in record.verifications:
        yield {
            "process_id": record.id,
            "output": one.output,
            "relative": one.relative,
            "maximum": one.maximum,
            "allowed": one.allowed,
        }


def _process_module_rows(record: ProcessRecord) -> Iterator[Row]:
    for identity in dict.fromkeys(map(module_id, record.modules)):
        yield {"process_id": record.id, "module_id": identity}


PROCESS_CHILDREN: Mapping[str, Callable[[ProcessRecord], Iterator[Row]]] = {
    "process_module": _process_module_rows,
    "sample": _sample_rows,
    "measurement": _measurement_rows,
    "verification": _verification_rows,
}
"""The tables that hold what belongs to a process, and the rows that a record has there."""

CHILD_QUERIES = {
    "measurement": (
        "SELECT m.* FROM measurement m JOIN process p ON p.id = m.process_id WHERE p.session_id = ? ORDER BY m.rowid"
    ),
    "verification": (
        "SELECT v.* FROM verification v JOIN process p ON p.id = v.process_id WHERE p.session_id = ? ORDER BY v.rowid"
    ),
}
"""How the children of a session's processes are read; the keys are the arguments of `process`."""


def ratio_row(ratio: RoundRatio) -> Row:
    """A round's log ratio as a row."""
    return {
        "session_id": ratio.session_id,
        "case_id": ratio.case_id,
        "round": ratio.round,
        "metric": ratio.metric,
        "position": ratio.position,
        "baseline_position": ratio.baseline_position,
        "log_ratio": ratio.log_ratio,
        "cycles": ratio.cycles,
        "interleave": ratio.interleave,
    }


def ratio(row: Row) -> RoundRatio:
    """A round's log ratio from its row."""
    return RoundRatio(**{**row, "interleave": Interleave(row["interleave"])})


def verdict_row(verdict: Verdict, judged_at: str) -> Row:
    """A verdict as a row."""
    return {
        "id": new_id(),
        "judged_at": judged_at,
        "session_id": verdict.session_id,
        "case_id": verdict.case_id,
        "metric": verdict.metric,
        "role": verdict.role,
        "position": verdict.position,
        "baseline_session_id": verdict.baseline_session_id or verdict.session_id,
        "baseline_position": verdict.baseline_position,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "sentence": verdict.sentence,
        "effect": verdict.effect,
        "low": verdict.low,
        "high": verdict.high,
        "delta": verdict.delta,
        "rounds": verdict.rounds,
        "p_value": verdict.p_value,
        "flags": _json(list(verdict.flags)),
        "level": verdict.level,
    }


def verdict(row: Row) -> Verdict:
    """A verdict from its row."""
    same = row["baseline_session_id"] == row["session_id"]
    return Verdict(
        session_id=row["session_id"],
        case_id=row["case_id"],
        metric=row["metric"],
        position=row["position"],
        baseline_position=row["baseline_position"],
        outcome=Outcome(row["outcome"]),
        reason=Reason(row["reason"]),
        sentence=row["sentence"],
        effect=_number(row["effect"]),
        low=_number(row["low"]),
        high=_number(row["high"]),
        delta=row["delta"],
        rounds=row["rounds"],
        p_value=_number(row["p_value"]),
        flags=tuple(json.loads(row["flags"])),
        role=Role(row["role"]),
        baseline_session_id="" if same else row["baseline_session_id"],
        level=row["level"],
    )
