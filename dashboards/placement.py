"""Where text goes so that it covers nothing: labels at the ends of lines, and notes beside points. All in pixels, y upwards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Point: TypeAlias = tuple[float, float]
Segment: TypeAlias = tuple[Point, Point]


@dataclass(frozen=True)
class Box:
    """A rectangle by its edges."""

    left: float
    bottom: float
    right: float
    top: float

    def grown(self, by: float) -> Box:
        """The box with a margin of `by` around it."""
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)

    def distance(self, point: Point) -> float:
        """From a point to the nearest edge; 0 inside."""
        across = max(self.left - point[0], 0.0, point[0] - self.right)
        up = max(self.bottom - point[1], 0.0, point[1] - self.top)
        return math.hypot(across, up)

    def overlaps(self, other: Box) -> bool:
        """Whether the two share an area."""
        return self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top

    def within(self, other: Box) -> bool:
        """Whether nothing of it lies outside `other`."""
        return self.left >= other.left and self.right <= other.right and self.bottom >= other.bottom and self.top <= other.top

    def cuts(self, segment: Segment) -> bool:
        """Whether the segment passes through it (Liang and Barsky's clipping, 1984)."""
        (x0, y0), (x1, y1) = segment
        enter, leave = 0.0, 1.0
        for step, room in (
            (x0 - x1, x0 - self.left),
            (x1 - x0, self.right - x0),
            (y0 - y1, y0 - self.bottom),
            (y1 - y0, self.top - y0),
        ):
            if step == 0:
                if room < 0:
                    return False
            elif step < 0:
                enter = max(enter, room / step)
            else:
                leave = min(leave, room / step)
        return enter <= leave


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights as near as may be to the wanted ones, at least `gap` apart, between `low` and `high`, in the same order.

    Heights that crowd form a block around the mean of what its members want, and blocks that meet are merged: the least squares
    solution (isotonic regression by pooling neighbours). Where there is no room for all, the gap shrinks.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    if len(order) > 1:
        gap = min(gap, (high - low) / (len(order) - 1))
    blocks: list[tuple[float, int]] = []  # the sum of (wanted height - place in line * gap), and how many
    for place, index in enumerate(order):
        total, count = wanted[index] - place * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            before, size = blocks.pop()
            total, count = total + before, count + size
        blocks.append((total, count))
    bases = [total / count for total, count in blocks for _ in range(count)]
    ceiling = high - (len(order) - 1) * gap
    heights = [0.0] * len(order)
    for place, index in enumerate(order):
        heights[index] = min(max(bases[place], low), ceiling) + place * gap
    return heights


def beside(
    point: Point,
    size: tuple[float, float],
    bounds: Box,
    boxes: Iterable[Box],
    lines: Iterable[Segment],
    *,
    rivals: Sequence[Point] = (),
    sideways: bool = False,
) -> Box:
    """A box of the given size (width, height) near a point, in free space where there is some.

    Of the places around the point, from near to far, it is the first that lies within `bounds`, touches neither a box nor a
    line, and is not nearer to a rival (another point with a text of its own); failing that, the one with the least against it.
    At each distance the places above and below come first, or with `sideways` those to the right and the left.
    """
    return _best(point, size, bounds, boxes, lines, rivals, sideways)[1]


def beside_if_free(
    point: Point,
    size: tuple[float, float],
    bounds: Box,
    boxes: Iterable[Box],
    lines: Iterable[Segment],
    rivals: Sequence[Point],
) -> Box | None:
    """As `beside`, but None where no place near enough to be seen as the point's own is free."""
    cost, box = _best(point, size, bounds, boxes, lines, rivals, sideways=False)
    return box if cost == 0 and box.distance(point) <= _NEAR else None


def _best(
    point: Point,
    size: tuple[float, float],
    bounds: Box,
    boxes: Iterable[Box],
    lines: Iterable[Segment],
    rivals: Sequence[Point],
    sideways: bool,
) -> tuple[float, Box]:
    """The place with the least against it, and how much that is: 0 for a free one."""
    solid, drawn = list(boxes), list(lines)
    best = (math.inf, Box(bounds.left, bounds.top - size[1], bounds.left + size[0], bounds.top))
    for box in _around(point, size, _SIDEWAYS + _UPRIGHT if sideways else _UPRIGHT + _SIDEWAYS):
        if not box.within(bounds):
            continue
        roomy = box.grown(3)
        cost = 100.0 * sum(roomy.overlaps(other) for other in solid) + sum(roomy.cuts(line) for line in drawn)
        cost += 10.0 * any(box.distance(rival) < 1.25 * box.distance(point) for rival in rivals)
        if cost == 0:
            return cost, box
        if cost < best[0]:
            best = (cost, box)
    return best


_NEAR = 60.0  # pixels from a point to a text that is still seen as its own

# As (across, up). The corners that a rising line leaves free come before the others, half-way shifts last.
_SIDEWAYS = ((1.0, 0.0), (-1.0, 0.0))
_UPRIGHT = (
    *((0.0, 1.0), (0.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, -1.0)),
    *((-0.5, 1.0), (0.5, 1.0), (-0.5, -1.0), (0.5, -1.0)),
)


def _around(point: Point, size: tuple[float, float], directions: Sequence[Point]) -> Iterator[Box]:
    (x, y), (width, height) = point, size
    for distance in (11.0, 16.0, 22.0, 30.0, 40.0, 52.0, 66.0, 84.0, 106.0):
        for across, up in directions:
            left = x + across * (distance + width / 2) - width / 2
            bottom = y + up * (distance + height / 2) - height / 2
            yield Box(left, bottom, left + width, bottom + height)
