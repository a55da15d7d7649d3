"""One panel of a crossover chart: the lines, the marks of those that ran out of memory, the crossings, and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform

from frostline.dashboards import theme
from frostline.dashboards.frame import Scale, box_of
from frostline.dashboards.placement import Box, Point, Segment, beside, beside_if_free, spread
from frostline.results.crossover import Panel
from frostline.results.lines import Crossing, Series

_OUT_OF_MEMORY = "OOM"
_DOTTED = (0, (1, 2))
_STEPS = 24  # pieces in which the curve between two points is drawn
_LABEL_GAP = 14  # pixels between the end of a line and its name
_HALO = 3  # pixels that stay free between two names


def every_x(line: Series) -> list[float]:
    """Every x at which something is drawn, the end without memory included; rising."""
    return [*line.xs, *([] if line.oom_at is None else [line.oom_at])]


def bars(line: Series) -> list[tuple[Point, Point]]:
    """For each value with a known spread the ends of its bar: spread below (but never at zero) and spread above."""
    spread_out = zip(line.xs, line.values, line.spreads or [0.0] * len(line.xs), strict=True)
    return [((x, max(value - by, value / 10)), (x, value + by)) for x, value, by in spread_out if by > 0]


def names_at_the_right(panel: Panel) -> list[str]:
    """The texts that a panel will need room for beside its axes."""
    last = max((every_x(line)[-1] for line in panel.lines), default=0.0)
    return [line.label for line in panel.lines if every_x(line)[-1] == last]


def crown_rows(panel: Panel) -> dict[int, int]:
    """For each line (by its place) that ends out of memory: the row, from the top, in which its end is marked.

    Ends at one x stand one below the other, the line that needs most for its length on top.
    """
    ended = [place for place, line in enumerate(panel.lines) if line.oom_at is not None]
    rows: dict[int, int] = {}
    for place in sorted(ended, key=lambda place: -_steepness(panel.lines[place])):
        rows[place] = sum(panel.lines[above].oom_at == panel.lines[place].oom_at for above in rows)
    return rows


def points_gid(place: int) -> str:
    """The gid of the markers of a panel's line, by the line's place."""
    return f"points-{place}"


class Drawing:
    """A panel being drawn on its axes: what is there already is what the next text must not cover.

    Args:
        panel: what to draw.
        axes: empty, with both scales set.
        figure: the axes' own.
        room: where texts may stand, in pixels.
        scale: the axis of the values.
        looks: a colour and a marker for each label.
    """

    def __init__(
        self, panel: Panel, axes: Axes, figure: Figure, room: Box, scale: Scale, looks: Mapping[str, theme.Look]
    ) -> None:
        self.panel, self.axes, self.figure, self.room, self.scale, self.looks = panel, axes, figure, room, scale, looks
        self._segments: list[Segment] = []
        self._boxes: list[Box] = []
        self._crowns: dict[str, Point] = {}  # in data coordinates, by label; so are the ends
        self._ends: dict[str, Point] = {}

    def draw(self) -> None:
        """Lines first, then the texts into the space that they leave: names at the right, other ends, crossings."""
        rows = crown_rows(self.panel)
        for place, line in enumerate(self.panel.lines):
            self._curve(line, points_gid(place))
            if line.oom_at is not None:
                self._crown(line, (line.oom_at, self.scale.crown(rows[place])))
        found = [crossing for comparison in self.panel.comparisons for crossing in comparison.crossings]
        crossings = sorted(found, key=lambda crossing: crossing.x)  # so that of two neighbours the left one's text goes left
        for crossing in crossings:
            self._ring(crossing)
        self._find_ends()
        self._names()
        for crossing in {crossing.text: crossing for crossing in reversed(crossings)}.values():  # one text for one place
            rivals = [self._pixels((other.x, other.value)) for other in crossings if other.text != crossing.text]
            self._mark(crossing, rivals)

    def _curve(self, line: Series, gid: str) -> None:
        look = self.looks[line.label]
        points = _curved(line)
        for bottom, top in bars(line):
            self._plot([bottom, top], color=look.colour, marker="_", markersize=5, linewidth=1, zorder=3.5)
        self._plot(points, color=look.colour, zorder=3, **(theme.PREDICTED_LINE if line.predicted else theme.MEASURED_LINE))
        own = {"markerfacecolor": look.colour, **theme.MEASURED_MARKER}
        predicted = theme.PREDICTED_MARKER if line.predicted else own
        markers = theme.IMPORTED_MARKER if line.imported else predicted
        self.axes.plot(
            line.xs, line.values, color=look.colour, marker=look.marker, linestyle="none", zorder=4, gid=gid, **markers
        )

    def _crown(self, line: Series, at: Point) -> None:
        """A cross at the top, where the line would have left the chart, and a dotted way there."""
        colour = self.looks[line.label].colour
        if line.xs:
            self._plot([(line.xs[-1], line.values[-1]), at], color=colour, linestyle=_DOTTED, linewidth=1.3, zorder=2)
        self.axes.plot(*at, marker="x", color=colour, markersize=7.5, markeredgewidth=2.2, zorder=5)
        self._crowns[line.label] = at
        self._boxes.append(_around(self._pixels(at), 11))

    def _ring(self, crossing: Crossing) -> None:
        at = (crossing.x, crossing.value)
        self._plot([(crossing.x, self.scale.low), at], color=theme.MUTED, linestyle=_DOTTED, linewidth=0.9, zorder=1)
        self.axes.plot(*at, marker="o", color=theme.INK, markerfacecolor="white", markersize=7, markeredgewidth=1.4, zorder=6)
        self._boxes.append(_around(self._pixels(at), 9))

    def _mark(self, crossing: Crossing, rivals: Sequence[Point]) -> None:
        """Say where a crossing lies, if that fits beside it; the sentences over the panel say so anyway."""
        text = self._text(crossing.text, theme.INK)
        at = self._pixels((crossing.x, crossing.value))
        free = beside_if_free(at, _size(box_of(text, self.figure)), self.room, self._boxes, self._segments, rivals)
        if free is None:
            text.remove()
        else:
            self._move(text, free)

    def _find_ends(self) -> None:
        """A label's end is its last point: of its longest line, or the mark of having run out of memory."""
        values = [(line.label, (line.xs[-1], line.values[-1])) for line in self.panel.lines if line.xs]
        for label, end in [*values, *self._crowns.items()]:
            if label not in self._ends or end[0] > self._ends[label][0]:
                self._ends[label] = end

    def _names(self) -> None:
        """Each label at its end: in the gutter to the right, or beside an end that comes before; and what ended a line."""
        last = max((x for x, _ in self._ends.values()), default=0.0)
        furthest = [label for label, (x, _) in self._ends.items() if x == last]
        self._names_in_the_gutter(furthest)
        for label, end in self._ends.items():
            if label not in furthest:
                self._beside(self._name(label), end, self.looks[label].colour)
        for label, crown in self._crowns.items():
            if label in furthest:  # the gutter has the name alone; or the prediction goes on where the measurement ran out
                self._beside(_OUT_OF_MEMORY, crown, self.looks[label].colour)

    def _names_in_the_gutter(self, labels: Sequence[str]) -> None:
        texts = [self._text(label, self.looks[label].colour) for label in labels]
        boxes = [box_of(text, self.figure) for text in texts]
        height = max((box.top - box.bottom for box in boxes), default=0.0)
        wanted = [self._pixels(self._ends[label])[1] for label in labels]
        heights = spread(wanted, height + _HALO, self.room.bottom + height / 2, self.room.top - height / 2)
        for label, text, box, middle in zip(labels, texts, boxes, heights, strict=True):
            left = self._pixels(self._ends[label])[0] + _LABEL_GAP
            self._move(text, Box(left, middle - height / 2, left + box.right - box.left, middle + height / 2))

    def _name(self, label: str) -> str:
        return f"{label}: {_OUT_OF_MEMORY}" if self._ends[label] == self._crowns.get(label) else label

    def _beside(self, words: str, at: Point, colour: str) -> None:
        text = self._text(words, colour)
        size = _size(box_of(text, self.figure))
        self._move(text, beside(self._pixels(at), size, self.room, self._boxes, self._segments, sideways=True))

    def _text(self, words: str, colour: str) -> Text:
        pixels = IdentityTransform()
        return self.axes.text(0, 0, words, color=colour, weight="bold", va="center", zorder=7, transform=pixels)

    def _move(self, text: Text, box: Box) -> None:
        """Put a text where the box is: as a share of the figure, since other backends draw at another density."""
        whole = self.figure.transFigure
        x, y = whole.inverted().transform((box.left, (box.bottom + box.top) / 2))
        text.set_transform(whole)
        text.set_position((float(x), float(y)))
        self._boxes.append(box)

    def _plot(self, points: Sequence[Point], **style: Any) -> None:
        self.axes.plot([x for x, _ in points], [y for _, y in points], **style)
        self._segments.extend(pairwise(self._pixels(point) for point in points))

    def _pixels(self, point: Point) -> Point:
        x, y = self.axes.transData.transform(point)
        return float(x), float(y)


def _curved(line: Series) -> list[Point]:
    """The points of the drawn curve: linear in x between two points of the line."""
    corners = list(zip(line.xs, line.values, strict=True))
    steps = [step / _STEPS for step in range(_STEPS)]
    between = [(x0 + (x1 - x0) * s, y0 + (y1 - y0) * s) for (x0, y0), (x1, y1) in pairwise(corners) for s in steps]
    return [*between, *corners[-1:]]


def _size(box: Box) -> tuple[float, float]:
    return box.right - box.left, box.top - box.bottom


def _around(point: Point, by: float) -> Box:
    return Box(point[0] - by, point[1] - by, point[0] + by, point[1] + by)


def _steepness(line: Series) -> float:
    return line.values[-1] / line.xs[-1] if line.xs else float("inf")
