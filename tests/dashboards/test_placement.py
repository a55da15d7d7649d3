"""Where text goes: boxes, names spread along an edge, and notes beside points."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.dashboards.placement import Box, beside, beside_if_free, spread

BOUNDS = Box(0, 0, 400, 300)


def test_boxes() -> None:
    box = Box(10, 10, 30, 20)
    assert box.overlaps(Box(29, 19, 40, 40)) and not box.overlaps(Box(30, 10, 40, 20)), "an edge that is shared is no overlap"
    assert box.within(BOUNDS) and not box.within(Box(11, 0, 50, 50))
    assert box.grown(5) == Box(5, 5, 35, 25)
    assert box.distance((20, 15)) == 0 and box.distance((33, 24)) == 5


@pytest.mark.parametrize(
    ("segment", "cut"),
    [
        (((0, 0), (40, 30)), True),  # through it
        (((15, 15), (20, 16)), True),  # inside
        (((0, 15), (9, 15)), False),  # ends before it
        (((0, 25), (40, 25)), False),  # passes above
        (((20, 0), (20, 40)), True),  # upright
        (((5, 0), (5, 40)), False),
        (((0, 14), (14, 0)), False),  # past the corner
        (((15, 15), (15, 15)), True),  # a point
    ],
)
def test_a_box_is_cut_by_what_passes_through(segment: tuple[tuple[float, float], tuple[float, float]], cut: bool) -> None:
    box = Box(10, 10, 30, 20)
    assert box.cuts(segment) is cut
    assert box.cuts((segment[1], segment[0])) is cut


def test_heights_that_do_not_crowd_stay() -> None:
    assert spread([100, 10, 50], 20, 0, 300) == [100, 10, 50]


def test_heights_that_crowd_part_around_their_middle() -> None:
    assert spread([50, 50], 20, 0, 300) == [40, 60]
    assert spread([50, 52, 54], 20, 0, 300) == [32, 52, 72]
    assert spread([2, 2], 20, 0, 300) == [0, 20]
    assert spread([], 20, 0, 300) == []


@given(st.lists(st.floats(0, 300), max_size=12), st.floats(1, 40))
def test_heights_keep_apart_in_order_and_within_bounds(wanted: list[float], gap: float) -> None:
    heights = spread(wanted, gap, 0, 300)
    room = min(gap, 300 / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for lower, upper in itertools.pairwise(order):
        assert heights[upper] - heights[lower] >= room - 1e-6
    assert all(-1e-6 <= height <= 300 + 1e-6 for height in heights)


def test_a_free_point_gets_its_text_above_or_sideways() -> None:
    above = beside((200, 150), (40, 10), BOUNDS, [], [])
    assert above.bottom > 150 and above.left + above.right == 400
    right = beside((200, 150), (40, 10), BOUNDS, [], [], sideways=True)
    assert right.left > 200 and right.bottom + right.top == 300


def test_text_avoids_lines_boxes_and_rivals() -> None:
    line = ((0.0, 100.0), (400.0, 220.0))
    other = Box(150, 165, 250, 190)
    box = beside((200, 160), (40, 10), BOUNDS, [other], [line])
    assert not box.cuts(line) and not box.overlaps(other) and box.within(BOUNDS)
    rival = (200.0, 185.0)
    box = beside((200, 160), (40, 10), BOUNDS, [], [], rivals=[rival])
    assert box.distance((200, 160)) < box.distance(rival)


def test_text_at_an_edge_stays_within_bounds() -> None:
    for corner in ((0, 0), (400, 300), (0, 300), (400, 0)):
        assert beside(corner, (60, 12), BOUNDS, [], []).within(BOUNDS)


def test_without_free_space_the_least_evil_is_taken() -> None:
    everywhere = Box(0, 0, 400, 300)
    line = ((0.0, 161.0), (400.0, 161.0))
    box = beside((200, 150), (40, 10), BOUNDS, [everywhere], [line])
    assert box.within(BOUNDS) and not box.cuts(line)


def test_a_text_that_may_stay_away_does_where_nothing_near_is_free() -> None:
    free = beside_if_free((200, 150), (40, 10), BOUNDS, [], [], [])
    assert free == beside((200, 150), (40, 10), BOUNDS, [], [])
    assert beside_if_free((200, 150), (40, 10), BOUNDS, [BOUNDS], [], []) is None
    near = Box(130, 80, 270, 220)  # beyond it there is space, but too far away to be seen as the point's own
    assert beside((200, 150), (40, 10), BOUNDS, [near], []).distance((200, 150)) > 60
    assert beside_if_free((200, 150), (40, 10), BOUNDS, [near], [], []) is None
