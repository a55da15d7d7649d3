"""When a comparison is judged, what each look may spend, and that no number of looks spends more than two do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import sqlite_utils
from scipy import stats

from frostline.results.evidence import Evidence
from frostline.results.gate import ExitCode, decide
from frostline.results.judge import judge_session
from frostline.results.looks import Errors, Looks
from frostline.results.notes import notes
from frostline.results.policy import MetricPolicy, Policy, SuitePolicy
from frostline.results.record import Outcome, Reason
from frostline.results.schema import migrations
from frostline.results.simulate import looks_row, outcome_rates
from frostline.results.statistics import difference_p
from frostline.results.store import Store


@pytest.mark.parametrize(
    ("rounds", "most", "ends"),
    [
        (8, 8, (8,)),
        (8, 16, (8, 16)),
        (8, 12, (8, 12)),
        (8, 20, (8, 16, 20)),
        (6, 30, (6, 12, 18, 24, 30)),
        (1, 3, (1, 2, 3)),
    ],
)
def test_a_look_comes_after_every_so_many_rounds_and_the_last_at_the_end(rounds, most, ends):
    assert Looks(rounds, most).ends == ends


@pytest.mark.parametrize("count", range(1, 13))
def test_all_looks_together_spend_what_two_do(count):
    looks = Looks(8, 8 * count)
    spent = [looks.errors(end) for end in looks.ends]
    assert spent[0] == Errors(0.01, 0.05), "the first verdict does not depend on how long one would have gone on"
    assert sum(one.difference for one in spent) <= 0.02 * (1 + 1e-12)
    assert sum(one.equivalence for one in spent) <= 0.10 * (1 + 1e-12)
    if count == 2:
        assert spent == [Errors(), Errors()]


def test_rounds_between_two_looks_belong_to_the_later_one():
    looks = Looks(8, 40)
    assert [looks.errors(rounds).difference for rounds in (1, 8, 9, 16, 33, 40)] == [0.01, 0.01, *[0.0025] * 4]
    assert looks.errors(20).level == 0.9975


@pytest.mark.parametrize(
    ("plan", "ends"),
    [
        ({"rounds": 6}, (6,)),
        ({"rounds": 8, "looks": 2}, (8, 16)),  # a session of before the most rounds could be asked for
        ({"rounds": 8, "looks": 2, "max_rounds": None}, (8, 16)),
        ({"rounds": 8, "looks": 3, "max_rounds": 20}, (8, 16, 20)),
        ({}, (8,)),
    ],
)
def test_the_looks_of_a_stored_plan(plan, ends):
    assert Looks.of_plan(plan).ends == ends


def judged(make_world, taken, most, effect=0.1, left_out=()):
    world = make_world()
    object.__setattr__(world.session, "plan", {"rounds": 8, "max_rounds": most})
    drawn = np.random.default_rng(2).normal(effect, 0.01, taken)
    for number, ratio in enumerate(drawn):
        for position in range(2):
            world.process(position, number, measurements={"step_time": 1e6})
        if number not in left_out:
            world.ratio(1, number, float(ratio))
    (verdict,) = judge_session(Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios))
    return verdict, [one.log_ratio for one in world.ratios], world


@pytest.mark.parametrize(
    ("taken", "most", "level", "words"),
    [
        (8, 16, 0.99, "99 %"),
        (16, 16, 0.99, "99 %"),
        (8, 40, 0.99, "99 %"),
        (16, 40, 0.9975, "99.75 %"),
        (11, 24, 0.995, "99.5 %"),
    ],
)
def test_a_session_is_judged_at_the_level_of_its_look(make_world, taken, most, level, words):
    verdict, logs, _ = judged(make_world, taken, most)
    reference = stats.ttest_1samp(logs, 0)
    interval = reference.confidence_interval(level)
    assert (verdict.low, verdict.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert verdict.level == level
    assert f"({words} interval " in verdict.sentence
    recovered = difference_p(verdict.effect, verdict.low, verdict.high, verdict.rounds, verdict.level)
    assert recovered == pytest.approx(reference.pvalue)


def test_the_note_below_the_figures_says_how_confident_the_intervals_are(make_world):
    for most, said in ((16, "99 % interval"), (40, "99.75 % interval")):
        verdict, _, world = judged(make_world, 16, most)
        found = Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios)
        assert any(f"with their {said};" in line for line in notes(found, [verdict]))
        both = [verdict, replace(verdict, level=0.99)]
        assert any("with their 99 % to 99.75 % interval;" in line for line in notes(found, both)) == (most == 40)


def test_rounds_without_a_ratio_do_not_turn_a_later_look_into_the_first(make_world):
    verdict, _, _ = judged(make_world, 16, 40, left_out=range(8))
    assert (verdict.rounds, verdict.level) == (8, 0.9975)


def test_the_gate_knows_the_level_of_what_it_corrects(make_world):
    """Of three times, one at p = 0.002 is a discovery at 1 %; its interval read as one of 99 % would give p = 0.008."""
    verdict, _, world = judged(make_world, 16, 40)
    error = 0.05 / stats.t.isf(0.001, 15)
    reach = stats.t.ppf((1 + verdict.level) / 2, 15) * error
    slower = replace(verdict, effect=math.exp(0.05), low=math.exp(0.05 - reach), high=math.exp(0.05 + reach))
    same = replace(verdict, outcome=Outcome.SAME, reason=Reason.INTERVAL_WITHIN_DELTA, effect=1.0, low=0.99, high=1.01)
    policy = Policy((SuitePolicy("grpo"),), (MetricPolicy("step_time"),), false_discovery=0.01)
    assert decide([slower, same, same], policy, world.cases).exit_code is ExitCode.WORSE
    misread = [replace(slower, level=0.99), same, same]
    assert decide(misread, policy, world.cases).exit_code is ExitCode.OPEN


def test_a_verdict_of_an_older_file_has_an_interval_of_99_per_cent(make_world, tmp_path):
    path = tmp_path / "old.db"
    verdict, _, world = judged(make_world, 8, 16)
    old = sqlite_utils.Database(path)
    migrations.apply(old, stop_before="m002_level_of_a_verdict")
    old.close()
    with Store.open(tmp_path / "new.db") as store:
        store.add_session(world.session, world.machine, world.sides, world.cases)
        store.add_verdicts([verdict])
    new = sqlite_utils.Database(tmp_path / "new.db")
    old = sqlite_utils.Database(path)
    for table in ("metric", "machine", "suite_case", "session", "side", "verdict"):
        columns = [column.name for column in old[table].columns]
        old[table].insert_all([{name: row[name] for name in columns} for row in new[table].rows])
    old.close()
    new.close()
    with Store.open(path) as store:
        (read,) = store.verdicts(world.session.id)
    assert (read.level, read.effect) == (0.99, verdict.effect)


# The figures of docs/method.md, with fewer trials: bounds are some four standard errors wide.


@pytest.mark.parametrize("looks", [1, 2, 3, 5])
@pytest.mark.parametrize("deviation", [0.02, 0.03, 0.05])
def test_more_looks_give_no_more_false_verdicts(looks, deviation):
    rates = outcome_rates(0.0, deviation, trials=1000, looks=looks)
    assert rates[Outcome.FASTER] + rates[Outcome.SLOWER] <= 0.02 + 4 * math.sqrt(0.02 * 0.98 / 1000)


def test_more_looks_find_what_two_cannot():
    two, five = (outcome_rates(0.05, 0.08, trials=500, looks=looks)[Outcome.SLOWER] for looks in (2, 5))
    assert five > two + 0.1


def test_the_page_has_the_simulated_looks(method_page):
    assert looks_row(0.05, 0.03, 40) in method_page, "run: python -m frostline.results.simulate"
