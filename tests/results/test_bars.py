"""Bars: which figure is judged against what, when one holds, and that what is not there is said and never judged."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest

from frostline.results.bars import Reached, judge_bars
from frostline.results.bars_report import bars_table
from frostline.results.evidence import Evidence
from frostline.results.record import Bar, Case, Role, Status, UsageError, Verification
from frostline.results.statistics import paired_interval

SIDES = ("floor", "mine", "theirs")
MS, MIB = 1e6, 2.0**20
NOISE = (0.004, -0.002, 0.001, -0.003)


@pytest.fixture
def world(make_world):
    """Two sizes, four rounds. At 8: floor 10 ms, mine 11 ms and 100 MiB, theirs 22 ms and 400 MiB; at 4 half of all that."""
    made = make_world(SIDES, vocabularies=[8, 4])
    for case, part in enumerate((1.0, 0.5)):
        for position, (ms, mib) in enumerate([(10, 0), (11, 100), (22, 400)]):
            for number, noise in enumerate(NOISE):
                figures = {"step_time": part * ms * MS, "peak_above_inputs": part * mib * MIB}
                made.process(position, number, case=case, measurements=figures)
                if position:
                    made.ratio(position, number, math.log(ms / 10) + position * noise, case=case)
        for position, error in ((0, 2e-3), (1, 2.1e-3)):
            check = Verification("d_weight", error, error / 100, 1.0)
            made.process(position, -1, case=case, role=Role.VERIFY, verifications=(check,))
    return made


def evidence(world, *bars: Bar) -> Evidence:
    plan = {**world.session.plan, "bars": [asdict(bar) for bar in bars], **world.__dict__.get("plan", {})}
    session = replace(world.session, plan=plan)
    return Evidence(session, world.machine, world.sides, world.cases, world.processes, world.ratios)


def one(world, bar: Bar):
    (judged,) = judge_bars(evidence(world, bar))
    return judged


def test_a_time_against_the_baseline_comes_from_the_rounds(world):
    judged = one(world, Bar("time", "mine", "step_time", at_most=1.13, against="floor", where={"vocab": 8}))
    wanted = [math.exp(value) for value in paired_interval([math.log(1.1) + noise for noise in NOISE])]
    assert (judged.low, judged.figure, judged.high) == pytest.approx(tuple(wanted))
    assert judged.reached is Reached.HOLDS and judged.why == "4 rounds"


def test_a_time_against_another_side_is_paired_round_by_round(world):
    """What both sides have of a round's noise cancels: theirs moves twice as far as mine, so one part of it is left."""
    judged = one(world, Bar("time", "theirs", "step_time", at_least=1.9, against="mine", where={"vocab": 8}))
    wanted = [math.exp(value) for value in paired_interval([math.log(2) + noise for noise in NOISE])]
    assert (judged.low, judged.figure, judged.high) == pytest.approx(tuple(wanted))
    assert judged.reached is Reached.HOLDS


def test_the_baseline_over_a_side_is_the_other_way_round(world):
    judged = one(world, Bar("time", "floor", "step_time", at_least=0.9, against="mine", where={"vocab": 8}))
    assert judged.figure == pytest.approx(1 / 1.1) and judged.low < judged.figure < judged.high


def test_only_rounds_that_both_sides_have_are_compared(world):
    world.ratios = [one for one in world.ratios if not (one.position == 2 and one.round in (0, 1))]
    assert one(world, Bar("t", "theirs", "step_time", at_least=1, against="mine", where={"vocab": 8})).why == "2 rounds"
    world.ratios = [one for one in world.ratios if not (one.position == 2 and one.round == 2)]
    judged = one(world, Bar("t", "theirs", "step_time", at_least=1, against="mine", where={"vocab": 8}))
    assert (judged.figure, judged.why) == (2.0, "ratio of the medians") and math.isnan(judged.low)


@pytest.mark.parametrize(
    ("limit", "reached", "why"),
    [
        (1.13, Reached.HOLDS, "4 rounds"),
        (1.101, Reached.NOT_SHOWN, "4 rounds; the interval reaches past the bar"),
        (1.099, Reached.NOT_SHOWN, "4 rounds; the interval reaches past the bar"),
        (1.05, Reached.MISSED, "4 rounds"),
    ],
)
def test_a_bar_within_the_interval_is_not_shown(world, limit, reached, why):
    judged = one(world, Bar("time", "mine", "step_time", at_most=limit, against="floor", where={"vocab": 8}))
    assert (judged.reached, judged.why) == (reached, why)


def test_across_two_cases_the_medians_are_compared(world):
    bar = Bar("half", "mine", "step_time", at_most=0.57, where={"vocab": 4}, across={"vocab": 8})
    judged = one(world, bar)
    assert (judged.figure, judged.reached, judged.why) == (0.5, Reached.HOLDS, "ratio of the medians of two cases")
    assert one(world, replace(bar, at_most=0.49)).reached is Reached.MISSED
    assert one(world, replace(bar, across={"vocab": 16})).why == "no case with vocab=16 beside it"


def test_memory_and_errors_are_compared_or_held_to_a_value(world):
    where = {"vocab": 8}
    memory = Bar("memory", "mine", "peak_above_inputs", at_most=1, against="theirs", where=where)
    assert (one(world, memory).figure, one(world, memory).why) == (0.25, "")
    assert one(world, Bar("memory", "mine", "peak_above_inputs", at_most=99 * MIB, where=where)).reached is Reached.MISSED
    error = Bar("error", "mine", "d_weight.relative", at_most=1.1, against="floor", where=where)
    assert one(world, error).figure == pytest.approx(1.05) and one(world, error).reached is Reached.HOLDS
    assert one(world, Bar("error", "mine", "d_weight.maximum", at_most=2.1e-5, where=where)).reached is Reached.HOLDS
    nothing = Bar("memory", "mine", "peak_above_inputs", at_most=2, against="floor", where=where)
    assert one(world, nothing).figure == math.inf and one(world, nothing).reached is Reached.MISSED


def test_what_is_not_there_is_not_judged(world):
    time = Bar("time", "mine", "step_time", at_most=1.13, against="theirs", where={"vocab": 8})
    others = {
        "no case with vocab=16": replace(time, where={"vocab": 16}),
        "liger was not asked for": replace(time, against="liger"),
        "d_weight of theirs was not checked": Bar("e", "theirs", "d_weight.relative", at_most=1, where={"vocab": 8}),
        "no flops of mine": Bar("f", "mine", "flops", at_most=1, where={"vocab": 8}),
    }
    for why, bar in others.items():
        judged = one(world, bar)
        assert (judged.reached, judged.why) == (Reached.NOT_MEASURED, why)
        assert math.isnan(judged.figure)
    world.processes = [one for one in world.processes if one.position != 2]
    world.process(2, 0, status=Status.SKIPPED, reason="no such package")
    assert one(world, time).why == "theirs was skipped: no such package"
    world.process(1, 1, status=Status.OOM)
    assert one(world, replace(time, against="floor")).why == "mine ran out of memory", "its times count for nothing"


def test_a_wrong_side_has_no_time_but_its_error(world):
    check = Verification("d_weight", 3e-1, 3e-1, 1e-2)
    world.process(1, -1, role=Role.VERIFY, status=Status.WRONG, reason="off", verifications=(check,))
    assert one(world, Bar("t", "mine", "step_time", 2, against="floor", where={"vocab": 8})).reached is Reached.NOT_MEASURED
    judged = one(world, Bar("e", "mine", "d_weight.relative", at_most=1e-2, where={"vocab": 8}))
    assert (judged.figure, judged.reached) == (3e-1, Reached.MISSED), "the worst of its checks"


def test_a_side_that_the_plan_leaves_out_is_said(world):
    world.plan = {"fewer_rounds": {world.cases[0].id: {"theirs": 0}}}
    judged = one(world, Bar("t", "theirs", "step_time", at_least=1, against="mine", where={"vocab": 8}))
    assert judged.why == "theirs takes no part in this case"


def test_an_error_that_is_no_number_misses(world):
    world.process(2, -1, role=Role.VERIFY, verifications=(Verification("loss", math.nan, math.nan, 1.0),))
    assert one(world, Bar("e", "theirs", "loss.relative", at_most=1, where={"vocab": 8})).reached is Reached.MISSED


def test_the_table_has_a_line_for_each_bar_and_case(world):
    bars = (
        Bar("time over the floor", "mine", "step_time", at_most=1.13, against="floor"),
        Bar("memory", "mine", "peak_above_inputs", at_most=99 * MIB, where={"vocab": 8}),
        Bar("half", "mine", "step_time", at_most=0.57, where={"vocab": 4}, across={"vocab": 8}),
        Bar("error", "mine", "d_weight.relative", at_most=5e-3, where={"vocab": 16}),
    )
    table = bars_table(evidence(world, *bars))
    assert table.title == "Bars of grpo: 3 hold, 1 missed, 1 not measured"
    low, middle, high = (math.exp(value) for value in paired_interval([math.log(1.1) + noise for noise in NOISE]))
    ratio = f"{middle:.3f} [{low:.3f}, {high:.3f}]"
    assert table.rows == [
        [("time over the floor (vocab 8)",), ("<= 1.13 x floor",), (ratio,), ("holds",), ("4 rounds",)],
        [("time over the floor (vocab 4)",), ("<= 1.13 x floor",), (ratio,), ("holds",), ("4 rounds",)],
        [("memory",), ("<= 99.00 MiB",), ("100.0 MiB",), ("missed",), ("",)],
        [("half",), ("<= 0.57 x mine at vocab=8",), ("0.500",), ("holds",), ("ratio of the medians of two cases",)],
        [("error",), ("<= 5.00e-03",), ("-",), ("not measured",), ("no case with vocab=16",)],
    ]
    assert "| memory | &lt;= 99.00 MiB | 100.0 MiB | missed |  |" in table.markdown()


def test_cases_that_were_not_measured_for_the_same_reason_share_a_row(world):
    bars = [Bar("all", "mine", "flops", at_most=1, against=other) for other in ("theirs", "floor")]
    table = bars_table(evidence(world, *bars, Bar("one", "mine", "step_time", at_most=2, against="floor", where={"vocab": 4})))
    assert [(row[0], row[4]) for row in table.rows] == [
        (("all (in 2 cases)",), ("no flops of mine",)),
        (("all (in 2 cases)",), ("no flops of mine",)),
        (("one",), ("4 rounds",)),
    ]
    assert table.title == "Bars of grpo: 1 hold, 4 not measured"


def test_bars_for_other_cases_alone_are_one_sentence(world):
    bars = [Bar("time", "mine", "step_time", at_most=1, where={"vocab": vocab}) for vocab in (16, 32)]
    table = bars_table(evidence(world, *bars))
    assert (table.title, table.rows) == (
        "Bars of grpo: 2 not measured",
        [[("they are for other cases: no case with vocab=16",)]],
    )


def test_there_is_no_table_without_bars_or_without_measurements(world):
    assert bars_table(evidence(world)) is None
    bar = Bar("time", "mine", "step_time", at_most=1)
    world.processes = [replace(one, role=Role.PREDICT) for one in world.processes]
    assert bars_table(evidence(world, bar)) is None
    old = Evidence(world.session, world.machine, world.sides, world.cases, world.processes)
    assert judge_bars(old) == [], "a session of before there were bars"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "wanted one of at_most and at_least, got None and None"),
        ({"at_most": 1, "at_least": 2}, "wanted one of at_most and at_least, got 1 and 2"),
        ({"at_most": 1, "figure": "time"}, "figure: got 'time', wanted step_time, .*, or an output's error such as"),
        ({"at_most": 1, "figure": ".relative"}, "figure: got '.relative'"),
        ({"at_most": 1, "figure": "logp.mean"}, "figure: got 'logp.mean'"),
    ],
)
def test_a_bar_that_cannot_be_is_refused(given, said):
    with pytest.raises(UsageError, match=said):
        Bar(**{"says": "it", "side": "mine", "figure": "step_time", **given})


def test_cases_are_matched_by_every_axis_of_where(world):
    world.cases.append(Case("grpo", "v1", {"vocab": 8, "lm_head": "trainable", "dtype": "bfloat16"}))
    bar = Bar("t", "mine", "step_time", at_most=2, against="floor", where={"vocab": 8, "lm_head": "frozen"})
    assert one(world, bar).case == world.cases[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"at_most": "1.2"}, "at_most: got '1.2', wanted a finite number"),
        ({"at_most": math.nan}, "at_most: got nan, wanted a finite number"),
        ({"at_least": True}, "at_least: got True, wanted a finite number"),
        ({"at_most": 1, "where": {"n": [1]}}, "where: got {'n': [1]}, wanted one value for an axis"),
        ({"at_most": 1, "across": [1]}, "across: got [1], wanted one value for an axis"),
        ({"at_most": 1, "against": None}, "against: got None, wanted a word"),
    ],
)
def test_a_bar_of_the_wrong_types_is_refused_when_it_is_made(given, said):
    with pytest.raises(UsageError) as refused:
        Bar("it", "mine", "step_time", **given)
    assert str(refused.value).startswith(f"Bar 'it': {said}")


def test_a_stored_bar_that_is_broken_is_left_out_with_a_sentence(world):
    good = asdict(Bar("memory", "mine", "peak_above_inputs", at_most=1, against="theirs", where={"vocab": 8}))
    for broken, said in (({**good, "at_most": "1.2"}, "at_most: got '1.2'"), ({**good, "newer": 1}, "newer")):
        world.plan = {"bars": [broken, good]}
        table = bars_table(evidence(world))
        assert len(table.rows) == 1 and said in table.notes[-1] and "left out" in table.notes[-1]
        world.plan = {"bars": [broken]}
        assert said in bars_table(evidence(world)).rows[0][0][0]
