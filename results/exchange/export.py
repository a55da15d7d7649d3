"""What a database holds as a flat file: measurements, or every sample, as CSV, Parquet or JSON.

Texts are written as they are: a cell that begins with `=` stays one, since a text that was changed on its way out is
no longer what was recorded. Open files of strangers in a spreadsheet as text.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frostline.results.record import UsageError
from frostline.results.schema import TABLES
from frostline.results.store import Store

if TYPE_CHECKING:
    import pandas as pd

SAMPLE_COLUMNS = ("process", "block", "seq", "t_ns")
KINDS = ("measurements", "samples")


def export(store: Store, path: Path, kind: str = "measurements", session_ids: Sequence[str] = ()) -> int:
    """Write a table, by the file's ending: `.csv`, `.json` (pandas' `orient="table"`, with a schema) or `.parquet`.

    One row is a process and metric, or with `samples` a reading; `unit` has the unit of `value`. A file that cannot be finished
    is not begun: what stood there stays.

    Returns:
        How many rows were written.

    Raises:
        UsageError: another ending or kind, nothing to write, or Parquet without pyarrow.
    """
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        raise UsageError(f"FILE: got {path.name}, wanted a name that ends in {', '.join(_WRITERS)}")
    if kind not in KINDS:
        raise UsageError(f"--what: got {kind!r}, wanted {' or '.join(KINDS)}")
    frame = store.measurements(*session_ids) if kind == "measurements" else store.sample_frame(*session_ids)
    if frame.empty:
        raise UsageError(f"FILE: {store.path} holds no {kind} to export")
    frame = _whole(frame)
    handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(frame, Path(name))
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    return len(frame)


def _whole(frame: pd.DataFrame) -> pd.DataFrame:
    """Axes of whole numbers as such: where a suite lacks one, pandas made them fractions, to have a NaN."""
    from frostline.results.frame import COLUMNS  # loads pandas, which the metadata need not

    axes = [name for name in frame.columns if name not in COLUMNS and frame[name].dtype == float]
    return frame.astype({name: "Int64" for name in axes if (frame[name].dropna() % 1 == 0).all()})


def _csv(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False, lineterminator="\n")


def _json(frame: pd.DataFrame, path: Path) -> None:
    _of_one_type(frame).to_json(path, orient="table", index=False, double_precision=15, force_ascii=False)


def _parquet(frame: pd.DataFrame, path: Path) -> None:
    try:
        import pyarrow  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        raise UsageError("FILE: .parquet needs pyarrow; install it (pip install 'frostline[export]'), or write .csv") from None
    _of_one_type(frame).to_parquet(path, engine="pyarrow", index=False)


def _of_one_type(frame: pd.DataFrame) -> pd.DataFrame:
    """Axes that are numbers in one suite and words in another become words: a column has one type in these forms."""
    mixed = {
        name: frame[name].map(lambda value: None if value is None or value != value else str(value))
        for name in frame.columns
        if frame[name].dtype == object and len({type(value) for value in frame[name].dropna()}) > 1
    }
    return frame.assign(**mixed)


_WRITERS: dict[str, Callable[[Any, Path], None]] = {".csv": _csv, ".json": _json, ".parquet": _parquet}


def datasette_metadata(name: str) -> dict[str, Any]:
    """Titles, units, facets and ready queries for Datasette. `name`: that of the database, its file's without the ending."""
    tables = {
        table: {"description": about, "columns": columns, **_TABLE_OPTIONS.get(table, {})}
        for table, (about, columns) in TABLES.items()
    }
    return {"title": "Frostline", "databases": {name: {"title": "What was measured", "tables": tables, "queries": _QUERIES}}}


_TABLE_OPTIONS: dict[str, dict[str, Any]] = {
    "process": {"facets": ["status", "role", "position"], "units": {"seconds": "s"}, "sort_desc": "started_at"},
    "verdict": {"facets": ["outcome", "reason", "metric"], "sort_desc": "judged_at"},
    "session": {"facets": ["device", "origin"], "sort_desc": "created_at", "label_column": "command"},
    "suite_case": {"facets": ["suite"], "label_column": "params"},
    "machine": {"label_column": "label"},
    "measurement": {"facets": ["metric"]},
    "sample": {"facets": ["metric"], "units": {"t_ns": "ns"}},
}

_QUERIES: dict[str, dict[str, str]] = {
    "figures": {
        "title": "Measured figures, by case and side",
        "sql": "SELECT s.id AS session, s.origin, c.suite, c.params, si.implementation, si.source, m.metric, "
        "COUNT(*) AS processes, AVG(m.value) AS mean, mt.unit FROM measurement m JOIN metric mt ON mt.name = m.metric "
        "JOIN process p ON p.id = m.process_id JOIN session s ON s.id = p.session_id JOIN suite_case c ON c.id = p.case_id "
        "JOIN side si ON si.session_id = p.session_id AND si.position = p.position WHERE p.counted = 1 AND p.role = 'measure' "
        "GROUP BY s.id, c.id, si.position, m.metric ORDER BY s.created_at DESC, c.params, si.position",
    },
    "worse": {
        "title": "Verdicts that are worse, the newest first",
        "sql": "SELECT judged_at, session_id, metric, outcome, sentence FROM verdict "
        "WHERE outcome IN ('slower', 'more', 'broken') ORDER BY judged_at DESC",
    },
    "failures": {
        "title": "Processes that failed, with their reason",
        "sql": "SELECT started_at, session_id, status, reason, stderr FROM process WHERE status != 'ok' "
        "ORDER BY started_at DESC",
    },
}
