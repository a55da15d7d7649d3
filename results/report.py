"""The tables that people read: what a session measured, and what was concluded of it.

`bench_table` has a row for each case and columns for each side, or with many sides a row for each side of a case;
`verdict_table` a row for each verdict, the worst first. Both make a `table.Table`, which prints itself for terminals, logs and
pull requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from frostline.results.evidence import Evidence, side_names
from frostline.results.notes import notes, plain, skipped_throughout, suite_of, without_figures
from frostline.results.record import (
    COLD_STEP_TIME,
    FLOPS,
    HOST_TIME,
    KERNEL_TIME,
    PEAK_ABOVE_INPUTS,
    PEAK_ALLOCATED,
    PEAK_RESIDENT,
    STEP_TIME,
    Case,
    Kind,
    Reason,
    Role,
    SideRecord,
    Status,
    Verdict,
)
from frostline.results.statistics import summarise
from frostline.results.table import Cell, Column, Table
from frostline.results.units import MISSING, format_apart, format_ratio, format_saving, format_spread, format_value
from frostline.results.verdict import ONE_FOR_ALL, brief, cases_together, said_once, tally

STATUS_SHOWN = {Status.OOM: "OOM", Status.WRONG: "wrong", None: "not measured"}
TIMES = {
    STEP_TIME.name: "time",
    COLD_STEP_TIME.name: "cold step time",
    KERNEL_TIME.name: "kernel time",
    HOST_TIME.name: "host time",
}
TOPICS = {**TIMES, PEAK_ALLOCATED.name: "memory", PEAK_RESIDENT.name: "memory", FLOPS.name: "FLOPs"}
"""The metrics that `bench_table` tells savings and verdicts of, as it calls them; `verdict_table` has the others too."""
MOST_ABREAST = 3  # sides; more would make a row that no screen or page is wide enough for

_Found: TypeAlias = Mapping[tuple[str, int, str], Verdict]  # by case, side and metric
_Grid: TypeAlias = tuple[list[Column], list[list[Cell]]]


def bench_table(evidence: Evidence, verdicts: Sequence[Verdict]) -> Table:
    """For each case and side its time with spread and its peak memory, and for each side but the baseline the saving, the error
    against the reference and the verdicts; in front of them the axes that vary.

    Up to three sides stand abreast, a row for each case. More have a row each. A side that failed or is wrong shows that word
    in place of figures, and the notes say why; one that was skipped in every case is in the notes alone. A session that only
    asked the cost model shows its predicted bytes and FLOPs; where both were done, the prediction stands below the measurement.
    """
    role = _shown_role(evidence)
    skipped = skipped_throughout(evidence, role)
    sides = [evidence.baseline, *(side for side in evidence.others if side.position not in skipped)]
    found = {(one.case_id, one.position, one.metric): one for one in verdicts if one.role is role}
    make = _abreast if len(sides) <= MOST_ABREAST else _one_below_the_other
    more, rows = make(evidence, sides, role, found)
    columns = [Column(axis, figures=_numeric(evidence.cases, axis)) for axis in evidence.varying_axes]
    title = f"{suite_of(evidence.cases)} on {evidence.machine.label}"
    return Table(title, columns + more, rows, [*notes(evidence, verdicts), *without_figures(evidence, role)])


def _abreast(evidence: Evidence, sides: Sequence[SideRecord], role: Role, found: _Found) -> _Grid:
    """Columns for each side, and a row for each case."""
    names, columns = side_names(evidence.sides), []
    for side in sides:
        columns.append(Column(names[side.position], figures=True))
        if side is not evidence.baseline:
            prefix = "" if len(sides) == 2 else f"{names[side.position]} "
            columns += [
                Column(f"{prefix}saves", figures=True),
                Column(f"{prefix}error", figures=True),
                Column(f"{prefix}verdict"),
            ]
    rows = [
        [*_place(evidence, case), *(cell for side in sides for cell in _side_cells(evidence, case, side, role, found))]
        for case in evidence.cases
    ]
    return columns, rows


def _one_below_the_other(evidence: Evidence, sides: Sequence[SideRecord], role: Role, found: _Found) -> _Grid:
    """The same columns for every side, and a row for each side of each case that it takes part in."""
    names = side_names(evidence.sides)
    headers = ("measured" if role is Role.MEASURE else "predicted", "saves", "error")
    rows = []
    for case in evidence.cases:
        for side in (side for side in sides if evidence.takes_part(case.id, side.position)):
            first, *rest = _side_cells(evidence, case, side, role, found)
            saves, error, verdict = rest or ((MISSING,), _errors(evidence, case, side), ("baseline",))
            rows.append([*_place(evidence, case), (names[side.position],), first, saves, error, verdict])
    return [Column("side"), *(Column(header, figures=True) for header in headers), Column("verdict")], rows


def _place(evidence: Evidence, case: Case) -> list[Cell]:
    """The values of the axes that vary."""
    return [(plain(case.params.get(axis)),) for axis in evidence.varying_axes]


def verdict_table(evidence: Evidence, verdicts: Sequence[Verdict], *, base: Evidence | None = None) -> Table:
    """A row for each verdict, case by case with the worst first; what holds for every metric of a side is said once, and so is
    every figure.

    Args:
        evidence: the session that was judged.
        verdicts: what was concluded of it.
        base: the session that holds the baseline, where it is another one.
    """
    axes = evidence.varying_axes
    names = side_names(evidence.sides)
    several = len({one.position for one in verdicts}) > 1
    cases = {case.id: case for case in evidence.cases}
    columns = [Column(axis, figures=_numeric(evidence.cases, axis)) for axis in axes]
    columns += [Column("side")] if several else []
    columns += [Column("metric"), Column("baseline", figures=True), Column("measured", figures=True)]
    columns += [Column("ratio", figures=True), Column("verdict"), Column("why", prose=True)]
    rows: list[list[Cell]] = []
    told = cases_together(said_once(verdicts), list(cases))
    common = set.intersection(*(set(one.flags) for one in told)) if told else set()  # the notes say them for all
    for one in told:
        case = cases[one.case_id]
        place = [(plain(case.params.get(axis)),) for axis in axes] + ([(names[one.position],)] if several else [])
        baseline, measured = _figures_compared(base or evidence, evidence, one)
        own = [flag for flag in one.flags if flag not in common]
        why = (brief(one), f"({', '.join(own)})") if own else (brief(one),)
        rows.append(
            [
                *place,
                (_metric_shown(one),),
                (baseline,),
                (measured,),
                _ratio(one),
                (one.outcome,),
                why,
            ]
        )
    return Table(f"{suite_of(evidence.cases)}: {tally(told)}", columns, rows, notes(evidence, verdicts, ratios=True))


def markdown_comparison(evidence: Evidence, verdicts: Sequence[Verdict]) -> str:
    """What goes into a pull request: the tally and the verdicts, and the figures folded away."""
    table = verdict_table(evidence, verdicts)
    figures = bench_table(evidence, verdicts).markdown()
    return f"{table.markdown()}\n\n<details><summary>Every figure</summary>\n\n{figures}\n\n</details>\n"


def _side_cells(
    evidence: Evidence, case: Case, side: SideRecord, role: Role, found: Mapping[tuple[str, int, str], Verdict]
) -> Iterator[Cell]:
    """A side's cells of one case: its figures, and for all but the baseline the savings, the error and the verdicts."""
    standing = evidence.standing(case.id, side.position, role)
    ok = standing.status is Status.OK
    yield tuple(_figures(evidence, case, side, role)) if ok else (STATUS_SHOWN.get(standing.status, str(standing.status)),)
    if side.position == evidence.baseline.position:
        return
    told = [found[key] for name in TOPICS if (key := (case.id, side.position, name)) in found]
    judged = [one for one in told if one.reason is not Reason.NO_VALUE]
    settled = [one for one in judged if not math.isnan(one.effect)]
    yield tuple(map(_saving, settled)) or (MISSING,)
    yield _errors(evidence, case, side)
    yield _verdict_lines(judged)


def _errors(evidence: Evidence, case: Case, side: SideRecord) -> Cell:
    checked = evidence.verifications(case.id, side.position)
    return tuple(f"{one.output} {one.relative:.1e}" for one in checked) or (MISSING,)


def _saving(one: Verdict) -> str:
    """What a side saves of a metric; for a time with its interval, since both medians may move by more than their ratio.

    From twice as much on, how many times as much it takes: -588 % saved is hard to read.
    """
    if one.effect >= 2:
        interval = f" [{one.low:.3g}, {one.high:.3g}]" if one.low < one.high else ""
        return f"{one.effect:.3g}x{interval} the {_topic(one.metric)}"
    interval = f" [{format_saving(one.high)[:-2]}, {format_saving(one.low)[:-2]}]" if one.low < one.high else ""
    return f"{format_saving(one.effect)}{interval} {_topic(one.metric)}"


def _verdict_lines(judged: Sequence[Verdict]) -> Cell:
    """The outcomes of a side on a case; one that holds for every metric is said once."""
    if len({one.outcome for one in judged}) == 1 and judged[0].reason in ONE_FOR_ALL:
        return (judged[0].outcome,)
    return tuple(f"{_topic(one.metric)}: {one.outcome}" for one in judged) or (MISSING,)


def _figures(evidence: Evidence, case: Case, side: SideRecord, role: Role) -> Iterator[str]:
    """The lines of a cell: times with spread, peak (above the inputs), and where nothing ran the FLOPs.

    The time of a step as it is called needs no word; another one is named.
    """

    def middle(metric: str, by: Role = role) -> float:
        return summarise(evidence.values(case.id, side.position, metric, by)).median

    for metric, words in TIMES.items():
        time = summarise(evidence.values(case.id, side.position, metric, role))
        if time.processes:
            yield format_spread(time.median, time.spread, "ns") + ("" if metric == STEP_TIME.name else f" {words}")
    peak_name = _peak_metric(evidence, case, side, role)
    peak, above = middle(peak_name), middle(PEAK_ABOVE_INPUTS.name)
    if not math.isnan(peak):
        yield format_value(peak, "B") + ("" if math.isnan(above) else f" (+{format_value(above, 'B')})")
    if role is Role.PREDICT:
        yield format_value(middle(FLOPS.name), "FLOP")
    elif not math.isnan(predicted := middle(peak_name, Role.PREDICT)):
        yield f"predicted {format_value(predicted, 'B')}"


def _figures_compared(base: Evidence, evidence: Evidence, one: Verdict) -> tuple[str, str]:
    """The values that a verdict is about, the baseline's first; bytes and counts that differ never look the same."""
    shown = _figure(base, one.baseline_position, one), _figure(evidence, one.position, one)
    if shown[0] != shown[1] or one.reason in ONE_FOR_ALL or evidence.metrics[one.metric].kind is Kind.TIMING:
        return shown
    places = (base, one.baseline_position), (evidence, one.position)
    first, second = (summarise(each.values(one.case_id, at, one.metric, one.role)).median for each, at in places)
    return format_apart(first, second, evidence.metrics[one.metric].unit)


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
        return (format_ratio(one.effect),)
    return (f"{one.effect:.3f} [{one.low:.3f}, {one.high:.3f}]",)


def _shown_role(evidence: Evidence) -> Role:
    """Measured figures, unless the cost model's were all that was asked for."""
    return Role.PREDICT if evidence.only_predicted else Role.MEASURE


def _peak_metric(evidence: Evidence, case: Case, side: SideRecord, role: Role) -> str:
    """The peak that a side of a case has: of allocations, or of the resident set where there is no torch."""
    names = (PEAK_ALLOCATED.name, PEAK_RESIDENT.name)
    return next((name for name in names if evidence.values(case.id, side.position, name, role)), names[0])


def _topic(metric: str) -> str:
    return TOPICS.get(metric, metric.replace("_", " "))


def _numeric(cases: Sequence[Case], axis: str) -> bool:
    return all(isinstance(case.params.get(axis), int | float) for case in cases)
