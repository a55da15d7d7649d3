"""Measurements as a tidy pandas table, the form that charts and notebooks want."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

COLUMNS = {
    "session": "p.session_id",
    "machine": "ma.label",
    "device": "se.device",
    "suite": "c.suite",
    "suite_version": "c.suite_version",
    "case": "c.id",
    "position": "p.position",
    "implementation": "si.implementation",
    "source": "si.source",
    "baseline": "si.baseline",
    "role": "p.role",
    "round": "p.round",
    "status": "p.status",
    "reason": "p.reason",
    "metric": "m.metric",
    "unit": "mt.unit",
    "value": "m.value",
}

_TABLES = """
    FROM process p
    JOIN session se ON se.id = p.session_id
    JOIN machine ma ON ma.id = se.machine_id
    JOIN side si ON si.session_id = p.session_id AND si.position = p.position
    JOIN suite_case c ON c.id = p.case_id
    LEFT JOIN measurement m ON m.process_id = p.id
    LEFT JOIN metric mt ON mt.name = m.metric
    WHERE p.counted = 1
"""


_SAMPLES = {"process": "p.id", "block": "m.block", "seq": "m.seq", "t_ns": "m.t_ns"}


def measurement_frame(
    query: Callable[[str, Sequence[Any]], list[dict[str, Any]]], session_ids: Sequence[str], *, samples: bool = False
) -> pd.DataFrame:
    """One row for each counted process and metric, or for each of its samples; see `Store.measurements` for the columns.

    Args:
        query: runs SQL with parameters and gives rows.
        session_ids: the sessions wanted; empty means all.
        samples: the readings themselves, with `process`, `block`, `seq` and `t_ns`; what has none is left out.
    """
    columns = {**COLUMNS, **_SAMPLES} if samples else COLUMNS
    tables = _TABLES.replace("LEFT JOIN measurement", "JOIN sample") if samples else _TABLES
    order = "m.metric, m.seq" if samples else "m.rowid"
    fields = ", ".join(f'{source} AS "{name}"' for name, source in columns.items())
    chosen = f"AND p.session_id IN ({', '.join('?' * len(session_ids))})" if session_ids else ""
    found = query(f"SELECT {fields}, c.params AS params {tables} {chosen} ORDER BY p.rowid, {order}", session_ids)
    axes: dict[str, str] = {}
    table: list[dict[str, Any]] = []
    for row in found:
        params = json.loads(row.pop("params"))
        for axis in params:
            axes.setdefault(axis, f"axis.{axis}" if axis in columns else axis)
        table.append({**row, "baseline": bool(row["baseline"]), **{axes[axis]: value for axis, value in params.items()}})
    frame = pd.DataFrame(table, columns=[*columns, *axes.values()])
    return frame.astype({"value": float})
