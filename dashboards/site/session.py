"""A session's pages: what was planned, what was measured, every process with how it ended, and which code it ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frostline.dashboards.site.findings import Findings, case_label
from frostline.dashboards.site.grid import Entry, Grid, Heading, Row, grid_of, pages_for, text
from frostline.dashboards.site.pages import Page, numbered
from frostline.results.evidence import Evidence, side_names
from frostline.results.notes import suite_of
from frostline.results.record import ProcessRecord, Status
from frostline.results.report import TIMES, bench_table
from frostline.results.units import MISSING, format_value

FAILURES_A_PAGE = 40
STDERR_SHOWN = 6_000  # characters of the end
MODULES_SHOWN = 400
MOST_CHOICES = 50  # of a list to choose from; a longer one is no help


@dataclass(frozen=True)
class Failure:
    """Processes that failed alike: how, why, which, and the end of what they printed."""

    status: str
    reason: str
    where: Sequence[str]
    stderr: str


@dataclass(frozen=True)
class Code:
    """Which modules the processes of a side loaded, as one set of files."""

    side: str
    code_id: str
    processes: int
    modules: Sequence[tuple[str, str, str]]
    more: int


def session_pages(found: Findings) -> Iterator[Page]:
    """The pages of a session: the first has everything but the rows that do not fit it, which go on on the others."""
    evidence = found.evidence
    report = bench_table(evidence, found.verdicts)
    figures, cases, processes = grid_of(report, "figures"), _cases(evidence), _processes(evidence)
    failures = list(_failures(evidence))
    count = max(pages_for(figures, cases, processes), -(-len(failures) // FAILURES_A_PAGE))
    pages = [numbered(found.name, number) for number in range(count)]
    first = {
        "facts": _facts(evidence),
        "sides": _sides(evidence),
        "comparisons": [(f"{one.side_name} against {one.baseline_name}", f"{one.name}.html") for one in found.comparisons],
        "notes": report.notes,
        "code": list(_code(evidence)),
    }
    for number in range(count):
        yield Page(
            pages[number],
            "session.html",
            f"{suite_of(evidence.cases)}, session {evidence.session.id}",
            {
                **(first if not number else dict.fromkeys(first, ())),
                "figures": figures.part(number),
                "cases": cases.part(number),
                "processes": processes.part(number),
                "failures": failures[number * FAILURES_A_PAGE : (number + 1) * FAILURES_A_PAGE],
                "pages": pages,
                "number": number,
            },
            here="index.html",
        )


def _facts(evidence: Evidence) -> list[tuple[str, str]]:
    session, plan = evidence.session, evidence.session.plan
    wanted = ("rounds", "max_rounds", "budget_s", "isolation", "threads", "seed", "timeout_s", "delta", "byte_tolerance")
    planned = {name: plan[name] for name in wanted if plan.get(name) not in (None, {}, "")}
    machine = ", ".join(f"{name} {value}" for name, value in evidence.machine.content.items())
    return [
        ("command", session.command),
        ("begun (UTC)", session.created_at[:19].replace("T", " ")),
        ("suite", suite_of(evidence.cases)),
        ("device", session.device),
        ("machine", machine),
        ("plan", ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in planned.items())),
        *((name, str(value)) for name, value in session.detail.items()),
        *([("noise", evidence.noise_mark)] if evidence.noise_mark else []),
    ]


def _sides(evidence: Evidence) -> Grid:
    headings = [Heading(name) for name in ("position", "implementation", "source", "kind", "identity", "detail")]
    rows = []
    for side in evidence.sides:
        detail = ", ".join(f"{name} {value}" for name, value in side.detail.items() if value not in (None, "", [], {}))
        baseline = " (baseline)" if side.position == evidence.baseline.position else ""
        told = (f"{side.position}{baseline}", side.implementation, side.source, side.source_kind, side.source_id, detail)
        rows.append(Row([text(one) for one in told]))
    return Grid("sides", "Sides", headings, rows)


def _cases(evidence: Evidence) -> Grid:
    axes = list(dict.fromkeys(axis for case in evidence.cases for axis in case.params))
    headings = [Heading("suite"), Heading("version"), *(Heading(axis, choice=True) for axis in axes)]
    rows = [
        Row([text(case.suite), text(case.suite_version), *(_value(case.params.get(axis)) for axis in axes)])
        for case in evidence.cases
    ]
    return Grid("cases", "Planned cases", headings, rows)


def _value(value: object) -> Entry:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return text(f"{value:,}" if isinstance(value, int) else str(value), sort=float(value))
    return text(MISSING if value is None else str(value))


def _processes(evidence: Evidence) -> Grid:
    """Every process, in the order they were stored."""
    names, cases = side_names(evidence.sides), {case.id: case for case in evidence.cases}
    headings = [
        Heading("started (UTC)"),
        Heading("case", choice=len(cases) <= MOST_CHOICES),
        Heading("side", choice=True),
        Heading("role", choice=True),
        Heading("round", figures=True),
        Heading("status", choice=True),
        Heading("reason"),
        Heading("time", figures=True),
        Heading("lived", figures=True),
        Heading("how"),
        Heading("telemetry"),
        Heading("code"),
    ]
    labels = {case_id: case_label(evidence, case) for case_id, case in cases.items()}
    rows = []
    for one in evidence.processes:
        metric = next((name for name in TIMES if name in one.measurements), None)
        time = one.measurements[metric] if metric else float("nan")
        again = f", try {one.attempt + 1}" if one.attempt else ""
        counted = "" if one.counted else ", not counted"
        rows.append(
            Row(
                [
                    text(one.started_at[:19].replace("T", " ")),
                    text(labels.get(one.case_id, one.case_id)),
                    text(names[one.position]),
                    text(one.role),
                    text(f"{one.round + 1}{again}{counted}" if one.round >= 0 else MISSING, sort=one.round),
                    text(one.status, word=one.status),
                    text(_first_line(one.reason)),
                    text(format_value(time, "ns"), sort=time if metric else -1),
                    text(f"{one.seconds:.1f} s", sort=one.seconds),
                    text(f"{one.isolation}, {one.interleave}"),
                    text(_telemetry(one.telemetry)),
                    text(one.code_id[:8] or MISSING),
                ],
                anchor=f"process-{one.id}",
            )
        )
    return Grid("processes", f"{len(rows)} processes", headings, rows)


def _telemetry(told: Mapping[str, Any]) -> str:
    """What was read before and after: one figure where both agree, else both."""
    before, after = told.get("before", {}), told.get("after", {})
    parts = []
    for name in dict.fromkeys([*before, *after]):
        ends = list(dict.fromkeys(_short(end[name]) for end in (before, after) if name in end))
        parts.append(f"{name.replace('_', ' ')} {' to '.join(ends)}")
    return ", ".join(parts) or MISSING


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _first_line(reason: str) -> str:
    lines = reason.strip().splitlines()
    return lines[0][:300] if lines else ""


def _failures(evidence: Evidence) -> Iterator[Failure]:
    """What failed, each way of failing once."""
    names, cases = side_names(evidence.sides), {case.id: case for case in evidence.cases}
    alike: dict[tuple[str, str, str], list[ProcessRecord]] = {}
    for one in evidence.processes:
        if one.status not in (Status.OK, Status.SKIPPED):
            alike.setdefault((one.status, one.reason.strip(), one.stderr.strip()), []).append(one)
    for (status, reason, stderr), records in alike.items():
        places = [f"{names[one.position]} at {case_label(evidence, cases[one.case_id])}" for one in records]
        where = [
            f"{place} ({places.count(place)} times)" if places.count(place) > 1 else place for place in dict.fromkeys(places)
        ]
        yield Failure(status, reason[:STDERR_SHOWN], where[:20], stderr[-STDERR_SHOWN:])


def _code(evidence: Evidence) -> Iterator[Code]:
    """Each set of files that processes of a side loaded from its targets."""
    names = side_names(evidence.sides)
    sets: dict[tuple[int, str], list[ProcessRecord]] = {}
    for one in evidence.processes:
        if one.modules:
            sets.setdefault((one.position, one.code_id), []).append(one)
    for (position, code_id), records in sorted(sets.items()):
        modules = sorted({(module.name, module.file, module.sha256) for one in records for module in one.modules})
        yield Code(names[position], code_id, len(records), modules[:MODULES_SHOWN], max(0, len(modules) - MODULES_SHOWN))
