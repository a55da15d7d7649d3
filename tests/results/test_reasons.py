"""Each reason code, reached the way a session reaches it: from records to a verdict, through the store, into both tables.

`REACHED` has an entry for every code there is; a code without one fails the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from frostline.results.evidence import Evidence
from frostline.results.gate import Weight, decide
from frostline.results.gate_report import gate_json, gate_junit, gate_markdown
from frostline.results.judge import Thresholds, judge_across, judge_session
from frostline.results.policy import MetricPolicy, Policy
from frostline.results.record import Machine, Outcome, Reason, Status, Verdict
from frostline.results.report import verdict_table
from frostline.results.store import Store
from frostline.results.verdict import OF_EXACT_VALUES, OF_ROUNDS, brief


def log_ratios(effect, deviation, count=8):
    drawn = np.random.default_rng(5).normal(0.0, 1.0, count)
    return effect + deviation * (drawn - drawn.mean()) / drawn.std(ddof=1)


def fill(world, effect=0.0, deviation=0.002, count=8, side=(100.0,), baseline=(100.0,)):
    """Rounds of both sides: the times by a log ratio, the peaks by what the processes of each side had in turn."""
    for number, ratio in enumerate(log_ratios(effect, deviation, count)):
        for position, time, peaks in ((0, 1e6, baseline), (1, 1e6 * math.exp(ratio), side)):
            figures = {"step_time": time, "peak_allocated": peaks[number % len(peaks)]}
            world.process(position, number, measurements={name: value for name, value in figures.items() if value})
        world.ratio(1, number, float(ratio))
    return world


def by_time(make_world, effect, deviation, count=8):
    return judged(fill(make_world(), effect, deviation, count), "step_time")


def by_bytes(make_world, side, baseline=(100.0,), tolerance=0.0):
    return judged(fill(make_world(), side=side, baseline=baseline), "peak_allocated", {"peak_allocated": tolerance})


def judged(world, metric, tolerance=None):
    return [
        one for one in judge_session(seen(world), Thresholds(byte_tolerance=tolerance or {})) if one.metric == metric
    ], world


def seen(world):
    return Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios)


def failed(make_world, position):
    world = make_world()
    world.process(1 - position, 0, measurements={"step_time": 1e6})
    world.process(position, 0, status=Status.OOM, reason="CUDA out of memory")
    return judged(world, "step_time")


def wrong(make_world):
    world = fill(make_world(), -1.0)
    world.verify(1, 0.5, 1e-5)
    return judged(world, "step_time")


def across(make_world, metric, **other):
    base, head = fill(make_world(**other)), fill(make_world())
    return [one for one in judge_across(seen(base), seen(head)) if one.metric == metric and one.position == 1], head


REACHED: dict[Reason, tuple[Outcome, Callable]] = {
    Reason.INTERVAL_EXCLUDES_ZERO: (Outcome.SLOWER, lambda make: by_time(make, 0.10, 0.01)),
    Reason.INTERVAL_WITHIN_DELTA: (Outcome.SAME, lambda make: by_time(make, 0.0, 0.005)),
    Reason.INTERVAL_TOO_WIDE: (Outcome.INCONCLUSIVE, lambda make: by_time(make, 0.08, 0.10)),
    Reason.EFFECT_BELOW_DELTA: (Outcome.INCONCLUSIVE, lambda make: by_time(make, 0.026, 0.015)),
    Reason.TOO_FEW_ROUNDS: (Outcome.INCONCLUSIVE, lambda make: by_time(make, 0.10, 0.01, count=5)),
    Reason.EQUAL: (Outcome.SAME, lambda make: by_bytes(make, (100.0,))),
    Reason.WITHIN_TOLERANCE: (Outcome.SAME, lambda make: by_bytes(make, (101.0,), tolerance=1.0)),
    Reason.DIFFERENT: (Outcome.MORE, lambda make: by_bytes(make, (101.0,))),
    Reason.VARIES: (Outcome.INCONCLUSIVE, lambda make: by_bytes(make, (99.0, 101.0))),
    Reason.NO_VALUE: (Outcome.INCONCLUSIVE, lambda make: by_bytes(make, (None,))),
    Reason.SIDE_FAILED: (Outcome.BROKEN, lambda make: failed(make, 1)),
    Reason.SIDE_WRONG: (Outcome.BROKEN, wrong),
    Reason.BASELINE_FAILED: (Outcome.INCOMPARABLE, lambda make: failed(make, 0)),
    Reason.NOT_MEASURED: (Outcome.INCONCLUSIVE, lambda make: judged(make(), "step_time")),
    Reason.DIFFERENT_MACHINE: (
        Outcome.INCOMPARABLE,
        lambda make: across(make, "step_time", machine=Machine({"cpu": "Another", "cores": 64})),
    ),
    Reason.DIFFERENT_SUITE_VERSION: (Outcome.INCOMPARABLE, lambda make: across(make, "step_time", version="v2")),
    Reason.DIFFERENT_SESSION: (Outcome.INCONCLUSIVE, lambda make: across(make, "step_time")),
}


@pytest.fixture(params=list(Reason), ids=str)
def reached(request, make_world):
    """A verdict with each reason, in its session. A reason that has no way to it here is an error."""
    reason = request.param
    assert reason in REACHED, f"nothing here leads to {reason}: add a case"
    outcome, reach = REACHED[reason]
    (verdict,), world = reach(make_world)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    return verdict, world


def test_it_says_why_in_one_sentence(reached):
    verdict, _ = reached
    assert verdict.sentence.endswith(".")
    assert "\n" not in verdict.sentence
    assert "nan" not in verdict.sentence


def test_it_stands_in_the_table_and_in_markdown(reached):
    verdict, world = reached
    table = verdict_table(seen(world), [verdict])
    for text in (table.text(), table.markdown()):
        assert verdict.outcome in text
        assert all(word in text for word in brief(verdict).split(" ")[:1])


def test_beside_its_figures_it_repeats_none_and_keeps_the_rest(reached):
    verdict, _ = reached
    told = brief(verdict)
    if verdict.reason in (*OF_ROUNDS, *OF_EXACT_VALUES):
        assert "interval" not in told and "against" not in told
        assert verdict.reason not in OF_ROUNDS or f"ver {verdict.rounds} rounds." in told
        assert brief(replace(verdict, sentence=f"{verdict.sentence} The operator mm, in half.py.")).endswith("mm, in half.py.")
    else:
        assert told == verdict.sentence


def test_what_is_said_beside_figures():
    timing = {"effect": 1.1, "low": 1.05, "high": 1.2, "delta": 0.03, "rounds": 12}
    one = Verdict("s", "c", "step_time", 1, 0, Outcome.SLOWER, Reason.INTERVAL_EXCLUDES_ZERO, "", p_value=0.01, **timing)
    figures = "+10 % (99 % interval +5.0 % to +20 %) over 12 rounds."
    said = {
        (Reason.INTERVAL_EXCLUDES_ZERO, f"Slower: {figures}"): "Over 12 rounds.",
        (Reason.INTERVAL_WITHIN_DELTA, f"The same within 3 %: {figures}"): "The same within 3 %, over 12 rounds.",
        (Reason.INTERVAL_TOO_WIDE, f"Slower: {figures} One by chance."): "Over 12 rounds. One by chance.",
        (Reason.EQUAL, "Equal: 5 MiB."): "Equal.",
        (Reason.DIFFERENT, "Less: 2.5 MiB against 5 MiB (-50.0 %)."): "",
        (Reason.DIFFERENT, "More: 2.5 MiB against 1 MiB (+150 %). The operator mm."): "The operator mm.",
        (Reason.WITHIN_TOLERANCE, "The same within 2.5 MiB: 5 MiB against 6 MiB."): "The same within 2.5 MiB.",
        (Reason.VARIES, "It varies: 1 MiB to 2 MiB against 3 MiB."): "It varies: 1 MiB to 2 MiB against 3 MiB.",
    }
    found = {key: brief(replace(one, reason=key[0], sentence=key[1])) for key in said}
    assert found == said


def test_it_survives_the_store(reached, tmp_path):
    verdict, world = reached
    kept = replace(verdict, baseline_session_id="", flags=tuple(verdict.flags))  # the other session is in another file here
    with Store.open(tmp_path / "a.db") as store:
        store.add_session(world.session, world.machine, world.sides, world.cases)
        store.add_verdicts([kept])
        (read,) = store.verdicts(world.session.id)
    assert (read.outcome, read.reason, read.sentence, read.rounds) == (kept.outcome, kept.reason, kept.sentence, kept.rounds)
    assert [math.isnan(value) for value in (read.effect, read.low, read.high)] == [
        math.isnan(value) for value in (kept.effect, kept.low, kept.high)
    ]


def test_the_gate_passes_only_what_is_known_to_be_no_worse(reached):
    verdict, world = reached
    policy = Policy(metrics=(MetricPolicy("step_time"), MetricPolicy("peak_allocated")))
    result = decide([verdict], policy, world.cases)
    (item,) = result.items
    expected = {Outcome.SLOWER: Weight.BLOCKS, Outcome.MORE: Weight.BLOCKS, Outcome.BROKEN: Weight.BLOCKS}
    assert item.weight is (Weight.PASSES if verdict.outcome is Outcome.SAME else expected.get(verdict.outcome, Weight.OPEN))
    assert verdict.reason in gate_json(result)
    assert verdict.outcome in gate_markdown(result, [seen(world)])
    assert ("<failure" in gate_junit(result)) == (item.weight is Weight.BLOCKS)
