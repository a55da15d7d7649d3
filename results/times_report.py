"""The table of a suite whose steps are timed in more than one way: each time by itself, a column for each side.

Beside the tables that have everything of a case together, this is the form in which kernels are published: a row for each
shape, and how many times as fast as the baseline a side is.
"""

from __future__ import annotations

import math

import numpy as np

from frostline.results.evidence import Evidence, side_names, varying_axes
from frostline.results.notes import plain, skipped_throughout, suite_of
from frostline.results.record import STEP_TIME, Case, Kind, Role, SideRecord, Status
from frostline.results.statistics import summarise
from frostline.results.table import Cell, Column, Table
from frostline.results.units import MISSING, format_value


def times_table(evidence: Evidence) -> Table | None:
    """A row for each time and case; None where steps were timed as they are called and in no other way."""
    measured = {name for record in evidence.processes if record.role is Role.MEASURE for name in record.measurements}
    times = [name for name, metric in evidence.metrics.items() if metric.kind is Kind.TIMING and name in measured]
    if not set(times) - {STEP_TIME.name}:
        return None
    skipped, names, axes = skipped_throughout(evidence, Role.MEASURE), side_names(evidence.sides), varying_axes(evidence.cases)
    sides = [evidence.baseline, *(side for side in evidence.others if side.position not in skipped)]
    rows: list[list[Cell]] = []
    for metric in times:
        for case in evidence.cases:
            if any(evidence.values(case.id, side.position, metric) for side in sides):
                place: list[Cell] = [(plain(case.params.get(axis)),) for axis in axes]
                rows.append([(metric.replace("_", " "),), *place, *(_cell(evidence, case, side, metric) for side in sides)])
    columns = [
        Column("time"),
        *(Column(axis) for axis in axes),
        *(Column(names[side.position], figures=True) for side in sides),
    ]
    if evidence.session.origin:  # no rounds
        return Table(f"Times of {suite_of(evidence.cases)}", columns, rows, [])
    note = f"below a time: how many times as fast as {names[evidence.baseline.position]}, by the rounds that both were in"
    return Table(f"Times of {suite_of(evidence.cases)}", columns, rows, [note])


def _cell(evidence: Evidence, case: Case, side: SideRecord, metric: str) -> Cell:
    """A side's time, and unless it is the baseline how many times as fast it is."""
    if evidence.standing(case.id, side.position).status is not Status.OK:
        return (MISSING,)
    own, other = (summarise(evidence.values(case.id, one.position, metric)).median for one in (side, evidence.baseline))
    if math.isnan(own):
        return (MISSING,)
    logs = [one.log_ratio for one in evidence.round_ratios(case.id, metric, side.position)]
    faster = math.exp(-float(np.mean(logs))) if logs else other / own
    told = side.position == evidence.baseline.position or math.isnan(faster) or bool(evidence.session.origin)
    shown = format_value(own, evidence.metrics[metric].unit)
    return (shown,) if told else (shown, f"{faster:.2f}x")
