"""The sizes of blocks and cycles, and the order in which a plan is worked off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frostline.harness.plan import Block, Plan, block_of, block_steps, cycles, host_calls, loops
from frostline.harness.side import Side, Source
from frostline.results.record import Bar, Case

CASES = [Case("s", "1", {"n": 1}), Case("s", "1", {"n": 2})]
SOURCE = Source("HEAD", "git", "abc", Path("/somewhere"), ("package",), {"commit": "abc"})


def a_plan(**fields):
    sides = [Side(0, "old", SOURCE, True), Side(1, "new", SOURCE)]
    return Plan("s", CASES, sides, rounds=2, device="cpu", threads=2, delta={"step_time": 0.05}, **fields)


@pytest.mark.parametrize(
    ("step_ms", "steps"),
    [(0.01, 2000), (1.0, 20), (2.0, 10), (5.0, 10), (20.0, 10), (21.0, 9), (100.0, 2), (150.0, 1), (900.0, 1)],
)
def test_a_block_is_ten_steps_or_20_ms_but_at_most_200_ms(step_ms, steps):
    assert block_steps(step_ms * 1e6) == steps == block_steps(step_ms * 1e6, sides=3)


@pytest.mark.parametrize(("step_ms", "steps"), [(0.01, 2000), (1.0, 20), (2.0, 10), (28.0, 3), (43.0, 1), (265.0, 1)])
def test_with_seven_sides_a_block_is_a_seventh_of_600_ms_at_most(step_ms, steps):
    assert block_steps(step_ms * 1e6, sides=7) == steps


def test_a_short_step_is_read_several_at_a_time():
    assert [loops(ns) for ns in (50, 1e4, 1e5, 1e6)] == [2000, 10, 1, 1]


@pytest.mark.parametrize(("call_us", "sides", "calls"), [(60, 2, 50), (60, 6, 50), (300, 6, 33), (1, 2, 100), (5e4, 2, 1)])
def test_the_host_is_timed_over_500_calls_back_to_back(call_us, sides, calls):
    assert host_calls(call_us * 1e3, sides) == calls
    block = block_of("host_time", call_us * 1e3, 0.0, sides)
    assert block.loops == calls and block.ns == block.steps * calls * call_us * 1e3
    if call_us * sides < 1200:
        assert block.steps * block.loops >= 500


def test_a_block_of_another_time_lasts_as_long_as_it_takes_to_read():
    assert block_of("step_time", 50.0, 1e9, 2) == Block("step_time", 200, 2000, 2e7)
    assert block_of("kernel_time", 14e3, 1e6, 2) == Block("kernel_time", 20, 1, 2e7)
    assert block_of("cold_step_time", 3e6, 1e6, 2).steps == 10


def test_a_round_has_4_to_10_cycles():
    assert cycles([50e6] * 3) == 7
    assert cycles([200e6] * 3) == 4
    assert cycles([900e6] * 3) == 4
    assert cycles([20e6, 20e6]) == 10


def test_every_case_is_measured_once_before_any_is_measured_again():
    plan = a_plan()
    ids = [case.id for case in CASES]
    order = [(case.params["n"], at) for case, at in plan.pending(0, set(), ids)]
    assert order == [(1, 0), (2, 0), (1, 1), (2, 1)]
    longer = a_plan(max_rounds=5)
    later = [[(case.params["n"], at) for case, at in longer.pending(look, set(), ids[1:])] for look in (1, 2)]
    assert later == [[(2, 2), (2, 3)], [(2, 4)]]


def test_what_is_stored_is_not_measured_again():
    plan = a_plan()
    done = {(CASES[0].id, 0), (CASES[1].id, 1)}
    assert [(case.params["n"], at) for case, at in plan.pending(0, done, [case.id for case in CASES])] == [(2, 0), (1, 1)]


def test_a_side_takes_part_in_the_first_rounds_of_each_look():
    plan = a_plan(max_rounds=4, fewer_rounds={CASES[0].id: {"new": 1}, CASES[1].id: {"new": 0}})
    sides = [[[side.implementation for side in plan.sides_of(case, at)] for at in range(4)] for case in CASES]
    assert sides == [[["old", "new"], ["old"]] * 2, [["old"]] * 4]


def test_a_plan_survives_the_store():
    bars = (Bar("no slower", "new", "step_time", at_most=1, where={"n": 1}, against="old"),)
    given = {"selection": {"preset": "small", "settings": []}, "fewer_rounds": {CASES[0].id: {"new": 1}}, "bars": bars}
    plan = a_plan(max_rounds=4, budget_s=600.0, **given)
    stored = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(stored) == plan
    del stored["bars"], stored["max_rounds"], stored["budget_s"]
    old = Plan.from_json(stored | {"looks": 2})
    assert (old.bars, old.looks.ends, old.budget_s) == ((), (2, 4), None), "a session of before there were bars and budgets"
    assert plan.baseline.implementation == "old"
