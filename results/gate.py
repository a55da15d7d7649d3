"""The gate: from verdicts and a policy to an exit code and sentences.

Exit codes: 0 pass; 1 something got worse or is broken; 3 inconclusive or incomparable; 4 nothing could be measured. Where
several hold, 1 goes before 4 before 3. (2, a mistake in what was asked, is a `UsageError`.) Nothing measured is never 0.

Of many comparisons of times some come out `slower` by chance. So the times that would block are held to a false discovery
rate over all gated times, after their second look; one that does not hold up is inconclusive, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType

from frostline.results.evidence import varying_axes
from frostline.results.policy import Policy
from frostline.results.record import Case, Outcome, Reason, Role, Verdict
from frostline.results.statistics import benjamini_hochberg, difference_p
from frostline.results.verdict import ONE_FOR_ALL, said_once, tally, worst_first


class ExitCode(IntEnum):
    """What the gate's process ends with."""

    PASS = 0
    WORSE = 1
    OPEN = 3
    NOTHING = 4


class Weight(StrEnum):
    """What a verdict does to the gate."""

    BLOCKS = "blocks"
    OPEN = "open"  # no verdict was reached, and the policy does not let that pass
    WARNS = "warns"
    PASSES = "passes"


HEADLINES = {
    ExitCode.PASS: "Passed",
    ExitCode.WORSE: "Failed: something got worse",
    ExitCode.OPEN: "Undecided: some comparisons gave no answer",
    ExitCode.NOTHING: "Undecided: nothing could be measured",
}
NO_FAILURES: Mapping[str, str] = MappingProxyType({})
BY_INTERVAL = (
    Reason.INTERVAL_EXCLUDES_ZERO,
    Reason.INTERVAL_WITHIN_DELTA,
    Reason.INTERVAL_TOO_WIDE,
    Reason.EFFECT_BELOW_DELTA,
)
"""Verdicts on times that rest on an interval: the family of comparisons in which some differ by chance."""


@dataclass(frozen=True)
class Item:
    """A gated verdict: of which case, what it does, and the sentence that names the case, the metric and why."""

    verdict: Verdict
    case: Case
    weight: Weight
    sentence: str


@dataclass(frozen=True)
class GateResult:
    """The decision: the exit code, sentences for a log (the most important first), and every gated verdict, worst first."""

    exit_code: ExitCode
    sentences: Sequence[str]
    items: Sequence[Item]


def decide(
    verdicts: Iterable[Verdict], policy: Policy, cases: Sequence[Case], failed: Mapping[str, str] = NO_FAILURES
) -> GateResult:
    """Decide under a policy.

    Args:
        verdicts: of one or several sessions, after their second look.
        policy: what is gated and what blocks.
        cases: the cases that the verdicts are about, for their names.
        failed: by suite of which nothing was measured, why not.
    """
    by_id, names = {case.id: case for case in cases}, _names(cases)
    items = [
        Item(one, by_id[one.case_id], weight, _sentence(one, names[one.case_id])) for one, weight in _weighed(verdicts, policy)
    ]
    items.sort(key=lambda item: list(Weight).index(item.weight))  # stable: within a weight the worst stay first
    unmeasured = _unmeasured(items, policy, failed)
    code = _exit_code({item.weight for item in items}, nothing=bool(unmeasured))
    said = [item.sentence for item in items if item.weight is not Weight.PASSES]
    headline = f"{HEADLINES[code]} ({tally(item.verdict for item in items)})."
    return GateResult(code, [headline, *unmeasured, *said, *_not_judged(items, policy)], items)


def _not_judged(items: Sequence[Item], policy: Policy) -> list[str]:
    """A sentence for each metric of the policy of which nothing that was measured has a figure."""
    judged = {item.verdict.metric for item in items}
    only_predicted = all(item.verdict.role is Role.PREDICT for item in items)
    why = "the cost model has none" if only_predicted else "nothing measured has one"
    return [f"Not judged: {metric.name} ({why})." for metric in policy.metrics if items and metric.name not in judged]


def exit_code_for(verdicts: Iterable[Verdict]) -> ExitCode:
    """The exit code of verdicts under the default policy, for a comparison that is checked without one of its own."""
    weighed = _weighed(verdicts, Policy())
    return _exit_code({weight for _, weight in weighed}, nothing=not any(_has_figure(one) for one, _ in weighed))


def _exit_code(weights: Set[Weight], *, nothing: bool) -> ExitCode:
    if Weight.BLOCKS in weights:
        return ExitCode.WORSE
    if nothing:
        return ExitCode.NOTHING
    return ExitCode.OPEN if Weight.OPEN in weights else ExitCode.PASS


def _weighed(verdicts: Iterable[Verdict], policy: Policy) -> list[tuple[Verdict, Weight]]:
    """The verdicts that the policy asks for, each with what it does, the worst outcome first."""
    gated = said_once(one for one in verdicts if _is_gated(one, policy))
    return [(one, _weight(one, policy)) for one in worst_first(_held_to_discovery_rate(list(gated), policy))]


def _is_gated(one: Verdict, policy: Policy) -> bool:
    """Whether the policy asks for this metric. What holds for a side as a whole counts under whichever metric it stands."""
    if one.role is Role.PREDICT and policy.predicted is False:
        return False
    return one.reason in ONE_FOR_ALL or one.metric in {metric.name for metric in policy.metrics}


def _has_figure(one: Verdict) -> bool:
    return one.reason not in (Reason.NOT_MEASURED, Reason.NO_VALUE)


def _held_to_discovery_rate(verdicts: Sequence[Verdict], policy: Policy) -> list[Verdict]:
    """The verdicts, with times that would block by chance alone turned into inconclusive ones."""
    times = [one for one in verdicts if one.reason in BY_INTERVAL and one.low < one.high]
    p_values = [difference_p(one.effect, one.low, one.high, one.rounds, one.level) for one in times]
    real = benjamini_hochberg(p_values, policy.false_discovery)
    by_chance = {id(one) for one, kept in zip(times, real, strict=True) if not kept and one.outcome in policy.blocks}
    why = f"Among {len(times)} times compared, one such by chance is likely."
    return [
        replace(one, outcome=Outcome.INCONCLUSIVE, reason=Reason.INTERVAL_TOO_WIDE, sentence=f"{one.sentence} {why}")
        if id(one) in by_chance
        else one
        for one in verdicts
    ]


def _weight(one: Verdict, policy: Policy) -> Weight:
    if one.outcome in policy.blocks:
        return Weight.BLOCKS
    if one.outcome is Outcome.INCOMPARABLE or not _has_figure(one):
        return Weight.OPEN
    if one.outcome is Outcome.INCONCLUSIVE:
        return Weight.WARNS if policy.inconclusive == "warn" else Weight.OPEN
    return Weight.WARNS if one.outcome.worse else Weight.PASSES


def _unmeasured(items: Sequence[Item], policy: Policy, failed: Mapping[str, str]) -> list[str]:
    """A sentence for each suite of the policy (or for the whole, where it names none) without a single measured figure."""
    measured = {item.case.suite for item in items if _has_figure(item.verdict)}
    missing = [suite.name for suite in policy.suites if suite.name not in measured]
    if not measured and not missing:
        return ["Nothing was measured."]
    said = {name: reason.partition("\n")[0].rstrip(".") for name, reason in failed.items()}
    return [f"Nothing of {name} was measured{f': {said[name]}' if name in said else ''}." for name in missing]


def _names(cases: Sequence[Case]) -> Mapping[str, str]:
    """A case's suite with the axes that tell it from the suite's other cases (all axes where it is the only one)."""
    names = {}
    for case in cases:
        axes = varying_axes([other for other in cases if other.suite == case.suite]) or list(case.params)
        names[case.id] = " ".join([case.suite, *(f"{axis}={case.params[axis]}" for axis in axes if axis in case.params)])
    return names


def no_decision(reason: str) -> GateResult:
    """What is told where the gate ended before there was a verdict, with the reason."""
    return GateResult(ExitCode.NOTHING, [f"{HEADLINES[ExitCode.NOTHING]}.", reason], ())


def _sentence(one: Verdict, name: str) -> str:
    predicted = " (predicted)" if one.role is Role.PREDICT else ""
    of = "" if one.reason in ONE_FOR_ALL else f", {one.metric}"
    return f"{name}{of}{predicted}: {one.outcome}. {one.sentence}"
