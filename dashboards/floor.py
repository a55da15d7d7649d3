"""The floor chart: time over the least that a step can cost against memory above the inputs, a point for each side.

Both axes are logarithmic, both panels have the same ones. The floors are lines, since they need no memory of their own; a side
without any stands on the lower edge. What is to the left and below is better. A baseline that is no floor is called by
its name.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import NullLocator

from frostline.dashboards import theme
from frostline.dashboards.charts import Picture, picture_folder
from frostline.dashboards.frame import Frame, Scale, box_of
from frostline.dashboards.placement import Box, Point, Segment, beside
from frostline.results.evidence import Evidence
from frostline.results.over_floor import FloorPanel, FloorPoint, load_floor_panels

_MOST_OCTAVES = 12  # of memory: what needs less than the 4,096th part of the most is as good as none
_TICKS = (1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 500, 1000)
_LEAST_GAP = 1.25  # from a tick to the next
_FLOOR_STYLES = ("-", (0, (4, 2.5)), (0, (1, 2)))
_LEADER = 16.0  # pixels from a point from which its name is joined to it by a line
_ORDERS = 100  # in which the names are placed, of which the best is taken
_MARKER_BOX = 7.5  # pixels around a point that no text may cover


def floor_picture(evidence: Evidence, folder: Path) -> Picture:
    """Draw a session as `floor.png` in a folder, a panel for the frozen and one for the trained head.

    Raises:
        UsageError: a session in which no side was measured beside its baseline, or a folder that cannot be made.
    """
    panels = load_floor_panels(evidence)
    path = picture_folder(folder) / "floor.png"
    common = [
        f"{axis} {value}"
        for axis, value in panels[0].case.params.items()
        if axis != "lm_head" and all(panel.case.params.get(axis) == value for panel in panels)
    ]
    caption = f"{', '.join(common)}; measured on {evidence.machine.label}; one forward and backward"
    with theme.applied():
        title = f"{evidence.cases[0].suite}: time over {panels[0].reference} against memory above the inputs"
        draw_floor(panels, title=title, caption=caption).savefig(path)
    sentences = [f"{panel.title}: {said}" for panel in panels for said in (*(p.sentence for p in panel.points), *panel.remarks)]
    return Picture(path, sentences)


def draw_floor(panels: Sequence[FloorPanel], *, title: str, caption: str = "") -> Figure:
    """The figure of the panels side by side. Call it inside `theme.applied()`.

    Raises:
        ValueError: no panels.
    """
    if not panels:
        raise ValueError("a floor chart needs at least one panel, got none")
    points = [point for panel in panels for point in panel.points]
    scale = _memory([point.above for point in points if not point.is_floor])
    width = _times([point.over for point in points])
    frame = Frame(
        title=title,
        caption=caption,
        headings=[(panel.title, [*map(_floor_note, _floors(panel)), *panel.remarks]) for panel in panels],
        ticks=scale.labels(),
        gutters=[[] for _ in panels],
        key=False,
    )
    looks = theme.looks(point.label for point in points if not point.is_floor)
    for place, panel in enumerate(panels):
        axes = frame.panel(place)
        scale.apply(axes, "Memory above the inputs", labelled=place == 0)
        _time_axis(axes, width, panel.reference)
        _Cloud(panel, axes, frame.figure, frame.room(place), scale, looks).draw()
    return frame.figure


def _floors(panel: FloorPanel) -> list[FloorPoint]:
    return [point for point in panel.points if point.is_floor]


def _floor_note(point: FloorPoint) -> str:
    where = "at 1" if point.over == 1 else f"at {point.over:.2f}"
    return f"{point.label}: {point.cost}, the line {where}"


def _memory(values: Sequence[float]) -> Scale:
    """A logarithmic axis that holds every value but those that are as good as nothing."""
    most = max([*values, 1.0])
    least = min([value for value in values if value > most / 2**_MOST_OCTAVES] or [most / 2])
    low = 2.0 ** math.floor(math.log2(least / 1.3))
    return Scale(low, most * (most / low) ** 0.08, True, 1.0, "B", 0)


def _times(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis of times: from a little below the floor, or the fastest, to a little above the slowest."""
    low, high = min([*values, 1.0]), max([*values, 1.5])
    margin = (high / low) ** 0.06
    return low / margin, high * margin


def _time_axis(axes: Axes, ends: tuple[float, float], reference: str) -> None:
    shown: list[float] = []
    for tick in _TICKS:
        if ends[0] <= tick <= ends[1] and (not shown or tick / shown[-1] >= _LEAST_GAP):
            shown.append(tick)
    axes.set_xscale("log")
    axes.set_xlim(*ends)
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"Time over {reference} (x)", labelpad=8)


class _Cloud:
    """A panel being drawn: the floors' lines, the points, and a name beside each that covers nothing."""

    def __init__(
        self, panel: FloorPanel, axes: Axes, figure: Figure, room: Box, scale: Scale, looks: Mapping[str, theme.Look]
    ) -> None:
        self.panel, self.axes, self.figure, self.room, self.scale, self.looks = panel, axes, figure, room, scale, looks

    def draw(self) -> None:
        """Lines and points first, then the names into the space that they leave."""
        for style, floor in zip(_FLOOR_STYLES * len(self.panel.points), _floors(self.panel), strict=False):
            self.axes.axvline(floor.over, color=theme.INK, linewidth=1.3, linestyle=style, zorder=2)
        points = [point for point in self.panel.points if not point.is_floor]
        places = [self._mark(point) for point in points]
        texts = [self._text(point) for point in points]
        sizes = [(box.right - box.left, box.top - box.bottom) for box in (box_of(text, self.figure) for text in texts)]
        for point, at, text, box in zip(points, places, texts, arranged(places, sizes, self.room), strict=True):
            text.set_position(tuple(self.figure.transFigure.inverted().transform((box.left, (box.bottom + box.top) / 2))))
            self._lead(at, box, self.looks[point.label].colour)

    def _mark(self, point: FloorPoint) -> Point:
        look, at = self.looks[point.label], (point.over, max(point.above, self.scale.low))
        self.axes.plot(*at, marker=look.marker, color=look.colour, markersize=7, linestyle="none", clip_on=False, zorder=4)
        x, y = self.axes.transData.transform(at)
        return float(x), float(y)

    def _text(self, point: FloorPoint) -> Text:
        words = f"{point.label} {point.over:.2f}" + (" (+0)" if point.above < self.scale.low else "")
        colour = self.looks[point.label].colour
        text = self.figure.text(0, 0, words, color=colour, weight="bold", va="center", zorder=7)
        text.set_path_effects([withStroke(linewidth=3, foreground="white")])  # a name may stand on a floor's line
        return text

    def _lead(self, at: Point, box: Box, colour: str) -> None:
        """Join a point to a name that does not stand right beside it."""
        for segment in _leader(at, box):
            xs, ys = self.axes.transData.inverted().transform(segment).T
            self.axes.plot(xs, ys, color=colour, linewidth=0.9, zorder=3, clip_on=False)


def arranged(places: Sequence[Point], sizes: Sequence[tuple[float, float]], room: Box) -> list[Box]:
    """A box of its size (width, height) near each place: of many orders of placing them the one that comes out best.

    A box that covers another or a place counts most, then what a leader crosses, then how far all are from their places.
    """
    marks = [Box(x, y, x, y).grown(_MARKER_BOX) for x, y in places]
    shuffled, best = random.Random(0), (math.inf, [room] * len(places))  # the same chart each time
    order = list(range(len(places)))
    for _ in range(_ORDERS):
        found = _placed_in(order, places, sizes, room, marks)
        cost = _against(found, places, marks)
        if cost < best[0]:
            best = cost, found
        shuffled.shuffle(order)
    return best[1]


def _placed_in(
    order: Sequence[int], places: Sequence[Point], sizes: Sequence[tuple[float, float]], room: Box, marks: Sequence[Box]
) -> list[Box]:
    """Boxes placed one after the other in an order, each where those before it leave space."""
    boxes, segments, found = list(marks), list[Segment](), dict[int, Box]()
    for index in order:
        found[index] = beside(places[index], sizes[index], room, boxes, segments, sideways=True)
        boxes.append(found[index])
        segments += _leader(places[index], found[index])
    return [found[index] for index in range(len(places))]


def _against(boxes: Sequence[Box], places: Sequence[Point], marks: Sequence[Box]) -> float:
    leaders = [(index, leader) for index, at in enumerate(places) for leader in _leader(at, boxes[index])]
    covered = sum(one.overlaps(other) for one, other in combinations(boxes, 2))
    covered += sum(box.overlaps(mark) for box in boxes for mark in marks)
    others = [(index, box) for index, pair in enumerate(zip(boxes, marks, strict=True)) for box in pair]
    crossed = sum(box.grown(4).cuts(leader) for own, leader in leaders for index, box in others if index != own)
    crossed += sum(_cross(one, other) for (_, one), (_, other) in combinations(leaders, 2))
    return 1e6 * covered + 1e3 * crossed + sum(box.distance(at) for box, at in zip(boxes, places, strict=True))


def _cross(one: Segment, other: Segment) -> bool:
    """Whether two segments meet: the ends of each lie on both sides of the other."""

    def turn(a: Point, b: Point, c: Point) -> float:
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    return turn(*one, other[0]) * turn(*one, other[1]) <= 0 and turn(*other, one[0]) * turn(*other, one[1]) <= 0


def _leader(at: Point, box: Box) -> list[Segment]:
    """The line from a point to its name, where that is not right beside it."""
    end = (min(max(at[0], box.left), box.right), min(max(at[1], box.bottom), box.top))
    return [(at, end)] if box.distance(at) > _LEADER else []
