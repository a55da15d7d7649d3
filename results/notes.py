"""What stands below a table: where, how and on what its figures were measured, and what to keep in mind when reading them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from frostline.results.evidence import Evidence, side_names
from frostline.results.flags import OUT_OF_TIME
from frostline.results.looks import FIRST_LOOK
from frostline.results.record import STEP_TIME, Case, Kind, ProcessRecord, Reason, Role, Status, Verdict
from frostline.results.units import format_percent, format_value

WORTH_NAMING = ("torch", "triton", "numpy")  # of what is installed in an environment of the user's own
MOST_PLACES = 3  # that one reason names


def notes(evidence: Evidence, verdicts: Sequence[Verdict], *, ratios: bool = False) -> list[str]:
    """Suite, device and machine, fixed axes, rounds, the meaning of the figures, sources, and every flag with its count.

    `ratios`: the table shows ratios; otherwise what is saved.
    """
    session, cases = evidence.session, evidence.cases
    measured = [record for record in evidence.processes if record.counted and record.role is Role.MEASURE]
    names = side_names(evidence.sides)
    return [
        *_where(evidence),
        *_how(evidence, measured, verdicts, ratios),
        *_clocks(evidence, measured),
        *_shares(evidence),
        *(
            ["error: ||output - reference|| / ||reference||, the reference in higher precision"]
            if any(record.verifications for record in evidence.processes)
            else []
        ),
        f"baseline {names[evidence.baseline.position]}; session {session.id}",
        *_sources(evidence),
        *_environment(evidence),
        *_out_of_time(evidence, verdicts),
        *_flags(verdicts),
        *([evidence.noise_mark] if cases and evidence.noise_mark else []),
    ]


def skipped_throughout(evidence: Evidence, role: Role) -> set[int]:
    """The positions of the sides that were skipped in every case that they take part in."""
    found = set()
    for side in evidence.sides:
        cases = [case for case in evidence.cases if evidence.takes_part(case.id, side.position)]
        if cases and all(evidence.standing(case.id, side.position, role).status is Status.SKIPPED for case in cases):
            found.add(side.position)
    return found


def without_figures(evidence: Evidence, role: Role) -> list[str]:
    """Why sides have words in place of figures: a line for each side and reason, `liger failed: RuntimeError: no kernel`.

    A reason that is not that of every case the side takes part in names its cases.
    """
    names, told = side_names(evidence.sides), []
    for side in evidence.sides:
        cases = [case for case in evidence.cases if evidence.takes_part(case.id, side.position)]
        reasons: dict[tuple[str, str], list[Case]] = {}
        for case in cases:
            standing = evidence.standing(case.id, side.position, role)
            reason = " ".join(standing.reason.split())
            if standing.status not in (None, Status.OK) and reason:
                what = "skipped" if standing.status is Status.SKIPPED else "failed"
                reasons.setdefault((what, reason), []).append(case)
        for (what, reason), found in reasons.items():
            where = f" at {_places(evidence, found)}" if len(found) < len(cases) else ""
            told.append(f"{names[side.position]} {what}{where}: {reason}")
    return told


def suite_of(cases: Sequence[Case]) -> str:
    """The suite's name, or that there is no case of one."""
    return ", ".join(dict.fromkeys(case.suite for case in cases)) or "no case"


def plain(value: object) -> str:
    """An axis value as tables print it: whole numbers with thousands separators, all else as it is."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _places(evidence: Evidence, cases: Sequence[Case]) -> str:
    """The cases by the axes that vary, no more than a few of them."""
    axes = evidence.varying_axes
    places = [", ".join(f"{axis}={plain(case.params[axis])}" for axis in axes if axis in case.params) for case in cases]
    more = len(places) - MOST_PLACES
    return "; ".join(places[:MOST_PLACES]) + (
        f" and {more} more cases" if more > 1 else " and one more case" if more == 1 else ""
    )


def _where(evidence: Evidence) -> Iterator[str]:
    cases = evidence.cases
    versions = ", ".join(dict.fromkeys(case.suite_version for case in cases))
    device = evidence.session.device
    where = f"predicted for {device} on" if evidence.only_predicted else f"device {device}; machine"
    if evidence.session.origin:
        yield f"imported from {evidence.session.origin}: measured elsewhere by another program, so no verdict rests on it"
    yield f"{suite_of(cases)} {versions}; {where} {evidence.machine.label}"
    varying = set(evidence.varying_axes)
    fixed = [f"{axis}={plain(value)}" for axis, value in (cases[0].params if cases else {}).items() if axis not in varying]
    if fixed:
        yield f"always {', '.join(fixed)}"


def _how(evidence: Evidence, measured: Sequence[ProcessRecord], verdicts: Sequence[Verdict], ratios: bool) -> Iterator[str]:
    if evidence.session.origin:
        yield "the figures are as they were published or recorded there"
        return
    if not measured:
        predicted = "by the cost model, on tensors that hold no data: nothing ran, so there are no times"
        yield predicted if evidence.only_predicted else "no round was measured: the session was ended before its first"
        return
    isolations = dict.fromkeys(record.isolation for record in measured)
    interleaves = dict.fromkeys(record.interleave for record in measured)
    how = f"{', '.join(isolations)}, interleaved by {' and by '.join(interleaves)}"
    yield f"{_rounds(evidence)}, a fresh process of each side in every one ({how})"
    if limit := evidence.session.plan.get("memory_limit"):
        yield f"memory of the GPU limited to {format_value(float(limit), 'B')} a process, as if the card had no more"
    yield "time: median of the processes' medians ± half their interquartile range; memory: peak (+ above the inputs)"
    level = " to ".join(format_percent(one) for one in _levels(verdicts))
    if ratios and any(one.low < one.high for one in verdicts):
        yield f"ratio: measured over baseline; of a time that of the rounds, with its {level} interval"
    elif not ratios and len({side.implementation for side in evidence.sides}) > 1:
        yield f"saves: of a time, by the rounds' ratios with their {level} interval; of the rest, by the figures shown"


def _clocks(evidence: Evidence, measured: Sequence[ProcessRecord]) -> Iterator[str]:
    """What each time but that of a step as it is called is, how it was read, and of which sides where not of all."""
    names, sides = side_names(evidence.sides), {record.position for record in measured}
    ways: dict[str, dict[str, set[int]]] = {}
    for record in measured:
        told = record.environment.get("clocks", {})
        for name in dict.fromkeys([*record.measurements, *told]):
            ways.setdefault(name, {}).setdefault(told.get(name, ""), set()).add(record.position)
    for name, metric in evidence.metrics.items():
        if metric.kind is Kind.TIMING and name in ways and name != STEP_TIME.name:
            yield f"{name.replace('_', ' ')}: {metric.description}"
            for way, positions in ways[name].items():
                whose = "" if positions == sides else f", of {', '.join(names[one] for one in sorted(positions))}"
                if way:
                    yield f"{name.replace('_', ' ')}{whose}: {way}"


def _levels(verdicts: Sequence[Verdict]) -> list[float]:
    """The lowest and the highest confidence of an interval, or the one that all have: later looks may need more of it."""
    levels = [one.level for one in verdicts if one.low < one.high] or [FIRST_LOOK.level]
    return sorted({min(levels), max(levels)})


def _rounds(evidence: Evidence) -> str:
    """How many rounds the cases had: `8 rounds`, or `8 to 16 rounds` where some had a second look."""
    counts = {len(evidence.records(case.id, evidence.baseline.position, Role.MEASURE)) for case in evidence.cases}
    return _counted(f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}")


def _counted(rounds: str) -> str:
    return f"{rounds} round{'' if rounds == '1' else 's'}"


def _shares(evidence: Evidence) -> Iterator[str]:
    """The sides that were measured and that the plan gave less than the others: `6 rounds, in 2 of 4 cases: liger, trl`."""
    shared: dict[str, list[str]] = {}
    measured = {record.position for record in evidence.processes if record.role is Role.MEASURE}
    for side in (side for side in evidence.sides if side.position in measured):
        planned = [evidence.planned_rounds(case.id, side.position) for case in evidence.cases]
        fewer = {rounds for rounds in planned if rounds}
        parts = [_counted(", ".join(map(str, sorted(fewer))))] if fewer else []
        taken = sum(rounds != 0 for rounds in planned)
        parts += [f"in {taken} of {len(planned)} cases"] if taken < len(planned) else []
        if parts:
            shared.setdefault(", ".join(parts), []).append(side_names(evidence.sides)[side.position])
    yield from (f"{what}: {', '.join(names)}" for what, names in shared.items())


def _sources(evidence: Evidence) -> Iterator[str]:
    """What each side's name led to: a commit with its subject, a hash of a directory, a release, and what was beside it."""
    names = side_names(evidence.sides)
    for side in evidence.sides:
        detail, told = side.detail, []
        if "commit" in detail:
            changed = ", with changes" if detail.get("dirty") else ""
            told.append(f"{detail['commit'][:12]}{changed} ({detail.get('subject', '')})")
        elif side.source_kind == "path":
            told.append(f"content {side.source_id[:12]}")
        if "distribution" in detail and f"=={detail['version']}" not in side.source:
            told.append(f"{detail['distribution']} {detail['version']}")
        if more := [pin for pin in detail.get("installed_with", ()) if pin not in side.source]:
            told.append(f"with {', '.join(more)}")
        if told:
            yield f"{names[side.position]}: {', '.join(told)}"


def _environment(evidence: Evidence) -> Iterator[str]:
    """The interpreter that measured, where it was not the command's own."""
    python = evidence.session.plan.get("python")
    if python:
        versions = [f"{name} {python['packages'][name]}" for name in WORTH_NAMING if name in python["packages"]]
        with_these = f" with {', '.join(versions)}" if versions else ""
        yield f"measured by {python['implementation']} {python['version']}{with_these} ({python['executable']})"


def _out_of_time(evidence: Evidence, verdicts: Sequence[Verdict]) -> Iterator[str]:
    cut = {one.case_id for one in verdicts if OUT_OF_TIME in one.flags}
    if cut:
        unmeasured = {one.case_id for one in verdicts if one.case_id in cut and one.reason is Reason.NOT_MEASURED}
        none = f", {len(unmeasured)} of them none" if unmeasured else ""
        yield f"the time ended it: {len(cut)} of {len(evidence.cases)} cases have fewer rounds than planned{none}"


def _flags(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Each flag with how many verdicts carry it; what was skipped or never measured has nothing to remark."""
    flags = (flag for one in verdicts if one.reason is not Reason.NOT_MEASURED for flag in one.flags)
    flagged = Counter(flag for flag in flags if flag != OUT_OF_TIME)  # which has a line of its own
    yield from (f"flag: {flag} ({count} verdict{'s' if count > 1 else ''})" for flag, count in flagged.items())
