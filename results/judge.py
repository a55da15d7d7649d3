"""Judging whole sessions: every case, side and metric of one session, or of a head session against a base session.

The rules themselves are in `verdict.py`; here they are applied, and what does not belong together is kept apart: another
machine, another suite version, and times that were not interleaved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from frostline.results.causes import cause_of_more
from frostline.results.evidence import Evidence, Standing
from frostline.results.flags import NOT_VERIFIED, code_flags, device_flags, round_flags
from frostline.results.record import (
    PEAK_RESERVED,
    PEAK_RESIDENT,
    STEP_TIME,
    Case,
    Kind,
    Metric,
    Outcome,
    ProcessRecord,
    Reason,
    Role,
    SideRecord,
    UsageError,
    Verdict,
)
from frostline.results.statistics import summarise
from frostline.results.units import format_change
from frostline.results.verdict import DEFAULT_DELTA, Judgement, judge_exact, judge_standing, judge_timing

DEFAULT_BYTE_TOLERANCE: Mapping[str, float] = {
    PEAK_RESERVED.name: 2 * 2**20,  # the CUDA allocator's smallest segment
    PEAK_RESIDENT.name: 8 * 2**20,  # an interpreter's own noise
}


@dataclass(frozen=True)
class Thresholds:
    """The smallest changes worth a word.

    `delta`: fractions by suite and metric, {"grpo": {"step_time": 0.05}}; the suite "" holds for all. Times have 3 % where
    nothing is said, everything else 0. `byte_tolerance`: bytes by metric.
    """

    delta: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    byte_tolerance: Mapping[str, float] = field(default_factory=dict)

    def delta_of(self, suite: str, metric: Metric) -> float:
        """The smallest change of a suite's metric that is worth a word, as a fraction."""
        for name in (suite, ""):
            if metric.name in self.delta.get(name, {}):
                return self.delta[name][metric.name]
        return DEFAULT_DELTA if metric.kind is Kind.TIMING else 0.0

    def bytes_of(self, metric: Metric) -> float:
        """The difference in bytes that counts as none."""
        return self.byte_tolerance.get(metric.name, DEFAULT_BYTE_TOLERANCE.get(metric.name, 0.0))


@dataclass(frozen=True)
class _Place:
    """A side of a session on a case, in one role: one end of a comparison."""

    evidence: Evidence
    side: SideRecord
    case: Case
    role: Role

    @property
    def standing(self) -> Standing:
        return self.evidence.standing(self.case.id, self.side.position, self.role)

    @property
    def records(self) -> list[ProcessRecord]:
        return self.evidence.records(self.case.id, self.side.position, self.role)

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for record in self.records for name in record.measurements))

    def values(self, metric: str) -> list[float]:
        return self.evidence.values(self.case.id, self.side.position, metric, self.role)


def judge_session(evidence: Evidence, thresholds: Thresholds | None = None) -> list[Verdict]:
    """Judge every other side of a session against its baseline: measured figures, then the cost model's where there are any.

    Where a side or the baseline failed, each metric that the other has gets the verdict (`step_time` when neither has any),
    so that nothing asked for goes without an answer; a side that the plan leaves out of a case gets none. Verdicts come by
    case, side, role and metric.
    """
    if evidence.session.origin:  # nothing says that its sides were interleaved, or are of one machine
        return []
    baseline, given = evidence.baseline, thresholds or Thresholds()
    return [
        verdict
        for case in evidence.cases
        for side in evidence.others
        if evidence.takes_part(case.id, side.position)
        for verdict in _judge_pair((evidence, side, case), (evidence, baseline, case), given)
    ]


def judge_across(base: Evidence, head: Evidence, thresholds: Thresholds | None = None) -> list[Verdict]:
    """Judge each case of a head session against the same case of a base session.

    Sides are matched by implementation (the last one of that name where a session has several). Figures of another machine
    or device are incomparable, the cost model's are not: nothing ran. A case of another suite version is incomparable. Bytes
    and counts are judged; times were not interleaved, so of them nothing is concluded.

    Raises:
        UsageError: the sessions share no implementation.
    """
    matched = [(_last(base, name), _last(head, name)) for name in _shared_implementations(base, head)]
    if not matched:
        raise UsageError(f"sessions {base.session.id} and {head.session.id} share no implementation: nothing to compare")
    known = {_point(case): case for case in base.cases}
    verdicts: list[Verdict] = []
    for case in head.cases:
        before = known.get(_point(case))
        for base_side, head_side in matched:
            verdicts += _judge_pair((head, head_side, case), (base, base_side, before or case), thresholds or Thresholds())
    return verdicts


_End: TypeAlias = tuple[Evidence, SideRecord, Case]


def _judge_pair(side: _End, baseline: _End, thresholds: Thresholds) -> list[Verdict]:
    """Judge two ends in each role that either has processes of; where there are none at all, say so once."""
    places = {role: (_Place(*side, role), _Place(*baseline, role)) for role in (Role.MEASURE, Role.PREDICT)}
    tried = [role for role, pair in places.items() if any(place.standing.status is not None for place in pair)]
    return [verdict for role in tried or [Role.MEASURE] for verdict in _judge_places(*places[role], thresholds)]


def _judge_places(side: _Place, baseline: _Place, thresholds: Thresholds) -> Iterator[Verdict]:
    standings = side.standing, baseline.standing
    ours, theirs = side.records, baseline.records
    flags = code_flags(side.side, baseline.side, ours, theirs)
    if side.role is Role.MEASURE and not all(standing.verified for standing in standings):
        flags.append(NOT_VERIFIED)
    apart = _kept_apart(side, baseline) or judge_standing(*standings)
    for name in list(dict.fromkeys([*baseline.metrics, *side.metrics])) or [STEP_TIME.name]:
        metric = side.evidence.metrics.get(name) or baseline.evidence.metrics[name]
        delta = thresholds.delta_of(side.case.suite, metric)
        judged = apart or _judge_metric(side, baseline, metric, delta, thresholds.bytes_of(metric))
        if judged.outcome is Outcome.MORE and side.role is Role.PREDICT and _one_step(side, baseline):
            why = cause_of_more(name, ours[-1], theirs[-1])
            judged = replace(judged, sentence=f"{judged.sentence} {why}".rstrip())
        timed = metric.kind is Kind.TIMING and apart is None
        own = device_flags([*ours, *theirs]) + _round_flags(side, baseline, metric, delta) if timed else []
        yield _verdict(side, baseline, metric, judged, delta, [*flags, *own])


def _one_step(side: _Place, baseline: _Place) -> bool:
    """Whether both are the same implementation by other code; how two implementations differ is no regression."""
    return side.side.implementation == baseline.side.implementation


def _judge_metric(side: _Place, baseline: _Place, metric: Metric, delta: float, byte_tolerance: float) -> Judgement:
    ours, theirs = side.values(metric.name), baseline.values(metric.name)
    if metric.kind is not Kind.TIMING:
        return judge_exact(ours, theirs, metric.kind, byte_tolerance, delta=delta, unit=metric.unit)
    if not ours or not theirs:
        return judge_exact(ours, theirs, metric.kind)  # not measured, and it says by whom
    if side.evidence is not baseline.evidence:
        ratio = summarise(ours).median / summarise(theirs).median
        sentence = (
            f"Two sessions are not interleaved, so {format_change(ratio)} may be the machine's; compare both in one session."
        )
        return Judgement(Outcome.INCONCLUSIVE, Reason.DIFFERENT_SESSION, sentence, ratio)
    ratios = side.evidence.round_ratios(side.case.id, metric.name, side.side.position)
    taken = max((one.round for one in ratios), default=-1) + 1  # by number: some of them may have no ratio
    errors = side.evidence.looks.errors(taken)
    return judge_timing([one.log_ratio for one in ratios], delta=delta, direction=metric.direction, errors=errors)


def _kept_apart(side: _Place, baseline: _Place) -> Judgement | None:
    """Why the two must not be compared at all, if so."""
    head, base = side.evidence, baseline.evidence
    for one in (head.session, base.session):
        if one.origin:
            sentence = f"Session {one.id} was imported ({one.origin}): measured elsewhere, by another program."
            return Judgement(Outcome.INCOMPARABLE, Reason.DIFFERENT_MACHINE, sentence)
    if side.case.suite_version != baseline.case.suite_version:
        sentence = f"The suite is another version ({side.case.suite_version} against {baseline.case.suite_version})."
        return Judgement(Outcome.INCOMPARABLE, Reason.DIFFERENT_SUITE_VERSION, sentence)
    if side.role is Role.PREDICT:
        return None
    if head.machine.id != base.machine.id:
        sentence = f"Another machine ({head.machine.label} against {base.machine.label}) differs by more than the code may."
        return Judgement(Outcome.INCOMPARABLE, Reason.DIFFERENT_MACHINE, sentence)
    if head.session.device != base.session.device:
        sentence = f"Another device ({head.session.device} against {base.session.device})."
        return Judgement(Outcome.INCOMPARABLE, Reason.DIFFERENT_MACHINE, sentence)
    return None


def _round_flags(side: _Place, baseline: _Place, metric: Metric, delta: float) -> list[str]:
    ratios = side.evidence.round_ratios(side.case.id, metric.name, side.side.position)
    return round_flags(ratios, side.values(metric.name), baseline.values(metric.name), delta)


def _verdict(side: _Place, baseline: _Place, metric: Metric, judged: Judgement, delta: float, flags: Sequence[str]) -> Verdict:
    head, base = side.evidence.session.id, baseline.evidence.session.id
    return Verdict(
        session_id=head,
        case_id=side.case.id,
        metric=metric.name,
        position=side.side.position,
        baseline_position=baseline.side.position,
        outcome=judged.outcome,
        reason=judged.reason,
        sentence=judged.sentence,
        effect=judged.effect,
        low=judged.low,
        high=judged.high,
        delta=delta,
        rounds=judged.rounds,
        p_value=judged.p_value if judged.rounds else math.nan,
        flags=tuple(flags),
        role=side.role,
        baseline_session_id="" if head == base else base,
        level=judged.level,
    )


def _point(case: Case) -> tuple[object, ...]:
    """What a case is apart from its suite's version."""
    return (case.suite, *sorted(case.params.items()))


def _shared_implementations(base: Evidence, head: Evidence) -> list[str]:
    theirs = {side.implementation for side in base.sides}
    return list(dict.fromkeys(side.implementation for side in head.sides if side.implementation in theirs))


def _last(evidence: Evidence, implementation: str) -> SideRecord:
    return next(side for side in reversed(evidence.sides) if side.implementation == implementation)
