"""A metric over commits, from stored sessions, and where it took a step. It informs, and gates nothing.

A point is a commit: the median over the sessions that measured it of what each has for the side (the median of its processes'
medians). Points of one line were measured alike: same suite version, case, implementation, machine and device; what differs in
any of these is another line.

Times of sessions that are days apart differ by more than the spread inside a session, so a step must stand out of the noise
between commits: the mean changes where that lowers the squared error by more than PENALTY * sigma^2 * log n, found by PELT
(Killick, Fearnhead and Eckley 2012) in `ruptures`, on the logarithms, with sigma from the median absolute difference of
neighbours. Simulated without any step (300 series each), 8 gave a false one in 0.7 % of series of 20 commits and in none of
40; of a step of 4 sigma it found 97 % and more. In 10 commits it gave one in 4 %, so fewer than LEAST are told without steps.
Counts and bytes are exact: there every change is a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from frostline.results.evidence import Evidence
from frostline.results.record import Case, Kind, Metric, Role, SideRecord, Status
from frostline.results.statistics import summarise

PENALTY = 8.0
LEAST = 12  # commits, for steps of a time


@dataclass(frozen=True)
class Point:
    """A commit's figure. `sessions`: how many it is the median of; `changed`: with changes that were not committed."""

    commit: str
    subject: str
    value: float
    sessions: int = 1
    changed: bool = False


@dataclass(frozen=True)
class Step:
    """A change of level between two neighbouring points: the means (of logs, for times) of what lies before and after."""

    commit: str
    subject: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before if self.before else float("nan")


@dataclass(frozen=True)
class Line:
    """One metric of one side over commits, the oldest first, and its steps."""

    case: Case
    implementation: str
    machine: str
    device: str
    metric: Metric
    points: Sequence[Point] = ()
    steps: Sequence[Step] = ()

    @property
    def too_short(self) -> bool:
        """Whether it is a time with too few commits for steps to be told."""
        return self.metric.kind is Kind.TIMING and len(self.points) < LEAST


@dataclass
class _Gathered:
    """What is known of a commit before it is a point: a value of each session."""

    subject: str = ""
    values: list[float] = field(default_factory=list)


def lines_of(sessions: Sequence[Evidence], metrics: Sequence[str], order: Sequence[str] = ()) -> list[Line]:
    """Lines of stored sessions of one suite, the oldest session first.

    Args:
        sessions: of a suite, narrowed to the cases and sides that are wanted.
        metrics: their names.
        order: commits as the repository has them, the oldest first. Others come before, in the order of measuring.
    """
    found: dict[tuple[Any, ...], dict[tuple[str, bool], _Gathered]] = {}
    heads: dict[tuple[Any, ...], Line] = {}
    for evidence in sessions:
        predicted = bool(evidence.session.detail.get("predicted"))
        role = Role.PREDICT if predicted else Role.MEASURE
        for case in evidence.cases:
            for side in evidence.sides:
                revision = _revision(evidence, side)
                if revision is None or evidence.standing(case.id, side.position, role).status is not Status.OK:
                    continue
                for name in metrics:
                    value = _value(evidence, case, side, name, role)
                    if value is None:
                        continue
                    machine = "predicted" if predicted else evidence.machine.label
                    head = Line(case, side.implementation, machine, evidence.session.device, evidence.metrics[name])
                    key = case.id, side.implementation, machine, evidence.session.device, name
                    heads.setdefault(key, head)
                    commit, subject, changed = revision
                    gathered = found.setdefault(key, {}).setdefault((commit, changed), _Gathered())
                    gathered.subject = gathered.subject or subject
                    gathered.values.append(value)
    place = {commit: index for index, commit in enumerate(order)}
    return [_line(head, found[key], place) for key, head in heads.items()]


def _line(head: Line, found: Mapping[tuple[str, bool], _Gathered], place: Mapping[str, int]) -> Line:
    points = [
        Point(commit, one.subject, float(np.median(one.values)), len(one.values), changed)
        for (commit, changed), one in found.items()
    ]
    points.sort(key=lambda point: (place.get(point.commit, -1), point.changed))
    line = replace(head, points=points)
    return line if line.too_short else replace(line, steps=_steps(points, exact=head.metric.kind is not Kind.TIMING))


def _steps(points: Sequence[Point], *, exact: bool) -> list[Step]:
    values = [point.value for point in points]
    ends = [0, *(changes_of_exact(values) if exact else changes_of_times(values)), len(values)]
    means = [_level(values[a:b]) for a, b in pairwise(ends) if b > a]
    return [
        Step(points[at].commit, points[at].subject, before, after)
        for at, before, after in zip(ends[1:-1], means, means[1:], strict=False)
    ]


def _level(values: Sequence[float]) -> float:
    """The mean of the logarithms, as a value; of values that have none, the mean. Of equal values it is theirs."""
    if len(set(values)) == 1:
        return float(values[0])
    return float(np.exp(np.mean(np.log(values)))) if min(values) > 0 else float(np.mean(values))


def changes_of_exact(values: Sequence[float]) -> list[int]:
    """Where a value differs from the one before."""
    return [at for at in range(1, len(values)) if values[at] != values[at - 1]]


def changes_of_times(values: Sequence[float]) -> list[int]:
    """Where the level of some times changes: the first index of each new level. See the module."""
    logs = np.log(np.asarray(values, dtype=float))
    moves = np.diff(logs)
    sigma = 1.4826 * float(np.median(np.abs(moves - np.median(moves)))) / np.sqrt(2.0)
    if sigma == 0.0:  # more than half of the neighbours are equal
        return changes_of_exact(values)
    from ruptures import Pelt

    signal = (logs / sigma).reshape(-1, 1)
    ends: list[int] = Pelt(model="l2", min_size=2, jump=1).fit(signal).predict(pen=PENALTY * float(np.log(len(logs))))
    return ends[:-1]


def _value(evidence: Evidence, case: Case, side: SideRecord, name: str, role: Role) -> float | None:
    if name not in evidence.metrics:
        return None
    value = summarise(evidence.values(case.id, side.position, name, role)).median
    return None if np.isnan(value) else float(value)


def _revision(evidence: Evidence, side: SideRecord) -> tuple[str, str, bool] | None:
    """(commit, subject, whether with changes) of the code that a side measured; None where there is no telling.

    An installed side is what the command's own directory was at, as far as the session knows.
    """
    detail = side.detail if "commit" in side.detail else evidence.session.detail if side.source_kind == "installed" else {}
    commit = detail.get("commit")
    return None if not commit else (str(commit), str(detail.get("subject", "")), bool(detail.get("dirty")))
