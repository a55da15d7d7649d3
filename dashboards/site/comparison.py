"""The pages of a comparison of two sides: ratios with intervals, rounds in their order, errors, and what was different around.

The first page has the worst cases; each further one has the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from frostline.dashboards.site.comparison_charts import charts_of, ratios_of, timed_metrics, timed_records
from frostline.dashboards.site.findings import CASES_A_PAGE, Comparison, case_anchor, case_label
from frostline.dashboards.site.grid import Entry, Grid, Heading, Row, text
from frostline.dashboards.site.pages import Page, numbered, session_name
from frostline.results.crossover import Samples
from frostline.results.evidence import Evidence
from frostline.results.notes import suite_of
from frostline.results.record import Case, Role, SideRecord, Verdict
from frostline.results.report import STATUS_SHOWN
from frostline.results.statistics import summarise
from frostline.results.units import MISSING, format_change, format_value
from frostline.results.verdict import brief, said_once, tally

PER_PROCESS = ("pid", "seed", "hash_seed")  # of an environment: not what sides differ in


def comparison_pages(one: Comparison, samples: Samples | None) -> Iterator[Page]:
    """The pages of a comparison. `samples` gives those of a process by its id (`Store.samples`); without, no block is drawn."""
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
                "charts": list(charts_of(one, cases, samples)),
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


def _rounds(one: Comparison, cases: Sequence[Case]) -> Grid:
    """What the charts show, as a table: a row for each round of a case and time."""
    names = ("case", "metric", "round", one.baseline_name, one.side_name, "change", "cycles", "interleaved by", "started (UTC)")
    rows = []
    for case in cases:
        for metric in timed_metrics(one, [case]):
            base, ours = (
                {record.round: record for record in timed_records(one.evidence, case, side, metric)}
                for side in (one.baseline, one.side)
            )
            for each in ratios_of(one, case, metric):
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
