"""Crossings of lines that cross not at all, once, twice, that touch, that part, and that end without memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.results.crossover import load_panels, narrowed, usual_reference
from frostline.results.evidence import Evidence
from frostline.results.lines import Crossing, Series, compare_lines, find_crossings, together
from frostline.results.record import STEP_TIME, Case, Role, Sample, Status, UsageError

XS = (1024, 2048, 4096, 8192)


def line(label, values, xs=XS, **given):
    return Series(label, tuple(xs)[: len(values)], values, **given)


def sentence(ours, theirs, **given):
    return compare_lines(line("fused", ours, **given), line("plain", theirs), "seq_len").sentence


def crossings(ours, theirs):
    return [one.x for one in find_crossings(line("fused", ours), line("plain", theirs))]


@pytest.mark.parametrize(
    ("ours", "theirs", "crossed", "said"),
    [
        ((1, 1, 1, 1), (2, 3, 4, 5), [], "fused needs less than plain at every seq_len measured"),
        ((3, 4, 5, 6), (2, 3, 4, 5), [], "fused needs more than plain at every seq_len measured"),
        ((2, 3, 4, 5), (2, 3, 4, 5), [], "fused needs as much as plain at every seq_len measured"),
        ((4, 4, 4, 4), (2, 3, 5, 9), [3072], "fused needs less than plain from 2,048–4,096 on"),
        ((2, 3, 5, 9), (4, 4, 4, 4), [3072], "fused needs less than plain up to 2,048–4,096"),
        ((1, 3, 3, 1), (2, 2, 2, 2), [1536, 6144], "fused needs less than plain up to 1,024–2,048 and from 4,096–8,192 on"),
        ((3, 1, 1, 3), (2, 2, 2, 2), [1536, 6144], "fused needs less than plain between 1,024–2,048 and 4,096–8,192"),
        (
            (3, 1, 3, 1),
            (2, 2, 2, 2),
            [1536, 3072, 6144],
            "fused needs less than plain between 1,024–2,048 and 2,048–4,096 and from 4,096–8,192 on",
        ),
        ((3, 2, 1, 1), (2, 2, 2, 2), [2048], "fused needs less than plain from 2,048 on"),  # crosses at a measured point
        ((1, 2, 1, 1), (2, 2, 2, 2), [], "fused needs less than plain or as much at every seq_len measured"),  # touches
        ((3, 2, 3, 3), (2, 2, 2, 2), [], "fused needs as much as or more than plain at every seq_len measured"),
        ((2, 2, 1, 1), (2, 2, 2, 2), [], "fused needs less than plain from 2,048 on"),  # one line up to there
        ((3, 2, 2, 1), (2, 2, 2, 2), [4096], "fused needs less than plain from 4,096 on"),  # lie on each other for a while
    ],
)
def test_where_lines_cross_and_what_is_said(ours, theirs, crossed, said):
    assert crossings(ours, theirs) == crossed
    assert crossings(theirs, ours) == crossed
    assert sentence(ours, theirs) == said


def test_a_crossing_has_a_height():
    assert find_crossings(line("a", (4, 4)), line("b", (2, 6))) == [Crossing(1536, 4.0, 1024, 2048)]


def test_lines_over_different_lengths_are_compared_where_both_are():
    short = Series("fused", (2048, 4096), (3, 3))
    long = Series("plain", (1024, 8192), (1, 8))
    assert [one.x for one in find_crossings(short, long)] == [pytest.approx(3072)]
    apart = compare_lines(Series("fused", (1,), (1,)), Series("plain", (2,), (1,)), "seq_len")
    assert (apart.crossings, apart.sentence) == ([], "fused shares no seq_len that was measured with plain")


def test_running_out_of_memory_is_told():
    fused, plain = line("fused", (1, 1, 1, 1)), line("plain", (2, 3), oom_at=4096)
    assert (
        compare_lines(fused, plain, "seq_len").sentence
        == "fused needs less than plain at every seq_len measured; plain runs out of memory at 4,096"
    )
    nothing = Series("plain", (), (), oom_at=1024)
    assert compare_lines(fused, nothing, "seq_len").sentence.endswith("; plain runs out of memory at 1,024")


def test_a_prediction_says_so():
    assert sentence((1, 1), (2, 2), predicted=True) == "fused needs less than plain at every seq_len predicted"


def test_a_crossing_between_near_points_is_a_number():
    near = Series("a", (800, 830, 860), (1, 2, 3)), Series("b", (800, 830, 860), (1.5, 2.25, 2.5))
    (crossing,) = find_crossings(*near)
    assert (crossing.low, crossing.high, crossing.text) == (830, 860, "840")


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=7))
def test_crossings_are_where_the_sign_of_the_difference_turns(pairs):
    xs = range(len(pairs))
    ours, theirs = Series("a", xs, [a for a, _ in pairs]), Series("b", xs, [b for _, b in pairs])
    signs = [(a > b) - (a < b) for a, b in pairs if a != b]
    turns = sum(one != other for one, other in pairwise(signs))
    found = find_crossings(ours, theirs)
    assert len(found) == turns
    assert [one.x for one in found] == sorted(one.x for one in found)


def timed(label, values, spreads=(), xs=XS):
    return Series(label, tuple(xs)[: len(values)], values, metric=STEP_TIME, spreads=spreads)


@pytest.mark.parametrize(
    ("ours", "theirs", "crossed", "said"),
    [
        ((1, 1, 1, 1), (2, 3, 4, 5), [], "is faster than plain at every seq_len measured"),
        ((3, 4, 5, 6), (2, 3, 4, 5), [], "is slower than plain at every seq_len measured"),
        ((4, 4, 4, 4), (2, 3, 5, 9), [(3072, 2048, 4096)], "is faster than plain from 2,048–4,096 on"),
        # The lines change places near 2,458, but at 2,048 and at 4,096 they are nearer than their bars.
        (
            (4, 4, 4, 4),
            (2, 3.9, 4.4, 9),
            [(2457.6, 1024, 8192)],
            "is faster than plain from 1,024–8,192 on; within the noise at 2,048 and 4,096",
        ),
        ((4, 4, 4, 4), (4.2, 3.9, 4, 4.3), [], "is within the noise of plain at every seq_len measured"),
        ((4, 4, 4, 4), (4.2, 5, 6, 7), [], "is faster than plain wherever they differ; within the noise at 1,024"),
        ((4, 4, 4, 4), (3.9, 4.1, 3.9, 2), [], "is slower than plain wherever they differ; within the noise at 1,024 to 4,096"),
        ((4, 4, 4, 4), (5, 4, 5, 3), [(6144, 4096, 8192)], "is faster than plain up to 4,096–8,192; within the noise at 2,048"),
    ],
)
def test_times_cross_only_where_they_differ_by_more_than_their_spreads(ours, theirs, crossed, said):
    side, baseline = timed("fused", ours, [0.2] * len(ours)), timed("plain", theirs, [0.3] * len(theirs))
    found = compare_lines(side, baseline, "seq_len")
    assert [(one.x, one.low, one.high) for one in found.crossings] == [
        (pytest.approx(x), low, high) for x, low, high in crossed
    ]
    assert found.sentence == f"fused {said}"


def test_times_without_a_spread_differ_by_what_is_worth_a_word():
    close, clear = (timed("fused", (100, 100)), timed("plain", (102.9, 104))), (timed("fused", (100,)), timed("plain", (96,)))
    assert compare_lines(*close, "seq_len", 0.03).sentence.endswith("wherever they differ; within the noise at 1,024")
    assert compare_lines(*clear, "seq_len", 0.03).sentence == "fused is slower than plain at every seq_len measured"
    assert compare_lines(*clear, "seq_len", 0.05).sentence == "fused is within the noise of plain at every seq_len measured"


def test_bytes_have_no_noise():
    assert compare_lines(line("fused", (100, 100)), line("plain", (101, 101)), "seq_len", 0.03).sentence == (
        "fused needs less than plain at every seq_len measured"
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=7), st.floats(0, 3))
def test_a_crossing_of_times_lies_between_points_that_differ_clearly(pairs, spread):
    xs = range(len(pairs))
    ours = timed("a", [a for a, _ in pairs], [spread] * len(pairs), xs)
    theirs = timed("b", [b for _, b in pairs], [0.0] * len(pairs), xs)
    clear = [(x, a > b) for x, (a, b) in enumerate(pairs) if abs(a - b) > spread]
    turns = [(low, high) for (low, one), (high, other) in pairwise(clear) if one != other]
    found = find_crossings(ours, theirs)
    if spread:  # without one, lines may also meet at a point
        assert [(one.low, one.high) for one in found] == turns
    for one in found:
        assert one.low <= one.x <= one.high
        assert one.value == pytest.approx(_at(ours, one.x)) == pytest.approx(_at(theirs, one.x)), "where the drawn lines meet"


def _at(series, x):
    return float(np.interp(x, series.xs, series.values))


def test_sides_of_which_the_same_is_to_be_said_share_a_sentence():
    plain = line("plain", (2, 3), oom_at=4096)
    sides = [line("a", (1, 1)), line("b", (3, 4)), line("c", (1, 2)), line("d", (1, 2, 3), oom_at=8192)]
    assert together([compare_lines(side, plain, "seq_len") for side in sides]) == [
        "a, c and d need less than plain at every seq_len measured",
        "b needs more than plain at every seq_len measured",
        "plain runs out of memory at 4,096, d runs out of memory at 8,192",
    ]
    fast = [compare_lines(timed(name, (1, 1)), timed("plain", (2, 2)), "seq_len") for name in "ab"]
    assert together(fast) == ["a and b are faster than plain at every seq_len measured"]
    apart = [compare_lines(Series(name, (1,), (1,)), Series("plain", (2,), (1,)), "seq_len") for name in "ab"]
    assert together(apart) == ["a and b share no seq_len that was measured with plain"]


@pytest.fixture
def session(make_world):
    """Two panels over three lengths: the fused head saves from between 2 and 4 K on, and plain runs out of memory at 8 K."""
    world = make_world(("plain", "fused"))
    world.cases = [
        Case("grpo", "v1", {"seq_len": length, "lm_head": head, "vocab": 4096})
        for head in ("frozen", "trainable")
        for length in XS
    ]
    for number, case in enumerate(world.cases):
        length = case.params["seq_len"]
        for position, peak in enumerate((length * 2.0, 6144.0)):
            if position == 0 and length == 8192:
                world.process(0, 0, case=number, status=Status.OOM, reason="out of memory")
                continue
            for round_number in range(3):
                world.process(position, round_number, case=number, measurements={"peak_allocated": peak + round_number - 1})
            world.process(position, -1, case=number, role=Role.PREDICT, measurements={"peak_allocated": peak / 2})
    return world


def load(world, **given):
    return load_panels(Evidence(world.session, world.machine, world.sides, world.cases, world.processes), **given)


def test_lines_are_compared_with_the_side_that_was_named(session):
    frozen, _ = load(session, against="fused")
    assert [(one.label, one.baseline) for one in frozen.comparisons] == [("plain", "fused")]
    with pytest.raises(UsageError, match="--against: no side 'eager'; the session has plain, fused"):
        load(session, against="eager")


def test_panels_from_a_session(session):
    frozen, trainable = load(session)
    assert (frozen.title, trainable.title) == ("lm_head frozen", "lm_head trainable")
    plain, fused = frozen.lines
    assert (plain.label, plain.xs, plain.values, plain.oom_at) == ("plain", [1024, 2048, 4096], [2048, 4096, 8192], 8192)
    assert (fused.xs, fused.values, fused.oom_at) == ([1024, 2048, 4096, 8192], [6144] * 4, None)
    (comparison,) = frozen.comparisons
    assert comparison.crossings == [Crossing(3072, 6144, 2048, 4096)]
    assert comparison.sentence == "fused needs less than plain from 2,048–4,096 on; plain runs out of memory at 8,192"


def test_predicted_panels(session):
    plain = load(session, role=Role.PREDICT)[0].lines[0]
    assert (plain.predicted, plain.values) == (True, [1024, 2048, 4096])


def test_a_time_has_the_spread_of_its_processes_or_of_the_samples_of_the_only_one(make_world):
    world = make_world(("plain", "fused"))
    world.cases = [Case("grpo", "v1", {"seq_len": length}) for length in XS[:2]]
    samples = {}
    for number in (0, 1):
        for round_number, time in enumerate((100.0, 104.0, 112.0)):
            world.process(0, round_number, case=number, measurements={"step_time": time})
        one = world.process(1, 0, case=number, measurements={"step_time": 50.0})
        samples[one.id] = [Sample("step_time", 0, at, value) for at, value in enumerate((48.0, 49.0, 50.0, 51.0, 90.0))]
        samples[one.id].append(Sample("other", 0, 9, 1e9))
    (panel,) = load(world, metric="step_time", samples=samples.__getitem__)
    plain, fused = panel.lines
    assert (plain.values, plain.spreads) == ([104, 104], [3, 3])
    assert (fused.values, fused.spreads) == ([50, 50], [1, 1])
    assert [one.sentence for one in panel.comparisons] == ["fused is faster than plain at every seq_len measured"]
    (panel,) = load(world, metric="step_time")
    assert panel.lines[1].spreads == [0, 0], "nothing is made up where samples are not at hand"


def test_the_session_s_own_delta_decides_what_is_worth_a_word(make_world):
    world = make_world(("plain", "fused"))
    world.cases = [Case("grpo", "v1", {"seq_len": 1024})]
    for position, time in enumerate((104.0, 100.0)):
        world.process(position, measurements={"step_time": time})
    (before,) = load(world, metric="step_time")
    world.session = replace(world.session, plan={"delta": {"step_time": 0.05}})
    (after,) = load(world, metric="step_time")
    assert [one.sentence for panel in (before, after) for one in panel.comparisons] == [
        "fused is faster than plain at every seq_len measured",
        "fused is within the noise of plain at every seq_len measured",
    ]


def test_a_side_that_skipped_everything_is_left_out_with_its_reason(make_world):
    world = make_world(("plain", "peer", "partly", "broken", "never"))
    world.cases = [Case("grpo", "v1", {"seq_len": length}) for length in XS]
    for number in range(len(XS)):
        world.process(0, case=number, measurements={"peak_allocated": 100.0})
        world.process(1, case=number, status=Status.SKIPPED, reason="no package peer")
        if number < 2:
            world.process(2, case=number, measurements={"peak_allocated": 50.0})
        else:
            world.process(2, case=number, status=Status.SKIPPED, reason="too long")
        world.process(3, case=number, status=Status.ERROR, reason="broken")
    (panel,) = load(world)
    assert [one.label for one in panel.lines] == ["plain", "partly"]
    assert panel.absent == ["peer is left out: no package peer"]
    assert panel.remarks == [
        "partly at seq_len 4,096 and 8,192: skipped, not drawn",
        "broken at seq_len 1,024, 2,048, 4,096 and 8,192: error, not drawn",
    ]


def test_a_session_is_narrowed_to_what_was_asked_for(session):
    evidence = Evidence(session.session, session.machine, session.sides, session.cases, session.processes)
    part = narrowed(evidence, ["fused"], {"lm_head": ["frozen"], "seq_len": ["1024", "4096"]})
    assert [side.implementation for side in part.sides] == ["fused"]
    assert [case.params["seq_len"] for case in part.cases] == [1024, 4096]
    assert [one.title for one in load_panels(part)] == ["lm_head frozen"]
    assert narrowed(evidence, [], {}) == evidence
    for asked, said in (
        ((["liger"], {}), "--implementations: session .* has no 'liger'; it has plain, fused"),
        (([], {"bias": ["True"]}), "--set: session .* has no axis 'bias'"),
        (([], {"vocab": ["5"]}), "--set: session .* has no case with vocab=5"),
    ):
        with pytest.raises(UsageError, match=said):
            narrowed(evidence, *asked)


def test_the_usual_reference_is_torch(make_world):
    assert [
        usual_reference(Evidence(world.session, world.machine, world.sides, world.cases, []))
        for world in (make_world(("pruned", "torch")), make_world(("pruned", "mine")))
    ] == ["torch", None]


def test_a_wrong_side_is_not_drawn_and_that_is_said(session):
    session.verify(1, 0.5, 1e-5, case=1)
    frozen, _ = load(session)
    assert frozen.lines[1].xs == [1024, 4096, 8192]
    assert frozen.remarks == ["fused at seq_len 2,048: wrong, not drawn"]


def test_a_suite_without_the_panel_s_axis_has_one_panel(session):
    (panel,) = load(session, panel="layers", where={"lm_head": "frozen"})
    assert panel.title == ""
    assert len(panel.lines) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x": "length"}, "no axis 'length'; the session's cases have seq_len, lm_head, vocab"),
        ({"x": "lm_head", "panel": "seq_len"}, "axis 'lm_head' has values that are no numbers"),
        ({"where": {"bias": True}}, "no axis 'bias'"),
        ({"where": {"vocab": 5}}, "no case has vocab=5"),
        ({"panel": "vocab"}, r"differ in lm_head \(frozen, trainable\); choose one with --set lm_head=frozen"),
        ({"metric": "peak_reserved"}, "has no measured peak_reserved over seq_len"),
        ({"metric": "no_such_metric"}, "has no measured no_such_metric over seq_len"),
    ],
)
def test_what_cannot_be_drawn_is_a_clear_line(session, given, said):
    with pytest.raises(UsageError, match=said):
        load(session, **given)
