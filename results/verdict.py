"""Verdicts: what is concluded of one case and metric between a side and the baseline, with a reason and one sentence.

The rule for times: the effect is the geometric mean over rounds of side / baseline, with an interval of 99 %. `faster` or
`slower` needs an interval that excludes no change and an effect of at least delta; `same` needs two one-sided tests inside
delta at 95 % (`looks.py` has what further looks must be held to); everything else is `inconclusive` and says so. Bytes and
counts are compared without a test. A side that fails or is wrong is `broken`, whatever its times; where the baseline failed,
or the two cannot be compared, it is `incomparable`.

How whole sessions are judged is in `judge.py`; simulated error rates are in `docs/method.md`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from frostline.results.evidence import Standing
from frostline.results.looks import FIRST_LOOK, Errors
from frostline.results.record import Direction, Kind, Outcome, Reason, Status, Verdict
from frostline.results.statistics import Values, look
from frostline.results.units import format_apart, format_change, format_percent, format_value

DEFAULT_DELTA = 0.03  # for times; exact metrics are compared exactly unless told otherwise
LEAST_ROUNDS = 6

STATUS_WORDS = {
    Status.WRONG: "is wrong",
    Status.OOM: "ran out of memory",
    Status.TIMEOUT: "ran past its time limit",
    Status.CRASH: "crashed",
    Status.ERROR: "raised an error",
    Status.SKIPPED: "was skipped",
}

ONE_FOR_ALL = (
    Reason.SIDE_FAILED,
    Reason.SIDE_WRONG,
    Reason.BASELINE_FAILED,
    Reason.NOT_MEASURED,
    Reason.DIFFERENT_MACHINE,
    Reason.DIFFERENT_SUITE_VERSION,
)
"""Reasons that hold for a side whatever the metric: one row says it for all of them."""

OF_ROUNDS = (
    Reason.INTERVAL_EXCLUDES_ZERO,
    Reason.INTERVAL_WITHIN_DELTA,
    Reason.INTERVAL_TOO_WIDE,
    Reason.EFFECT_BELOW_DELTA,
)
OF_EXACT_VALUES = (Reason.EQUAL, Reason.WITHIN_TOLERANCE, Reason.DIFFERENT)
"""Reasons whose sentence is a claim and, after a colon, the figures that it rests on."""

WORST_FIRST = (
    Outcome.BROKEN,
    Outcome.SLOWER,
    Outcome.MORE,
    Outcome.INCOMPARABLE,
    Outcome.INCONCLUSIVE,
    Outcome.SAME,
    Outcome.LESS,
    Outcome.FASTER,
)


@dataclass(frozen=True)
class Judgement:
    """A verdict before it is tied to a session, case and metric. Fields as in `record.Verdict`."""

    outcome: Outcome
    reason: Reason
    sentence: str
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    delta: float = 0.0
    rounds: int = 0
    p_value: float = math.nan
    level: float = FIRST_LOOK.level


def judge_timing(
    log_ratios: Values,
    *,
    delta: float = DEFAULT_DELTA,
    direction: Direction = Direction.LOWER,
    least_rounds: int = LEAST_ROUNDS,
    errors: Errors = FIRST_LOOK,
) -> Judgement:
    """Judge a timing metric by its rounds.

    Args:
        log_ratios: one natural-log ratio of side to baseline for each counted round, in the order of the rounds.
        delta: the smallest change worth a word, as a fraction (0.03: a ratio of 1.03, or of 1 / 1.03).
        direction: which way is better; `faster` is always the better way.
        least_rounds: with fewer rounds than this, nothing is concluded.
        errors: what this look may spend.
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    rounds = len(values)
    if rounds < max(2, least_rounds):
        effect = math.exp(float(values.mean())) if rounds else math.nan
        sentence = f"Only {rounds} counted round{'' if rounds == 1 else 's'}; at least {least_rounds} are needed to conclude."
        return Judgement(Outcome.INCONCLUSIVE, Reason.TOO_FEW_ROUNDS, sentence, effect, delta=delta, rounds=rounds)
    seen = look(values, delta, difference_error=errors.difference, equivalence_error=errors.equivalence)
    outcome, reason = Outcome.INCONCLUSIVE, Reason.INTERVAL_TOO_WIDE
    if seen.excludes_one and abs(math.log(seen.ratio)) >= math.log1p(delta):
        more_is_worse = direction is Direction.LOWER
        outcome = Outcome.SLOWER if (seen.ratio > 1) == more_is_worse else Outcome.FASTER
        reason = Reason.INTERVAL_EXCLUDES_ZERO
    elif seen.within_delta:
        outcome, reason = Outcome.SAME, Reason.INTERVAL_WITHIN_DELTA
    elif seen.excludes_one:
        reason = Reason.EFFECT_BELOW_DELTA
    interval = f"{format_percent(errors.level)} interval {format_change(seen.low)} to {format_change(seen.high)}"
    figures = f"{format_change(seen.ratio)} ({interval}) over {rounds} rounds"
    word = format_percent(delta)
    sentence = {
        Reason.INTERVAL_EXCLUDES_ZERO: f"{outcome.capitalize()}: {figures}.",
        Reason.INTERVAL_WITHIN_DELTA: f"The same within {word}: {figures}.",
        Reason.INTERVAL_TOO_WIDE: f"Cannot tell a change of {word} from none: {figures}.",
        Reason.EFFECT_BELOW_DELTA: f"A change that may be smaller than {word} or not: {figures}.",
    }[reason]
    return Judgement(outcome, reason, sentence, seen.ratio, seen.low, seen.high, delta, rounds, seen.p_value, errors.level)


def judge_exact(
    side_values: Values,
    baseline_values: Values,
    kind: Kind,
    byte_tolerance: float = 0.0,
    *,
    delta: float = 0.0,
    unit: str = "1",
) -> Judgement:
    """Judge bytes or counts: by equality, or within a tolerance, without a test.

    Args:
        side_values, baseline_values: the value in each process (one is enough); their medians are compared.
        kind: `exact` or `bytes`.
        byte_tolerance: for `bytes`, a difference up to this counts as none.
        delta: a difference up to this fraction of the baseline counts as none; the larger tolerance holds.
        unit: of the values, for the sentence.

    Processes of a side may differ. Then the outcome is `more` or `less` only where every process of one side is beyond every
    process of the other, by more than the tolerance, and `same` only where no two are further apart than that.
    """
    side, baseline = (np.asarray(values, dtype=np.float64) for values in (side_values, baseline_values))
    rounds = min(len(side), len(baseline))
    if not rounds:
        who = "The baseline" if len(side) else "This side"
        return Judgement(Outcome.INCONCLUSIVE, Reason.NO_VALUE, f"{who} has no value for it.", delta=delta)
    ours, theirs = float(np.median(side)), float(np.median(baseline))
    tolerance = max(delta * abs(theirs), byte_tolerance if kind is Kind.BYTES else 0.0)
    ratio = ours / theirs if theirs else (1.0 if ours == theirs else math.nan)
    furthest = max(side.max(), baseline.max()) - min(side.min(), baseline.min())
    figures = _against(side, baseline, unit)
    if furthest == 0:
        outcome, reason, sentence = Outcome.SAME, Reason.EQUAL, f"Equal: {format_value(ours, unit)}."
    elif furthest <= tolerance:
        sentence = f"The same within {format_value(tolerance, unit)}: {figures}."
        outcome, reason = Outcome.SAME, Reason.WITHIN_TOLERANCE
    elif max(side.min() - baseline.max(), baseline.min() - side.max()) > tolerance:
        outcome = Outcome.MORE if ours > theirs else Outcome.LESS
        reason, sentence = Reason.DIFFERENT, f"{outcome.capitalize()}: {figures} ({format_change(ratio)})."
    else:
        outcome, reason = Outcome.INCONCLUSIVE, Reason.VARIES
        sentence = f"It varies between processes too much to tell: {figures}."
    return Judgement(outcome, reason, sentence, ratio, ratio, ratio, delta, rounds)


def judge_standing(side: Standing, baseline: Standing) -> Judgement | None:
    """Judge how the two sides ended: None where both are ok, so that their figures can be judged.

    A baseline that is wrong or failed makes the case incomparable; a side that fails or is wrong where the baseline is ok is
    broken; a side that was skipped, or never ran, says nothing.
    """
    if baseline.status is None or (side.status is None and baseline.status is Status.OK):
        who = "The baseline" if baseline.status is None else "This side"
        return Judgement(Outcome.INCONCLUSIVE, Reason.NOT_MEASURED, f"{who} was not measured.")
    if baseline.status is not Status.OK:
        return Judgement(Outcome.INCOMPARABLE, Reason.BASELINE_FAILED, _told("The baseline", baseline))
    if side.status is Status.OK:
        return None
    if side.status is Status.SKIPPED:
        return Judgement(Outcome.INCOMPARABLE, Reason.NOT_MEASURED, _told("This side", side))
    reason = Reason.SIDE_WRONG if side.status is Status.WRONG else Reason.SIDE_FAILED
    return Judgement(Outcome.BROKEN, reason, _told("This side", side))


def needs_second_look(verdicts: Iterable[Verdict]) -> list[str]:
    """The ids of the cases with a time that more rounds could settle, each once and in the order given."""
    open_reasons = (Reason.TOO_FEW_ROUNDS, Reason.INTERVAL_TOO_WIDE, Reason.EFFECT_BELOW_DELTA)
    wanted = [one.case_id for one in verdicts if one.outcome is Outcome.INCONCLUSIVE and one.reason in open_reasons]
    return list(dict.fromkeys(wanted))


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Verdicts by outcome, the worst first; among equals the largest effect first."""
    return sorted(verdicts, key=lambda one: (WORST_FIRST.index(one.outcome), -_size(one.effect)))


def cases_together(verdicts: Iterable[Verdict], case_ids: Sequence[str]) -> list[Verdict]:
    """Verdicts case by case, the case with the worst outcome first; cases that are equally bad in the order given.

    Within a case the worst is first, and what is equally bad stays as it was: rows that all say `same` are no ranking.
    """
    told = list(verdicts)
    place = {case_id: at for at, case_id in enumerate(case_ids)}
    worst: dict[str, int] = {}
    for one in told:
        worst[one.case_id] = min(worst.get(one.case_id, len(WORST_FIRST)), WORST_FIRST.index(one.outcome))
    return sorted(told, key=lambda one: (worst[one.case_id], place[one.case_id], WORST_FIRST.index(one.outcome)))


def tally(verdicts: Iterable[Verdict]) -> str:
    """How many verdicts of each outcome, the worst first: `1 slower, 3 same`."""
    counts = Counter(one.outcome for one in verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in WORST_FIRST if counts[outcome]) or "no verdict"


def brief(one: Verdict) -> str:
    """The sentence of a verdict beside columns that have its figures and its outcome: without either.

    Figures that no column shows stay: why a side failed, and the range of values that vary.
    """
    if one.reason not in (*OF_ROUNDS, *OF_EXACT_VALUES):
        return one.sentence
    claim, _, rest = one.sentence.partition(": ")
    more = rest.partition(". ")[2]  # the operator to look at, or why a difference does not count
    said = [] if claim.lower() in (outcome.value for outcome in Outcome) else [claim]
    if one.reason in OF_ROUNDS:
        said.append(f"over {one.rounds} rounds")
    told = ", ".join(said)
    return " ".join(part for part in (f"{told[0].upper()}{told[1:]}." if told else "", more) if part)


def said_once(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """The verdicts without those that only repeat, for another metric, what holds for the side as a whole."""
    said: set[tuple[object, ...]] = set()
    for one in verdicts:
        key = (one.case_id, one.position, one.role, one.reason)
        if one.reason not in ONE_FOR_ALL or key not in said:
            yield one
        said.add(key)


def _size(effect: float) -> float:
    return abs(math.log(effect)) if effect > 0 else math.inf if effect == 0 else 0.0  # NaN, where there is none, is 0


def _told(who: str, standing: Standing) -> str:
    """How a side ended, in a sentence: with the figure for a wrong one, with the reason for the others."""
    assert standing.status is not None
    told = f"{who} {STATUS_WORDS[standing.status]}"
    checked = standing.verification
    if standing.status is Status.WRONG and checked is not None and not checked.ok:
        return f"{told}: {checked.output} is off by {checked.relative:.2g} relative, where {checked.allowed:.2g} is allowed."
    reason = standing.reason.strip().splitlines()
    return f"{told}: {reason[0].rstrip('.')}." if reason else f"{told}."


def _against(side: Values, baseline: Values, unit: str) -> str:
    """The values of both sides, each as one or as a range, in the unit that suits the larger; told apart where they differ."""
    if len(np.unique(side)) == len(np.unique(baseline)) == 1:
        return " against ".join(format_apart(float(side[0]), float(baseline[0]), unit))
    largest = max(float(np.median(side)), float(np.median(baseline)))
    return f"{_range(side, unit, largest)} against {_range(baseline, unit, largest)}"


def _range(values: Values, unit: str, beside: float) -> str:
    """The values of a side, as one or as a range, in the unit that suits `beside`."""
    low, high = (format_value(float(end), unit, beside=beside) for end in (np.min(values), np.max(values)))
    return low if low == high else f"{low} to {high}"
