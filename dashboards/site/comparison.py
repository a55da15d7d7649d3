"""The pages of a comparison of two sides: ratios with intervals, rounds in their order, errors, and what was different around.

The first page has the worst cases; each further one has the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from frostline.dashboards import ratios
from frostline.dashboards.site.findings import CASES_A_PAGE, Comparison, case_anchor, case_label
from frostline.dashboards.site.grid import Entry, Grid, Heading, Row, text
from frostline.dashboards.site.pages import Chart, Page, numbered, session_name
from frostline.dashboards.site.svg import inline_svg
from frostline.results.evidence import Evidence
from frostline.results.notes import suite_of
from frostline.results.record import Case, Kind, ProcessRecord, Role, RoundRatio, SideRecord, Verdict
from frostline.results.report import STATUS_SHOWN
from frostline.results.statistics import summarise
from frostline.results.units import MISSING, format_change, format_value
from frostline.results.verdict import brief, said_once, tally

PER_PROCESS = ("pid", "seed", "hash_seed")  # of an environment: not what sides differ in


def comparison_pages(one: Comparison) -> Iterator[Page]:
    """The pages of a comparison."""
    order = list(one.verdicts)
    count = -(-len(order) // CASES_A_PAGE)
    pages = [numbered(one.name, number) for number in range(count)]
    suite = suite_of(one.evidence.cases)
    for number in range(count):
        shown = order[number * CASES_A_PAGE : (number + 1) * CASES_A_PAGE]
        known = {case.id: case for case in one.evidence.cases}
        cases = [known[case_id] for case_id in shown]
        yield Page(
            pages[number],
            "comparison.html",
            f"{suite}: {one.side_name} against {one.baseline_name}",
            {
                "facts": _facts(one),
                "verdicts": _verdicts(one, cases),
                "charts": list(_charts(one, cases)),
                "rounds": _rounds(one, cases),
                "errors": _errors(one, cases),
                "environment": None if number else _environment(one),
                "pages": pages,
                "number": number,
            },
            here="index.html",
        )


def _facts(one: Comparison) -> list[tuple[str, Entry]]:
    session = one.evidence.session
    told = said_once(verdict for verdicts in one.verdicts.values() for verdict in verdicts)
    facts = [
        ("session", text(session.id, href=f"{session_name(session.id)}.html")),
        ("begun (UTC)", text(session.created_at[:19].replace("T", " "))),
        ("device", text(f"{session.device}, {one.evidence.machine.label}")),
        ("verdicts", text(tally(told))),
    ]
    if one.base is not one.evidence:
        other = one.base.session.id
        facts.append(("session of the baseline", text(other, href=f"{session_name(other)}.html")))
    return facts + ([("noise", text(one.evidence.noise_mark))] if one.evidence.noise_mark else [])


def _verdicts(one: Comparison, cases: Sequence[Case]) -> Grid:
    names = ("case", "metric", one.baseline_name, one.side_name, "ratio", "low", "high", "verdict", "why", "flags")
    figures = {one.baseline_name, one.side_name, "ratio", "low", "high"}
    choice = {"metric", "verdict"}
    rows = []
    for case in cases:
        for place, verdict in enumerate(one.verdicts[case.id]):
            rows.append(Row(list(_verdict_cells(one, case, verdict)), case_anchor(case.id) if not place else ""))
    return Grid("ratios", "Verdicts, the worst first", [Heading(name, name in figures, name in choice) for name in names], rows)


def _verdict_cells(one: Comparison, case: Case, verdict: Verdict) -> Iterator[Entry]:
    metric = one.evidence.metrics.get(verdict.metric) or one.base.metrics[verdict.metric]
    predicted = " (predicted)" if verdict.role is Role.PREDICT else ""
    yield text(case_label(one.evidence, case))
    yield text(f"{verdict.metric.replace('_', ' ')}{predicted}")
    for evidence, position in ((one.base, one.baseline.position), (one.evidence, one.side.position)):
        value = summarise(evidence.values(case.id, position, verdict.metric, verdict.role)).median
        standing = evidence.standing(case.id, position, verdict.role)
        shown = format_value(value, metric.unit) if standing.status == "ok" else ""
        yield text(shown or STATUS_SHOWN.get(standing.status, str(standing.status)), sort=_sortable(value))
    for ratio in (verdict.effect, verdict.low, verdict.high):
        yield text(MISSING if math.isnan(ratio) else f"{ratio:.3f}", sort=_sortable(ratio))
    yield text(verdict.outcome, word=verdict.outcome)
    yield text(brief(verdict))
    yield text(", ".join(verdict.flags) or MISSING)


def _sortable(value: float) -> float:
    return -1.0 if math.isnan(value) else value


def _timed(one: Comparison, cases: Sequence[Case]) -> list[str]:
    """The metrics that these cases have rounds of."""
    metrics = [name for name, metric in one.evidence.metrics.items() if metric.kind is Kind.TIMING]
    return [name for name in metrics if any(_round_ratios(one, case, name) for case in cases)]


def _round_ratios(one: Comparison, case: Case, metric: str) -> Sequence[RoundRatio]:
    return one.evidence.round_ratios(case.id, metric, one.side.position) if one.base is one.evidence else ()


def _charts(one: Comparison, cases: Sequence[Case]) -> Iterator[Chart]:
    """For each time the rounds' ratios and the processes in their order."""
    for metric in _timed(one, cases):
        words = metric.replace("_", " ")
        drawn = (_ratio_chart(one, cases, metric, words), _order_chart(one, cases, metric, words))
        yield from (chart for chart in drawn if chart is not None)


def _ratio_chart(one: Comparison, cases: Sequence[Case], metric: str, words: str) -> Chart | None:
    rows: list[ratios.RatioRow] = []
    told: dict[str, list[str]] = {ratios.ROUNDS: [], ratios.EFFECTS: []}
    for case in cases:
        found = _round_ratios(one, case, metric)
        verdict = next((each for each in one.verdicts[case.id] if each.metric == metric and each.role is Role.MEASURE), None)
        if not found or verdict is None or math.isnan(verdict.effect):
            continue
        label, values = case_label(one.evidence, case), [math.exp(each.log_ratio) for each in found]
        ends = [verdict.effect if math.isnan(end) else end for end in (verdict.low, verdict.high)]
        rows.append(ratios.RatioRow(label, verdict.outcome, values, verdict.effect, ends[0], ends[1], verdict.delta))
        told[ratios.ROUNDS] += [f"{label}: round {r.round + 1}, {format_change(v)}" for r, v in zip(found, values, strict=True)]
        told[ratios.EFFECTS].append(f"{label}: {verdict.sentence}")
    if not rows:
        return None
    caption = (
        f"{words}: {one.side_name} over {one.baseline_name}. Points: the rounds, the first on top; below them the geometric"
        " mean with its interval; shaded: too small to matter."
    )
    return Chart(caption, inline_svg(ratios.draw_ratios(rows), name=f"ratios-{metric}", label=caption, tips=told))


def _order_chart(one: Comparison, cases: Sequence[Case], metric: str, words: str) -> Chart | None:
    """Every process of the pair in these cases over the time, against the baseline's median of its case."""
    runs: list[tuple[ratios.Run, str]] = []
    begun = datetime.fromisoformat(one.evidence.session.created_at)
    for case in cases:
        middle = summarise(one.evidence.values(case.id, one.baseline.position, metric)).median
        for side in (one.baseline, one.side):
            for record in _timed_records(one.evidence, case, side, metric):
                value = record.measurements[metric]
                minutes = (datetime.fromisoformat(record.started_at) - begun).total_seconds() / 60
                who = one.baseline_name if side is one.baseline else one.side_name
                tip = f"{case_label(one.evidence, case)}: {who}, round {record.round + 1}, {format_value(value, 'ns')}"
                runs.append((ratios.Run(minutes, value / middle, side is one.baseline), tip))
    runs = [pair for pair in runs if math.isfinite(pair[0].share) and pair[0].share > 0]
    if len({run.baseline for run, _ in runs}) < 2:
        return None
    told = {gid: [tip for run, tip in runs if run.baseline is is_base] for gid, is_base in _GIDS}
    caption = (
        f"{words}: the processes in the order they ran, each against the baseline's median in its case."
        " A drift moves both sides; a difference keeps them apart."
    )
    figure = ratios.draw_order([run for run, _ in runs], (one.baseline_name, one.side_name))
    return Chart(caption, inline_svg(figure, name=f"order-{metric}", label=caption, tips=told))


_GIDS = ((ratios.BASELINE, True), (ratios.SIDE, False))


def _timed_records(evidence: Evidence, case: Case, side: SideRecord, metric: str) -> list[ProcessRecord]:
    records = evidence.records(case.id, side.position, Role.MEASURE)
    return [record for record in records if metric in record.measurements and record.started_at]


def _rounds(one: Comparison, cases: Sequence[Case]) -> Grid:
    """What the charts show, as a table: a row for each round of a case and time."""
    names = ("case", "metric", "round", one.baseline_name, one.side_name, "change", "cycles", "interleaved by", "started (UTC)")
    rows = []
    for case in cases:
        for metric in _timed(one, [case]):
            base, ours = (
                {record.round: record for record in _timed_records(one.evidence, case, side, metric)}
                for side in (one.baseline, one.side)
            )
            for each in _round_ratios(one, case, metric):
                medians = [side[each.round].measurements[metric] if each.round in side else math.nan for side in (base, ours)]
                began = base[each.round].started_at[:19].replace("T", " ") if each.round in base else MISSING
                rows.append(
                    Row(
                        [
                            text(case_label(one.evidence, case)),
                            text(metric.replace("_", " ")),
                            text(str(each.round + 1), sort=each.round),
                            *(text(format_value(value, "ns"), sort=_sortable(value)) for value in medians),
                            text(format_change(math.exp(each.log_ratio)), sort=each.log_ratio),
                            text(str(each.cycles), sort=each.cycles),
                            text(each.interleave),
                            text(began),
                        ]
                    )
                )
    figures = {"round", one.baseline_name, one.side_name, "change", "cycles"}
    headings = [Heading(name, name in figures, name in {"case", "metric"}) for name in names]
    return Grid("rounds", "The rounds, in the order they ran", headings, rows)


def _errors(one: Comparison, cases: Sequence[Case]) -> Grid:
    """The outputs of both sides that were checked against the reference."""
    headings = [Heading("case"), Heading("side", choice=True), Heading("output", choice=True)]
    headings += [
        Heading("relative error", figures=True),
        Heading("allowed", figures=True),
        Heading("largest error", figures=True),
    ]
    headings.append(Heading("is"))
    rows = []
    for case in cases:
        ends = ((one.base, one.baseline, one.baseline_name), (one.evidence, one.side, one.side_name))
        for evidence, side, name in ends:
            for output in evidence.verifications(case.id, side.position):
                word = "ok" if output.ok else "wrong"
                errors = [text(f"{v:.2e}", sort=_sortable(v)) for v in (output.relative, output.allowed, output.maximum)]
                cells = [text(case_label(one.evidence, case)), text(name), text(output.output), *errors, text(word, word=word)]
                rows.append(Row(cells))
    return Grid("errors", "Errors against the reference", headings, rows)


def _environment(one: Comparison) -> Grid:
    """What the sides ran in, a row for each thing; what differs stands out, and comes first."""
    theirs, ours = (_surroundings(evidence, side) for evidence, side in ((one.base, one.baseline), (one.evidence, one.side)))
    names = list(dict.fromkeys([*theirs, *ours]))
    rows = []
    for name in sorted(names, key=lambda each: theirs.get(each) == ours.get(each)):
        before, after = theirs.get(name, MISSING), ours.get(name, MISSING)
        differs = before != after
        values = [text(value, strong=differs) for value in (before, after)]
        rows.append(Row([text(name, strong=differs), *values, text("differs" if differs else "the same", strong=differs)]))
    headings = [Heading(name) for name in ("what", one.baseline_name, one.side_name)]
    return Grid("environment", "What the sides ran in", [*headings, Heading("compared", choice=True)], rows)


def _surroundings(evidence: Evidence, side: SideRecord) -> Mapping[str, str]:
    """The side's source and implementation, its machine, and every value that the environment of its processes had."""
    found: dict[str, dict[str, None]] = {}
    for record in evidence.processes:
        if record.position == side.position:
            for name, value in record.environment.items():
                if name not in PER_PROCESS:
                    found.setdefault(name, {})[str(value)] = None
            if record.code_id:
                found.setdefault("code", {})[record.code_id] = None
    return {
        "implementation": side.implementation,
        "source": side.source,
        "source identity": side.source_id,
        **{f"source {name}": str(value) for name, value in side.detail.items() if value not in (None, "", [], {})},
        **{f"machine {name}": str(value) for name, value in evidence.machine.content.items()},
        "device": evidence.session.device,
        **{name.replace("_", " "): " or ".join(values) for name, values in found.items()},
    }
