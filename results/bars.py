"""Bars: what a suite asks its figures to reach, judged on what a session measured.

A time that is compared with another side's of the same case comes from the rounds that both were in: the geometric mean of
side / other, with its 99 % interval. Every other comparison is of two medians, which a drift of the machine between two cases
moves. A bar holds, or is missed, when the whole interval says so; where it reaches past the bar, or a time rests on one
process, that is `not shown`. A bar decides nothing: what blocks a change is for `gate.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from frostline.results.evidence import Evidence
from frostline.results.record import BAR_ERRORS, Bar, Case, Kind, Params, Role, SideRecord, Status, UsageError
from frostline.results.statistics import paired_interval, summarise
from frostline.results.units import MISSING, format_value
from frostline.results.verdict import STATUS_WORDS


class Reached(StrEnum):
    """Whether a figure is where its bar wants it."""

    HOLDS = "holds"
    MISSED = "missed"
    NOT_SHOWN = "not shown"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class JudgedBar:
    """A bar in one case, or in none where the session has no case that it is for.

    `figure` is what is compared with the bar: a ratio where the bar is against something, else a value in its unit. `low` and
    `high` are the ends of its interval, NaN where it has none. `why` says what there is to remark: why it was not measured,
    how the figure came about.
    """

    bar: Bar
    case: Case | None
    reached: Reached
    figure: float = math.nan
    low: float = math.nan
    high: float = math.nan
    why: str = ""


class _Missing(Exception):
    """A figure that is not there, with the reason."""


@dataclass(frozen=True)
class _Figure:
    value: float
    low: float = math.nan
    high: float = math.nan
    how: str = ""
    alone: bool = False  # a time of one process, which may have had its luck


def stored_bars(evidence: Evidence) -> tuple[list[Bar], list[str]]:
    """The bars that a session's suite had when it was measured, in the suite's order.

    Returns:
        The bars, and a sentence for each stored one that is none: what it asks for cannot be told, and the figures still can.
    """
    bars, sentences = [], []
    for stored in evidence.session.plan.get("bars", ()):
        try:
            bars.append(Bar(**stored))
        except (TypeError, UsageError) as problem:
            sentences.append(f"a stored bar was left out: {problem}")
    return bars, sentences


def judge_bars(evidence: Evidence) -> list[JudgedBar]:
    """Judge every bar of a session in each case that it is for; one that is for none of them is not measured."""
    return [judged for bar in stored_bars(evidence)[0] for judged in _judge(evidence, bar)]


def _judge(evidence: Evidence, bar: Bar) -> Iterator[JudgedBar]:
    cases = cases_of(evidence, bar)
    if not cases:
        yield JudgedBar(bar, None, Reached.NOT_MEASURED, why=f"no case with {_values(bar.where)}")
    for case in cases:
        try:
            found = _figure(evidence, bar, case)
        except _Missing as missing:
            yield JudgedBar(bar, case, Reached.NOT_MEASURED, why=str(missing))
            continue
        past = holds(bar, found.low) != holds(bar, found.high) and not math.isnan(found.low)
        reached = Reached.HOLDS if holds(bar, found.value) else Reached.MISSED
        if past or found.alone:
            reached = Reached.NOT_SHOWN
        remarks = [found.how, "the interval reaches past the bar" if past else "", "one process" if found.alone else ""]
        yield JudgedBar(bar, case, reached, found.value, found.low, found.high, "; ".join(filter(None, remarks)))


def cases_of(evidence: Evidence, bar: Bar) -> list[Case]:
    """The session's cases that a bar is for."""
    return [case for case in evidence.cases if all(case.params.get(axis) == value for axis, value in bar.where.items())]


def holds(bar: Bar, figure: float) -> bool:
    """Whether a figure is where the bar wants it; False for NaN."""
    return figure <= bar.at_most if bar.at_most is not None else bar.at_least is not None and figure >= bar.at_least


def is_ratio(bar: Bar) -> bool:
    """Whether the bar compares two figures, rather than asking for a value."""
    return bool(bar.against or bar.across)


def _figure(evidence: Evidence, bar: Bar, case: Case) -> _Figure:
    side = _side(evidence, bar.side)
    own = _value(evidence, case, side, bar.figure)
    if not is_ratio(bar):
        return _Figure(own)
    other, there = _side(evidence, bar.against or bar.side), _case_across(evidence, case, bar.across)
    theirs = _value(evidence, there, other, bar.figure)
    timed = bar.figure in evidence.metrics and evidence.metrics[bar.figure].kind is Kind.TIMING
    places = (case.id, side.position), (there.id, other.position)
    alone = timed and any(len(evidence.values(*place, bar.figure)) == 1 for place in places)
    if bar.across:
        return _Figure(_over(own, theirs), how="ratio of the medians of two cases", alone=alone)
    if timed:
        by_medians = _Figure(_over(own, theirs), how="ratio of the medians", alone=alone)
        return _by_rounds(evidence, case, bar.figure, side, other) or by_medians
    return _Figure(_over(own, theirs))


def _by_rounds(evidence: Evidence, case: Case, metric: str, side: SideRecord, other: SideRecord) -> _Figure | None:
    """Side over other in the rounds that have both, which are those that have both over the baseline; None below two."""
    ours, theirs = (_log_ratios(evidence, case, metric, one) for one in (side, other))
    if ours is None and theirs is None:
        return _Figure(1.0)  # the baseline over itself
    rounds = (ours if theirs is None else theirs if ours is None else ours.keys() & theirs.keys()) or ()
    logs = [(ours[one] if ours else 0.0) - (theirs[one] if theirs else 0.0) for one in sorted(rounds)]
    if len(logs) < 2:
        return None
    low, middle, high = (math.exp(value) for value in paired_interval(logs))
    return _Figure(middle, low, high, f"{len(logs)} rounds")


def _log_ratios(evidence: Evidence, case: Case, metric: str, side: SideRecord) -> dict[int, float] | None:
    """A side's log ratios to the baseline by round; None for the baseline itself."""
    if side.position == evidence.baseline.position:
        return None
    return {one.round: one.log_ratio for one in evidence.round_ratios(case.id, metric, side.position)}


def _value(evidence: Evidence, case: Case, side: SideRecord, figure: str) -> float:
    """The median over processes of a metric, or an error of an output. Raises _Missing where there is none."""
    name = side.implementation
    if not evidence.takes_part(case.id, side.position):
        raise _Missing(f"{name} takes no part in this case")
    output, _, error = figure.rpartition(".")
    if error in BAR_ERRORS and output:
        errors = [getattr(one, error) for one in evidence.verifications(case.id, side.position) if one.output == output]
        if not errors:
            raise _Missing(f"{output} of {name} was not checked")
        return float(max(errors))
    standing = evidence.standing(case.id, side.position)
    if standing.status is not Status.OK:
        words = "was not measured" if standing.status is None else STATUS_WORDS[standing.status]
        raise _Missing(f"{name} {words}" + (f": {standing.reason}" if standing.reason else ""))
    values = evidence.values(case.id, side.position, figure)
    if not values:
        raise _Missing(f"no {figure.replace('_', ' ')} of {name}")
    return summarise(values).median


def _case_across(evidence: Evidence, case: Case, across: Params) -> Case:
    if not across:
        return case
    wanted = {**case.params, **across}
    found = next((one for one in evidence.cases if dict(one.params) == wanted), None)
    if found is None:
        raise _Missing(f"no case with {_values(across)} beside it")
    return found


def _side(evidence: Evidence, implementation: str) -> SideRecord:
    found = next((side for side in evidence.sides if side.implementation == implementation), None)
    if found is None:
        raise _Missing(f"{implementation} was not asked for")
    return found


def _over(one: float, other: float) -> float:
    """A ratio; of nothing to nothing it is 1, of something to nothing endless."""
    if other:
        return one / other
    return math.inf if one else 1.0


def _values(params: Params) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in params.items()) or "anything"


def measured(evidence: Evidence) -> bool:
    """Whether the session measured anything: bars are not for the cost model's figures."""
    return any(record.role is Role.MEASURE and record.counted for record in evidence.processes)


def format_bar(evidence: Evidence, bar: Bar) -> str:
    """What is asked for as a table shows it: `<= 1.13 x floor`, `<= 307.2 MiB`, `>= 9 x known`."""
    sign, limit = ("<=", bar.at_most) if bar.at_most is not None else (">=", bar.at_least)
    assert limit is not None
    if not is_ratio(bar):
        return f"{sign} {_shown(evidence, bar, limit)}"
    other = bar.against or bar.side
    return f"{sign} {limit:g} x {other}" + (f" at {_values(bar.across)}" if bar.across else "")


def format_figure(evidence: Evidence, judged: JudgedBar) -> str:
    """The figure as a table shows it: a ratio with its interval, or a value with its unit; `-` where there is none."""
    if math.isnan(judged.figure):
        return MISSING
    if not is_ratio(judged.bar):
        return _shown(evidence, judged.bar, judged.figure)
    interval = "" if math.isnan(judged.low) else f" [{judged.low:.3f}, {judged.high:.3f}]"
    return f"{judged.figure:.3f}{interval}"


def _shown(evidence: Evidence, bar: Bar, value: float) -> str:
    metric = evidence.metrics.get(bar.figure)
    return f"{value:.2e}" if metric is None else format_value(value, metric.unit)


def tally(judged: Sequence[JudgedBar]) -> str:
    """How many bars stand where: `12 hold, 1 missed, 2 not measured`."""
    counts = {reached: sum(one.reached is reached for one in judged) for reached in Reached}
    return (
        ", ".join(f"{count} {'hold' if reached is Reached.HOLDS else reached}" for reached, count in counts.items() if count)
        or "none"
    )
