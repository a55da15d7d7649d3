"""Crossings of lines that cross not at all, once, twice, that touch, that part, and that end without memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.results.crossover import load_panels
from frostline.results.evidence import Evidence
from frostline.results.lines import Crossing, Series, compare_lines, find_crossings
from frostline.results.record import Case, Role, Status, UsageError

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
    ],
)
def test_what_cannot_be_drawn_is_a_clear_line(session, given, said):
    with pytest.raises(UsageError, match=said):
        load(session, **given)
