"""The lines of a crossover chart, read from a session: a metric over an axis, a line for each side, a panel for each head.

Where the lines cross, and how that is told, is in `lines.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from frostline.results.evidence import Evidence, side_names
from frostline.results.judge import Thresholds
from frostline.results.lines import Comparison, Series, compare_lines, format_x, listed
from frostline.results.record import PEAK_ALLOCATED, Case, Kind, Metric, Role, Sample, SideRecord, Status, UsageError
from frostline.results.statistics import summarise

Samples = Callable[[str], Sequence[Sample]]

PANELS = ("lm_head", "training")  # axes that say what is trained


@dataclass(frozen=True)
class Panel:
    """The lines of one panel, each of the others compared with the baseline's.

    `remarks` name points that are not drawn, `absent` sides that skipped every case, with their reason.
    """

    title: str
    lines: Sequence[Series]
    comparisons: Sequence[Comparison]
    remarks: Sequence[str] = ()
    absent: Sequence[str] = ()


def narrowed(evidence: Evidence, implementations: Collection[str], axes: Mapping[str, Collection[object]]) -> Evidence:
    """A session as if it had only some of its sides and cases.

    Args:
        evidence: the session.
        implementations: of the sides that stay; empty: all.
        axes: the values that an axis may have, compared as text; an axis that is not named may have any.

    Raises:
        UsageError: an implementation or an axis that the session does not have, or no case that stays.
    """
    known = dict.fromkeys(side.implementation for side in evidence.sides)
    for name in implementations:
        if name not in known:
            raise UsageError(f"--implementations: session {evidence.session.id} has no {name!r}; it has {', '.join(known)}")
    allowed = {axis: {str(value) for value in values} for axis, values in axes.items()}
    for axis, asked in allowed.items():
        found = dict.fromkeys(str(case.params[axis]) for case in evidence.cases if axis in case.params)
        if not found:
            raise UsageError(f"--set: session {evidence.session.id} has no axis {axis!r}")
        if unknown := sorted(asked - found.keys()):
            had = f"it has {', '.join(found)}"
            raise UsageError(f"--set: session {evidence.session.id} has no case with {axis}={','.join(unknown)}; {had}")
    cases = [case for case in evidence.cases if all(str(case.params.get(axis)) in allowed[axis] for axis in allowed)]
    if not cases:
        wanted = " ".join(f"{axis}={','.join(sorted(values))}" for axis, values in allowed.items())
        raise UsageError(f"--set: session {evidence.session.id} has no case with {wanted}")
    sides = [side for side in evidence.sides if not implementations or side.implementation in implementations]
    return replace(evidence, sides=sides, cases=cases)


def usual_reference(evidence: Evidence) -> str | None:
    """The side that a reader compares with first: plain `torch` where there is one; None: the session's baseline."""
    return "torch" if "torch" in side_names(evidence.sides).values() else None


def panel_axis(cases: Sequence[Case]) -> str:
    """The axis that says what is trained, by which a chart has its panels: the first of `PANELS` that the cases have."""
    return next((axis for axis in PANELS if cases and axis in cases[0].params), PANELS[0])


def load_panels(
    evidence: Evidence,
    *,
    x: str = "seq_len",
    panel: str | None = None,
    metric: str = PEAK_ALLOCATED.name,
    role: Role = Role.MEASURE,
    where: Mapping[str, int | float | str | bool] | None = None,
    against: str | None = None,
    samples: Samples | None = None,
) -> list[Panel]:
    """The lines of a session: a panel for each value of one axis, a line for each side, over another axis.

    Args:
        evidence: the session.
        x: a numeric axis.
        panel: the axis that tells the panels apart; a suite without it gets one panel. None: that of `panel_axis`.
        metric: what the lines show; its value at a point is the median over processes.
        role: measured values, or the cost model's.
        where: values of further axes, for a session that has several.
        against: the side that the others' lines are compared with, by the name of its line; None: the session's baseline.
        samples: gives the samples of a process by its id (`Store.samples`): a time that one process alone measured has their
            spread. Of several processes it is that of their medians.

    Raises:
        UsageError: no such axis or side, an axis that is not numeric, another axis that still varies, or nothing to draw.
    """
    panel = panel or panel_axis(evidence.cases)
    cases = _chosen(evidence, x, panel, where or {})
    names = side_names(evidence.sides)
    if against is not None and against not in names.values():
        raise UsageError(f"--against: no side {against!r}; the session has {', '.join(names.values())}")
    baseline = next((at for at, name in names.items() if name == against), evidence.baseline.position)
    kind = "predicted" if role is Role.PREDICT else "measured"
    nothing = UsageError(f"chart: session {evidence.session.id} has no {kind} {metric} over {x}; measure or predict it first")
    if metric not in evidence.metrics:
        raise nothing
    reader = _Reader(evidence, x, evidence.metrics[metric], role, samples)
    titles = dict.fromkeys(str(case.params[panel]) if panel in case.params else "" for case in cases)
    panels = [
        reader.panel(
            f"{panel} {title}".strip() if title else "",
            [case for case in cases if str(case.params.get(panel, "")) == title],
            baseline,
        )
        for title in titles
    ]
    if not any(line.xs for one in panels for line in one.lines):
        raise nothing
    return panels


@dataclass(frozen=True)
class _Reader:
    """Reads the lines of one metric over one axis out of a session."""

    evidence: Evidence
    x: str
    metric: Metric
    role: Role
    samples: Samples | None

    def panel(self, title: str, cases: Sequence[Case], baseline: int) -> Panel:
        """The panel of these cases; `baseline` is the position of the side that the others are compared with."""
        names = side_names(self.evidence.sides)
        ordered = sorted(cases, key=lambda case: case.params[self.x])
        lines = {side.position: self._series(side, names[side.position], ordered) for side in self.evidence.sides}
        drawn = [line for line in lines.values() if line.xs or line.oom_at is not None]
        remarks, absent = [], []
        for side in self.evidence.sides:
            said, reason = self._missing(side, lines[side.position], ordered)
            remarks += said
            absent += [f"{names[side.position]} is left out: {reason}"] if reason else []
        delta = Thresholds({"": self.evidence.session.plan.get("delta", {})}).delta_of(cases[0].suite, self.metric)
        against = lines[baseline]
        others = [line for line in drawn if line is not against] if against in drawn else []
        return Panel(title, drawn, [compare_lines(line, against, self.x, delta) for line in others], remarks, absent)

    def _series(self, side: SideRecord, label: str, cases: Sequence[Case]) -> Series:
        """A side's line up to the first x without memory."""
        xs, values, spreads = [], [], []
        oom_at: float | None = None
        for case in cases:
            status = self.evidence.standing(case.id, side.position, self.role).status
            if status is Status.OOM:
                oom_at = float(case.params[self.x])
                break
            found = self.evidence.values(case.id, side.position, self.metric.name, self.role)
            if status is Status.OK and found:
                xs.append(float(case.params[self.x]))
                values.append(summarise(found).median)
                spreads.append(self._spread(case, side, found))
        timed = spreads if self.metric.kind is Kind.TIMING else ()
        return Series(
            label, xs, values, oom_at, self.role is Role.PREDICT, self.metric, timed, bool(self.evidence.session.origin)
        )

    def _spread(self, case: Case, side: SideRecord, values: Sequence[float]) -> float:
        """Half the interquartile range of the processes' values, or of the samples of the only one; 0 where there are none."""
        if len(values) == 1 and self.samples is not None:
            records = self.evidence.records(case.id, side.position, self.role)
            values = [one.value for record in records for one in self.samples(record.id) if one.metric == self.metric.name]
        return summarise(values).spread if len(values) > 1 else 0.0

    def _missing(self, side: SideRecord, line: Series, cases: Sequence[Case]) -> tuple[list[str], str]:
        """A remark for the points of each other reason to be missing, or why the whole side is: it skipped every case."""
        end = float("inf") if line.oom_at is None else line.oom_at
        standings = [(float(case.params[self.x]), self.evidence.standing(case.id, side.position, self.role)) for case in cases]
        failed = [(x, one) for x, one in standings if one.status not in (None, Status.OK, Status.OOM) and x < end]
        if all(standing.status in (None, Status.SKIPPED) for _, standing in standings):
            return [], failed[0][1].reason if failed else ""
        at: dict[str, list[str]] = {}
        for x, standing in failed:
            at.setdefault(str(standing.status), []).append(format_x(x))
        return [f"{line.label} at {self.x} {listed(xs)}: {status}, not drawn" for status, xs in at.items()], ""


def _chosen(evidence: Evidence, x: str, panel: str, where: Mapping[str, int | float | str | bool]) -> list[Case]:
    """The cases that match `where`; they may differ in x and the panel's axis alone."""
    axes = list(dict.fromkeys(axis for case in evidence.cases for axis in case.params))
    for axis in (x, *where):
        if axis not in axes:
            raise UsageError(f"chart: no axis {axis!r}; the session's cases have {', '.join(axes) or 'none'}")
    cases = [case for case in evidence.cases if all(case.params.get(axis) == value for axis, value in where.items())]
    if not cases:
        raise UsageError(f"chart: no case has {', '.join(f'{axis}={value}' for axis, value in where.items())}")
    if any(isinstance(case.params.get(x), bool | str | None) for case in cases):
        raise UsageError(f"chart: axis {x!r} has values that are no numbers; choose a numeric one for x")
    for axis in axes:
        values = list(dict.fromkeys(case.params.get(axis) for case in cases))
        if axis not in (x, panel) and len(values) > 1:
            raise UsageError(
                f"chart: the cases differ in {axis} ({', '.join(map(str, values))}); choose one with --set {axis}={values[0]}"
            )
    return cases
