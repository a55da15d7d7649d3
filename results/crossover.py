"""Where two lines of memory cross: from which sequence length the fused head saves, if it does.

Between two points a line is drawn straight in both x and bytes: activations grow by a fixed number of bytes a token on top of
what is fixed, so a peak is affine in the length, up to where another tensor becomes the largest. There it has a kink, so a
crossing between two points that are far apart is told as that range. A chart with a logarithmic axis draws curves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from frostline.results.evidence import Evidence, side_names
from frostline.results.record import PEAK_ALLOCATED, Case, Role, SideRecord, Status, UsageError
from frostline.results.statistics import summarise

NARROW = 1.05  # neighbouring points within 5 % of each other
SAME_BYTES = 1e-9  # relative: what interpolation may round


@dataclass(frozen=True)
class Series:
    """One side's metric over an axis: rising `xs`, a value for each, and the first x at which it ran out of memory."""

    label: str
    xs: Sequence[float]
    values: Sequence[float]
    oom_at: float | None = None
    predicted: bool = False


@dataclass(frozen=True)
class Crossing:
    """Where two lines change places: at `x` if they were straight between the neighbouring points `low` and `high`.

    They need not be: a peak has a kink where another tensor becomes the largest. So what is said is where it lies for sure.
    """

    x: float
    value: float
    low: float
    high: float

    @property
    def is_narrow(self) -> bool:
        """Whether the neighbouring points are so near that the place between them does not matter."""
        return self.high <= NARROW * self.low

    @property
    def text(self) -> str:
        """A number where that is known, else a range: `835`, `512–1,024`."""
        return format_x(self.x) if self.is_narrow else f"{format_x(self.low)}–{format_x(self.high)}"


@dataclass(frozen=True)
class Comparison:
    """A side against the baseline: where they cross, and one sentence that says where the side saves."""

    label: str
    baseline: str
    crossings: Sequence[Crossing]
    sentence: str


@dataclass(frozen=True)
class Panel:
    """The lines of one panel, each of the others compared with the baseline's. `remarks` name points that are not drawn."""

    title: str
    lines: Sequence[Series]
    comparisons: Sequence[Comparison]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class _Stretch:
    """A range of x in which one line stays on one side of the other: sign -1 where the first is lower, 0 where they meet."""

    start: float
    end: float
    sign: int


def find_crossings(side: Series, baseline: Series) -> list[Crossing]:
    """Where the two lines change places, over the x that both have.

    Lines that only touch do not cross. Lines that lie on each other for a while cross where they part.
    """
    stretches = [one for one in _stretches(side, baseline) if one.sign]
    crossed = [second.start for first, second in pairwise(stretches) if first.sign != second.sign]
    return [_crossing(x, side, baseline) for x in crossed]


def _crossing(x: float, side: Series, baseline: Series) -> Crossing:
    """A place on the lines, with the nearest points of theirs around it (itself, where it is one)."""
    grid = sorted({float(at) for at in (*side.xs, *baseline.xs)})
    low = max((at for at in grid if at <= x), default=x)
    high = min((at for at in grid if at >= x), default=x)
    return Crossing(x, float(np.interp(x, baseline.xs, baseline.values)), low, high)


def compare_lines(side: Series, baseline: Series, axis: str) -> Comparison:
    """Compare a side's line with the baseline's and say in a sentence where it saves.

    Args:
        side, baseline: two lines over the same axis.
        axis: what x is called.
    """
    crossings = find_crossings(side, baseline)
    return Comparison(side.label, baseline.label, crossings, f"{_where(side, baseline, axis)}{_out_of_memory(side, baseline)}")


def load_panels(
    evidence: Evidence,
    *,
    x: str = "seq_len",
    panel: str = "lm_head",
    metric: str = PEAK_ALLOCATED.name,
    role: Role = Role.MEASURE,
    where: Mapping[str, int | float | str | bool] | None = None,
    against: str | None = None,
) -> list[Panel]:
    """The lines of a session: a panel for each value of one axis, a line for each side, over another axis.

    Args:
        evidence: the session.
        x: a numeric axis.
        panel: the axis that tells the panels apart; a suite without it gets one panel.
        metric: what the lines show; its value at a point is the median over processes.
        role: measured values, or the cost model's.
        where: values of further axes, for a session that has several.
        against: the side that the others' lines are compared with, by the name of its line; None: the session's baseline.

    Raises:
        UsageError: no such axis or side, an axis that is not numeric, another axis that still varies, or nothing to draw.
    """
    cases = _chosen(evidence, x, panel, where or {})
    names = side_names(evidence.sides)
    if against is not None and against not in names.values():
        raise UsageError(f"--against: no side {against!r}; the session has {', '.join(names.values())}")
    baseline = next((at for at, name in names.items() if name == against), evidence.baseline.position)
    titles = dict.fromkeys(str(case.params[panel]) if panel in case.params else "" for case in cases)
    panels = [
        _panel(
            evidence,
            f"{panel} {title}".strip() if title else "",
            [c for c in cases if str(c.params.get(panel, "")) == title],
            x,
            metric,
            role,
            baseline,
        )
        for title in titles
    ]
    if not any(line.xs for one in panels for line in one.lines):
        kind = "predicted" if role is Role.PREDICT else "measured"
        raise UsageError(f"chart: session {evidence.session.id} has no {kind} {metric} over {x}; measure or predict it first")
    return panels


def _panel(evidence: Evidence, title: str, cases: Sequence[Case], x: str, metric: str, role: Role, baseline: int) -> Panel:
    names = side_names(evidence.sides)
    lines, remarks = {}, []
    for side in evidence.sides:
        lines[side.position], left_out = _series(evidence, side, names[side.position], cases, x, metric, role)
        remarks += left_out
    drawn = [line for line in lines.values() if line.xs or line.oom_at is not None]
    against = lines[baseline]
    compared = [compare_lines(line, against, x) for line in drawn if line is not against] if against in drawn else []
    return Panel(title, drawn, compared, remarks)


def _series(
    evidence: Evidence, side: SideRecord, label: str, cases: Sequence[Case], x: str, metric: str, role: Role
) -> tuple[Series, list[str]]:
    """A side's line up to the first x without memory, and a remark for each point that has another reason to be missing."""
    xs, values, remarks = [], [], []
    oom_at: float | None = None
    for case in sorted(cases, key=lambda one: one.params[x]):
        at = float(case.params[x])
        standing = evidence.standing(case.id, side.position, role)
        if standing.status is Status.OOM:
            oom_at = at
            break
        found = evidence.values(case.id, side.position, metric, role)
        if standing.status is Status.OK and found:
            xs.append(at)
            values.append(summarise(found).median)
        elif standing.status is not None:
            remarks.append(f"{label} at {x} {format_x(at)}: {standing.status}, not drawn")
    return Series(label, xs, values, oom_at, role is Role.PREDICT), remarks


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


def _stretches(side: Series, baseline: Series) -> list[_Stretch]:
    """The range of x that both lines have, cut where they meet."""
    if not side.xs or not baseline.xs:
        return []
    start, end = max(side.xs[0], baseline.xs[0]), min(side.xs[-1], baseline.xs[-1])
    grid = sorted({float(x) for x in (*side.xs, *baseline.xs) if start <= x <= end})
    apart = [_apart(side, baseline, x) for x in grid]
    points: list[tuple[float, int]] = []
    for i, x in enumerate(grid):
        if i and apart[i - 1] * apart[i] < 0:
            share = apart[i - 1] / (apart[i - 1] - apart[i])
            points.append((grid[i - 1] + share * (x - grid[i - 1]), 0))
        points.append((x, int(np.sign(apart[i]))))
    return _joined(points)


def _joined(points: Sequence[tuple[float, int]]) -> list[_Stretch]:
    """Points with their signs as stretches: a stretch of one sign reaches to the neighbouring points where the lines meet."""
    runs = [(sign, [x for x, _ in run]) for sign, run in groupby(points, key=lambda point: point[1])]
    stretches = []
    for i, (sign, xs) in enumerate(runs):
        start = runs[i - 1][1][-1] if sign and i else xs[0]
        end = runs[i + 1][1][0] if sign and i + 1 < len(runs) else xs[-1]
        stretches.append(_Stretch(start, end, sign))
    return stretches


def _apart(side: Series, baseline: Series, x: float) -> float:
    ours, theirs = (float(np.interp(x, line.xs, line.values)) for line in (side, baseline))
    return 0.0 if abs(ours - theirs) <= SAME_BYTES * max(abs(ours), abs(theirs)) else ours - theirs


def _where(side: Series, baseline: Series, axis: str) -> str:
    """Where the side saves, over the x that both lines have."""
    stretches = _stretches(side, baseline)
    kind = "predicted" if side.predicted else "measured"
    if not stretches:
        return f"{side.label} and {baseline.label} share no {axis} that was {kind}"
    signs = {one.sign for one in stretches}
    everywhere = f"at every {axis} {kind}"
    if signs == {0}:
        return f"{side.label} needs as much as {baseline.label} {everywhere}"
    if -1 not in signs:
        return f"{side.label} needs {'as much as or more' if 0 in signs else 'more'} than {baseline.label} {everywhere}"
    if signs == {-1}:
        return f"{side.label} needs less than {baseline.label} {everywhere}"
    savings, first, last = _savings(stretches), stretches[0].start, stretches[-1].end
    if (savings[0].start, savings[0].end) == (first, last):
        return f"{side.label} needs less than {baseline.label} or as much {everywhere}"
    ranges = (_range(one, first, last, lambda x: _crossing(x, side, baseline).text) for one in savings)
    return f"{side.label} needs less than {baseline.label} {' and '.join(ranges)}"


def _savings(stretches: Sequence[_Stretch]) -> list[_Stretch]:
    """Where the side saves; two stretches that are parted by a touch alone are one."""
    savings: list[_Stretch] = []
    for one in stretches:
        if one.sign < 0 and savings and savings[-1].end == one.start:
            savings[-1] = _Stretch(savings[-1].start, one.end, -1)
        elif one.sign < 0:
            savings.append(one)
    return savings


def _range(one: _Stretch, first: float, last: float, name: Callable[[float], str]) -> str:
    """A stretch in words; one that reaches an end of what was measured is left open there."""
    if one.start == first:
        return f"up to {name(one.end)}"
    return f"from {name(one.start)} on" if one.end == last else f"between {name(one.start)} and {name(one.end)}"


def format_x(x: float) -> str:
    """A place on the axis: whole from ten on, with thousands separators (crossings lie between measured points anyway)."""
    return f"{x:,.0f}" if abs(x) >= 10 else f"{x:.3g}"


def _out_of_memory(side: Series, baseline: Series) -> str:
    """Who runs out of memory, and where."""
    told = [
        f"{line.label} runs out of memory at {format_x(line.oom_at)}" for line in (baseline, side) if line.oom_at is not None
    ]
    return "; " + ", ".join(told) if told else ""
