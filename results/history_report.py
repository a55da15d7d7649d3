"""A suite's history as a table: a row for each step, and for each line without one."""

from __future__ import annotations

from collections.abc import Sequence

from frostline.results.evidence import varying_axes
from frostline.results.history import LEAST, Line
from frostline.results.notes import plain
from frostline.results.table import Cell, Column, Table
from frostline.results.units import MISSING, format_value

_SHORT = 12  # characters of a commit


def history_table(suite: str, lines: Sequence[Line]) -> Table:
    """The steps of some lines, and where they are now."""
    axes = varying_axes([line.case for line in lines])
    rows: list[list[Cell]] = []
    for line in lines:
        params = [(plain(line.case.params.get(axis)),) for axis in axes]
        newest = format_value(line.points[-1].value, line.metric.unit)
        place: list[Cell] = [
            (line.metric.name.replace("_", " "),),
            (line.implementation,),
            *params,
            (f"{len(line.points)}",),
            (newest,),
        ]
        if not line.steps:
            said = f"too few commits ({LEAST} are needed)" if line.too_short else "none"
            rows.append([*place, (said,), (MISSING,), (MISSING,)])
        for step in line.steps:
            told = f"{format_value(step.before, line.metric.unit)} to {format_value(step.after, line.metric.unit)}"
            change = f"{step.ratio - 1:+.1%}" if step.before else MISSING
            rows.append([*place, (f"{step.commit[:_SHORT]} {step.subject}".strip(),), (told,), (change,)])
    columns = [
        Column("metric"), Column("implementation"), *(Column(axis) for axis in axes), Column("commits", figures=True),
        Column("newest", figures=True), Column("step at"), Column("from and to", figures=True), Column("change", figures=True),
    ]  # fmt: skip
    return Table(f"History of {suite}", columns, rows, list(_notes(lines)))


def _notes(lines: Sequence[Line]) -> list[str]:
    where = dict.fromkeys(f"{line.device} on {line.machine}" if line.machine != "predicted" else "predicted" for line in lines)
    versions = dict.fromkeys(line.case.suite_version for line in lines)
    said = [f"measured: {'; '.join(where)}; suite version {', '.join(versions)}: each has lines of its own"]
    if any(point.changed for line in lines for point in line.points):
        said.append("some commits were measured with changes that were not committed: those are points of their own")
    return [*said, "a commit's figure: the median over its sessions. Steps inform, and gate nothing (docs/history.md)"]
