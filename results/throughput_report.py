"""The table of a suite whose steps say how many tokens they train: tokens a second and peak memory, a column for each side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frostline.results.evidence import Evidence, side_names, varying_axes
from frostline.results.notes import plain, skipped_throughout, suite_of
from frostline.results.record import FLOPS, PEAK_ALLOCATED, STEP_TIME, Case, Role, SideRecord, Status
from frostline.results.statistics import summarise
from frostline.results.table import Cell, Column, Table
from frostline.results.units import MISSING

TOKENS, HEAD_FLOPS = "tokens", "head_flops"  # of a step's detail


def throughput_table(evidence: Evidence) -> Table | None:
    """A row for each case; None where no step says how many tokens it trains."""
    if not any(_told(evidence, case, side) for case in evidence.cases for side in evidence.sides):
        return None
    skipped, names, axes = skipped_throughout(evidence, Role.MEASURE), side_names(evidence.sides), varying_axes(evidence.cases)
    sides = [side for side in evidence.sides if side.position not in skipped]
    rows: list[list[Cell]] = []
    for case in evidence.cases:
        place: list[Cell] = [(plain(case.params.get(axis)),) for axis in axes]
        rows.append([*place, (_head_share(evidence, case, sides),), *(_cell(evidence, case, side) for side in sides)])
    columns = [
        *(Column(axis) for axis in axes),
        Column("head's FLOPs", figures=True),
        *(Column(names[side.position], figures=True) for side in sides),
    ]
    notes = [
        "tokens a second: those of a step over the median step time; below it the peak of allocated memory, in GB of 1e9 bytes",
        "head's FLOPs: those of the products with the lm_head's weight, of all that were counted in a step of the baseline",
    ]
    return Table(f"Throughput of {suite_of(evidence.cases)}", columns, rows, notes)


def _cell(evidence: Evidence, case: Case, side: SideRecord) -> Cell:
    status = evidence.standing(case.id, side.position).status
    if status is not Status.OK:
        return ("OOM" if status is Status.OOM else MISSING,)
    time = summarise(evidence.values(case.id, side.position, STEP_TIME.name)).median
    peak = summarise(evidence.values(case.id, side.position, PEAK_ALLOCATED.name)).median
    rate = _told(evidence, case, side).get(TOKENS, 0) / (time * 1e-9) if time > 0 else float("nan")
    return (f"{rate:,.0f} tok/s" if rate > 0 else MISSING, f"{peak / 1e9:.3g} GB" if peak > 0 else MISSING)


def _head_share(evidence: Evidence, case: Case, sides: list[SideRecord]) -> str:
    """Of the baseline, whose step has all products of the plain form."""
    baseline = next(side for side in sides if side.position == evidence.baseline.position)
    flops = summarise(evidence.values(case.id, baseline.position, FLOPS.name)).median
    head = _told(evidence, case, baseline).get(HEAD_FLOPS)
    return f"{head / flops:.0%}" if head and flops > 0 else MISSING


def _told(evidence: Evidence, case: Case, side: SideRecord) -> Mapping[str, Any]:
    """What the step of a measured process told of itself, where it has tokens."""
    for record in evidence.processes:
        if record.case_id == case.id and record.position == side.position and record.role is Role.MEASURE:
            detail = record.environment.get("detail") or {}
            if TOKENS in detail:
                found: Mapping[str, Any] = detail
                return found
    return {}
