"""The tables that people read: what a session measured, and what was concluded of it.

`bench_table` has a row for each case and columns for each side; `verdict_table` a row for each verdict, the worst first. Both
make a `table.Table`, which prints itself for terminals, logs and pull requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from frostline.results.evidence import Evidence, side_names, varying_axes
from frostline.results.record import (
    FLOPS,
    PEAK_ABOVE_INPUTS,
    PEAK_ALLOCATED,
    PEAK_RESIDENT,
    STEP_TIME,
    Case,
    Kind,
    Role,
    SideRecord,
    Status,
    Verdict,
)
from frostline.results.statistics import summarise
from frostline.results.table import Cell, Column, Table
from frostline.results.units import MISSING, format_saving, format_spread, format_value
from frostline.results.verdict import ONE_FOR_ALL, said_once, tally, worst_first

STATUS_SHOWN = {Status.OOM: "OOM", Status.WRONG: "wrong", None: "not measured"}
TOPICS = {STEP_TIME.name: "time", PEAK_ALLOCATED.name: "memory", PEAK_RESIDENT.name: "memory", FLOPS.name: "FLOPs"}
"""The metrics that `bench_table` tells savings and verdicts of, as it calls them; `verdict_table` has the others too."""


def bench_table(evidence: Evidence, verdicts: Sequence[Verdict]) -> Table:
    """A row for each case: the axes that vary, then for each side its time with spread and its peak memory, and for each side
    but the baseline the saving, the error against the reference and the verdicts.

    A side that failed or is wrong shows that word in place of figures. A session that only asked the cost model shows its
    predicted bytes and FLOPs; where both were done, the prediction stands below the measurement.
    """
    axes = varying_axes(evidence.cases)
    columns = [Column(axis, figures=_numeric(evidence.cases, axis)) for axis in axes]
    names, role = side_names(evidence.sides), _shown_role(evidence)
    sides = [evidence.baseline, *evidence.others]
    for side in sides:
        columns.append(Column(names[side.position], figures=True))
        if side is not sides[0]:
            prefix = "" if len(sides) == 2 else f"{names[side.position]} "
            columns += [
                Column(f"{prefix}saves", figures=True),
                Column(f"{prefix}error", figures=True),
                Column(f"{prefix}verdict"),
            ]
    found = {(one.case_id, one.position, one.metric): one for one in verdicts if one.role is role}
    rows = [
        [
            *((_plain(case.params.get(axis)),) for axis in axes),
            *(cell for side in sides for cell in _side_cells(evidence, case, side, role, found)),
        ]
        for case in evidence.cases
    ]
    return Table(f"{_suite(evidence.cases)} on {evidence.machine.label}", columns, rows, notes(evidence, verdicts))


def verdict_table(evidence: Evidence, verdicts: Sequence[Verdict], *, base: Evidence | None = None) -> Table:
    """A row for each verdict, the worst first; what holds for every metric of a side is said once.

    Args:
        evidence: the session that was judged.
        verdicts: what was concluded of it.
        base: the session that holds the baseline, where it is another one.
    """
    axes = varying_axes(evidence.cases)
    names = side_names(evidence.sides)
    several = len({one.position for one in verdicts}) > 1
    cases = {case.id: case for case in evidence.cases}
    columns = [Column(axis, figures=_numeric(evidence.cases, axis)) for axis in axes]
    columns += [Column("side")] if several else []
    columns += [Column("metric"), Column("baseline", figures=True), Column("measured", figures=True)]
    columns += [Column("ratio", figures=True), Column("verdict"), Column("why", prose=True)]
    rows: list[list[Cell]] = []
    told = worst_first(said_once(verdicts))
    common = set.intersection(*(set(one.flags) for one in told)) if told else set()  # the notes say them for all
    for one in told:
        case = cases[one.case_id]
        place = [(_plain(case.params.get(axis)),) for axis in axes] + ([(names[one.position],)] if several else [])
        baseline = _figure(base or evidence, one.baseline_position, one)
        own = [flag for flag in one.flags if flag not in common]
        why = (one.sentence, f"({', '.join(own)})") if own else (one.sentence,)
        rows.append(
            [
                *place,
                (_metric_shown(one),),
                (baseline,),
                (_figure(evidence, one.position, one),),
                _ratio(one),
                (one.outcome,),
                why,
            ]
        )
    return Table(f"{_suite(evidence.cases)}: {tally(told)}", columns, rows, notes(evidence, verdicts))


def markdown_comparison(evidence: Evidence, verdicts: Sequence[Verdict]) -> str:
    """What goes into a pull request: the tally and the verdicts, and the figures folded away."""
    table = verdict_table(evidence, verdicts)
    figures = bench_table(evidence, verdicts).markdown()
    return f"{table.markdown()}\n\n<details><summary>Every figure</summary>\n\n{figures}\n\n</details>\n"


def notes(evidence: Evidence, verdicts: Sequence[Verdict]) -> list[str]:
    """What stands below a table: where, how and on what it was measured, and every flag with how many verdicts carry it."""
    session, cases = evidence.session, evidence.cases
    varying = set(varying_axes(cases))
    fixed = [f"{axis}={_plain(value)}" for axis, value in (cases[0].params if cases else {}).items() if axis not in varying]
    measured = [record for record in evidence.processes if record.counted and record.role is Role.MEASURE]
    versions = ", ".join(dict.fromkeys(case.suite_version for case in cases))
    where = f"device {session.device}; machine" if measured else f"predicted for {session.device} on"
    lines = [f"{_suite(cases)} {versions}; {where} {evidence.machine.label}"]
    lines += [f"always {', '.join(fixed)}"] if fixed else []
    if measured:
        rounds = _rounds(evidence)
        how = ", ".join(dict.fromkeys(f"{record.isolation}, interleaved by {record.interleave}" for record in measured))
        lines.append(f"{rounds} rounds, a fresh process of each side in every one ({how})")
        lines.append(
            "time: median of the processes' medians ± half their interquartile range; memory: peak (+ above the inputs)"
        )
        if len({side.implementation for side in evidence.sides}) > 1:
            lines.append("saves: of a time, by the rounds' ratios with their 99 % interval; of the rest, by the figures shown")
    else:
        lines.append("by the cost model, on tensors that hold no data: nothing ran, so there are no times")
    if any(record.verifications for record in evidence.processes):
        lines.append("error: ||output - reference|| / ||reference||, the reference in higher precision")
    lines.append(f"baseline {side_names(evidence.sides)[evidence.baseline.position]}; session {session.id}")
    names = side_names(evidence.sides)
    for side in evidence.sides:
        if "commit" in side.detail:
            changed = ", with changes" if side.detail.get("dirty") else ""
            lines.append(f"{names[side.position]}: {side.detail['commit'][:12]}{changed} ({side.detail.get('subject', '')})")
    flagged = Counter(flag for one in verdicts for flag in one.flags)
    lines += [f"flag: {flag} ({count} verdict{'s' if count > 1 else ''})" for flag, count in flagged.items()]
    return lines + ([evidence.noise_mark] if evidence.noise_mark else [])


def _side_cells(
    evidence: Evidence, case: Case, side: SideRecord, role: Role, found: Mapping[tuple[str, int, str], Verdict]
) -> Iterator[Cell]:
    """A side's cells of one case: its figures, and for all but the baseline the savings, the error and the verdicts."""
    standing = evidence.standing(case.id, side.position, role)
    ok = standing.status is Status.OK
    yield tuple(_figures(evidence, case, side, role)) if ok else (STATUS_SHOWN.get(standing.status, str(standing.status)),)
    if side.position == evidence.baseline.position:
        return
    judged = [found[key] for name in TOPICS if (key := (case.id, side.position, name)) in found]
    settled = [one for one in judged if not math.isnan(one.effect)]
    yield tuple(map(_saving, settled)) or (MISSING,)
    checked = evidence.verifications(case.id, side.position)
    yield tuple(f"{one.output} {one.relative:.1e}" for one in checked) or (MISSING,)
    yield _verdict_lines(judged)


def _saving(one: Verdict) -> str:
    """What a side saves of a metric; for a time with its interval, since both medians may move by more than their ratio."""
    interval = f" [{format_saving(one.high)[:-2]}, {format_saving(one.low)[:-2]}]" if one.low < one.high else ""
    return f"{format_saving(one.effect)}{interval} {_topic(one.metric)}"


def _verdict_lines(judged: Sequence[Verdict]) -> Cell:
    """The outcomes of a side on a case; one that holds for every metric is said once."""
    if len({one.outcome for one in judged}) == 1 and judged[0].reason in ONE_FOR_ALL:
        return (judged[0].outcome,)
    return tuple(f"{_topic(one.metric)}: {one.outcome}" for one in judged) or (MISSING,)


def _figures(evidence: Evidence, case: Case, side: SideRecord, role: Role) -> Iterator[str]:
    """The lines of a cell: time with spread, peak (above the inputs), and where nothing ran the FLOPs."""

    def middle(metric: str, by: Role = role) -> float:
        return summarise(evidence.values(case.id, side.position, metric, by)).median

    time = summarise(evidence.values(case.id, side.position, STEP_TIME.name, role))
    if time.processes:
        yield format_spread(time.median, time.spread, "ns")
    peak_name = _peak_metric(evidence, case, side, role)
    peak, above = middle(peak_name), middle(PEAK_ABOVE_INPUTS.name)
    if not math.isnan(peak):
        yield format_value(peak, "B") + ("" if math.isnan(above) else f" (+{format_value(above, 'B')})")
    if role is Role.PREDICT:
        yield format_value(middle(FLOPS.name), "FLOP")
    elif not math.isnan(predicted := middle(peak_name, Role.PREDICT)):
        yield f"predicted {format_value(predicted, 'B')}"


def _figure(evidence: Evidence, position: int, one: Verdict) -> str:
    """The value that a verdict is about, on one side: the median over processes, with its spread for a time."""
    metric = evidence.metrics[one.metric]
    standing = evidence.standing(one.case_id, position, one.role)
    if standing.status is not Status.OK or one.reason in ONE_FOR_ALL:
        return STATUS_SHOWN.get(standing.status, str(standing.status))
    seen = summarise(evidence.values(one.case_id, position, one.metric, one.role))
    return format_spread(seen.median, seen.spread if metric.kind is Kind.TIMING else math.nan, metric.unit)


def _metric_shown(one: Verdict) -> str:
    words = "all" if one.reason in ONE_FOR_ALL else one.metric.replace("_", " ")
    return f"{words} (predicted)" if one.role is Role.PREDICT else words


def _ratio(one: Verdict) -> Cell:
    if math.isnan(one.effect):
        return (MISSING,)
    if math.isnan(one.low) or one.low == one.high:
        return (f"{one.effect:.3f}",)
    return (f"{one.effect:.3f} [{one.low:.3f}, {one.high:.3f}]",)


def _shown_role(evidence: Evidence) -> Role:
    """Measured figures where there are any, else the cost model's."""
    return Role.MEASURE if any(record.role is not Role.PREDICT for record in evidence.processes) else Role.PREDICT


def _peak_metric(evidence: Evidence, case: Case, side: SideRecord, role: Role) -> str:
    """The peak that a side of a case has: of allocations, or of the resident set where there is no torch."""
    names = (PEAK_ALLOCATED.name, PEAK_RESIDENT.name)
    return next((name for name in names if evidence.values(case.id, side.position, name, role)), names[0])


def _topic(metric: str) -> str:
    return TOPICS.get(metric, metric.replace("_", " "))


def _suite(cases: Sequence[Case]) -> str:
    return ", ".join(dict.fromkeys(case.suite for case in cases)) or "no case"


def _rounds(evidence: Evidence) -> str:
    """How many rounds the cases had: `8`, or `8 to 16` where some had a second look."""
    counts = {len(evidence.records(case.id, evidence.baseline.position, Role.MEASURE)) for case in evidence.cases}
    return f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def _plain(value: object) -> str:
    """An axis value as tables print it: whole numbers with thousands separators, all else as it is."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _numeric(cases: Sequence[Case], axis: str) -> bool:
    return all(isinstance(case.params.get(axis), int | float) for case in cases)
