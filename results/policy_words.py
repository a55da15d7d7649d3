"""What a policy of the gate says, in words: for who reads a log and not the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frostline.results.looks import LOOK_ROUNDS
from frostline.results.policy import Policy, SuitePolicy
from frostline.results.record import METRICS, Kind, Outcome
from frostline.results.units import format_percent, format_value


def policy_words(policy: Policy, base: str, *, predicted: bool) -> list[str]:
    """The policy as sentences, a line each.

    Args:
        policy: what is gated.
        base: what would be compared with, and why, in words.
        predicted: whether on this machine the cost model's figures decide.
    """
    here = f" (there is {'no' if predicted else 'a'} GPU here)" if policy.predicted == "auto" else ""
    figures = "The cost model's figures decide" if predicted else "Figures measured on this machine decide"
    return [
        f"Compared with: {base}.",
        f"{figures}{here}{': nothing is run, and times are not judged' if predicted else ''}.",
        *(_suite(suite, predicted) for suite in policy.suites),
        *_metric_words(policy),
        *_decides(policy, predicted),
    ]


def _suite(suite: SuitePolicy, predicted: bool) -> str:
    chosen = [f"preset {suite.preset}" if suite.preset else "the preset that it has for this machine"]
    chosen += [f"{axis} = {', '.join(map(str, values))}" for axis, values in suite.axes.items()]
    rounds = "" if predicted else f"; {_rounds(suite)}"
    return f"Suite {suite.name}: {'; '.join(chosen)}{rounds}."


def _rounds(suite: SuitePolicy) -> str:
    if suite.rounds is None and suite.max_rounds is None:
        return f"{LOOK_ROUNDS} rounds (more where the suite asks for more), and while that tells nothing, as many again"
    first = suite.rounds or LOOK_ROUNDS
    most = suite.max_rounds or 2 * first
    more = f", and while that tells nothing, up to {most}" if most > first else ""
    return f"{min(first, most)} rounds{more}"


def _metric_words(policy: Policy) -> Iterator[str]:
    for metric in policy.metrics:
        known = METRICS[metric.name]
        if metric.delta is not None:
            allowed = f"a change below {format_percent(metric.delta)} counts as none"
        elif known.kind is Kind.TIMING:
            allowed = "a change below what the suite says (3 % where it says nothing) counts as none"
        else:
            allowed = "compared exactly"
        if metric.byte_tolerance and known.kind is Kind.BYTES:
            within = f"a difference up to {format_value(metric.byte_tolerance, 'B')} counts as none"
            allowed = within if metric.delta is None else f"{allowed}, and {within}"
        yield f"Metric {metric.name}: {allowed}."


def _decides(policy: Policy, predicted: bool) -> Iterator[str]:
    yield f"Fails (exit 1) where a verdict is {_or(policy.blocks)}."
    others = [one for one in (Outcome.SLOWER, Outcome.MORE, Outcome.BROKEN) if one not in policy.blocks]
    if others:
        yield f"Only said where it is {_or(others)}."
    if policy.inconclusive == "warn":
        yield "Inconclusive is only said; a comparison that cannot be made or a figure that is missing is exit 3."
    else:
        yield "Inconclusive, a comparison that cannot be made or a figure that is missing is exit 3."
    yield "Nothing measured at all, or nothing of one of the suites, is exit 4."
    if not predicted:
        share = format_percent(policy.false_discovery)
        yield f"Times that would block are held to a false discovery rate of {share} over all gated times."
        if policy.budget_s is not None:
            yield f"Measuring ends after {policy.budget_s:g} s, all suites together."
        yield f"Processes are started by {policy.isolation}, in {policy.python or 'the environment of the command'}."


def _or(outcomes: Sequence[Outcome]) -> str:
    *first, last = outcomes
    return f"{', '.join(first)} or {last}" if first else str(last)
