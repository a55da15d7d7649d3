"""What stands around the data: the scale of the values, the figure's layout, its title, headings, axes' labels and caption.

The layout is worked out from the size of the texts that it must hold, so that nothing is clipped however long the names are:
texts are measured first, and the axes get what is left of a fixed width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import NullLocator

from frostline.dashboards import theme
from frostline.dashboards.placement import Box
from frostline.results.units import human_scale

WIDTH = 1200  # pixels, unless another width is asked for
_AXES_HEIGHT = 420
_EDGE = 24
_GUTTER = 42  # pixels between the end of a line and the next panel, beside its name
_COLUMN_GAP = 26  # pixels between the sentences of neighbouring panels
_FEW = 9  # lengths that may each get a tick
_LOG_FROM = 40.0  # the largest peak over the smallest from which a scale from zero would flatten the small ones
_TIMES_LOG_FROM = 8.0  # times are as good as proportional to the length: nothing lifts the short ones off the axis


def plain_length(length: float) -> str:
    """A length as people write it: 512, 1K, 16K, 1.5K for multiples of 1,024's quarters; 2,980 otherwise."""
    thousands = length / 1024
    if thousands >= 1 and thousands * 4 == int(thousands * 4):
        return f"{thousands:g}K"
    return f"{length:,.0f}"


@dataclass(frozen=True)
class Scale:
    """The axis of the values: from `low` to `high`, labelled in `unit`s of `factor` stored units (bytes, or ns).

    It starts at zero, or is logarithmic where that would flatten the small ones. Its top holds `crowns` rows for the lines that
    end out of memory. Times are in ms throughout; bytes on a logarithmic axis have a unit at each tick.
    """

    low: float
    high: float
    logarithmic: bool
    factor: float
    unit: str
    crowns: int

    @staticmethod
    def of(values: Sequence[float], crowns: int = 0, *, timed: bool = False) -> Scale:
        """The scale that holds these values: bytes, or with `timed` ns."""
        most = max(values, default=2.0**30)
        least = min(values, default=most)
        factor, unit = (1e6, "ms") if timed else human_scale(most, "B")
        room = 1 - Scale._row(crowns) if crowns else 0.93  # the share of the height that the values get
        if least > 0 and most / least > (_TIMES_LOG_FROM if timed else _LOG_FROM):
            low = least / 1.15 if timed else 2.0 ** math.floor(math.log2(least))
            return Scale(low, low * (most / low) ** (1 / room), True, factor, unit, crowns)
        return Scale(0.0, most / room, False, factor, unit, crowns)

    @staticmethod
    def _row(index: int) -> float:
        """How far below the top a row of crowns is, as a share of the height."""
        return 0.035 + 0.085 * index

    def crown(self, index: int) -> float:
        """The height, in stored units, of the mark of the line that is `index` from the top."""
        share = 1 - self._row(index)
        return self.low * (self.high / self.low) ** share if self.logarithmic else self.low + share * (self.high - self.low)

    def ticks(self) -> list[float]:
        """At most nine round values: multiples of 1, 2 or 5 times a power of ten units, or for bytes powers of two."""
        if self.logarithmic and self._timed:
            powers = [10.0**power for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)))]
            fine = [multiple * power for power in powers for multiple in (1, 2, 5)]
            within = [tick for tick in fine if self.low <= tick <= self.high]
            whole = [power for power in powers if self.low <= power]
            return within if len(within) <= 9 else whole[:: math.ceil(len(whole) / 9)]
        if self.logarithmic:
            first, last = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
            stride = max(1, math.ceil((last - first + 1) / 7))
            return [2.0**power for power in range(first, last + 1, stride)]
        top = self.high / self.factor
        magnitude = 10.0 ** math.floor(math.log10(top))
        step = next(s for s in (magnitude * m for m in (0.1, 0.2, 0.5, 1.0, 2.0)) if top / s <= 6)
        return [index * step * self.factor for index in range(int(top / step + 1e-9) + 1)]

    def labels(self) -> list[str]:
        """What stands at the ticks: plain numbers of the unit, or bytes each with a unit of its own."""
        if self.logarithmic and not self._timed:
            return [f"{tick / factor:g} {unit}" for tick in self.ticks() for factor, unit in [human_scale(tick, "B")]]
        return [f"{tick / self.factor:,.6g}" for tick in self.ticks()]

    def apply(self, axes: Axes, label: str, *, labelled: bool) -> None:
        """Set the axis up; one that is not labelled keeps its rules and leaves the figures to its neighbour."""
        if self.logarithmic:
            axes.set_yscale("log")
        axes.set_ylim(self.low, self.high)
        axes.set_yticks(self.ticks(), self.labels() if labelled else [""] * len(self.ticks()))
        axes.yaxis.set_minor_locator(NullLocator())
        if labelled:
            unit = "" if self.logarithmic and not self._timed else f" ({self.unit})"
            axes.set_ylabel(f"{label}{unit}", labelpad=8)

    @property
    def _timed(self) -> bool:
        return self.unit == "ms"


class Frame:
    """A figure with a row of empty axes, everything around them in its place.

    Args:
        title: top left, bold.
        caption: below, in small print.
        headings: for each panel its title and the sentences under it.
        ticks: what will stand left of the first panel.
        gutters: for each panel the names that will stand to its right.
        key: whether to say how measured and predicted values are drawn.
        width: of the figure, in pixels.
    """

    def __init__(
        self,
        *,
        title: str,
        caption: str,
        headings: Sequence[tuple[str, Sequence[str]]],
        ticks: Sequence[str],
        gutters: Sequence[Sequence[str]],
        key: bool,
        width: int = WIDTH,
    ) -> None:
        self._whole = width
        self.figure = Figure(figsize=(width / theme.DPI, 1))
        self._renderer = FigureCanvasAgg(self.figure).get_renderer()
        left = _EDGE + 42 + max(self._size(tick, size=theme.TICK)[0] for tick in ticks)
        self._gutters = [
            max((self._size(name, weight="bold")[0] for name in panel), default=0.0) + _GUTTER for panel in gutters
        ]
        self._width = (width - left - _EDGE - sum(self._gutters)) / len(headings)
        self._lefts = [left + place * self._width + sum(self._gutters[:place]) for place in range(len(headings))]
        whole = width - 2 * _EDGE
        titles = self._wrapped(title, whole, size=theme.TITLE, weight="bold")
        captions = self._wrapped(caption, whole, size=theme.CAPTION)
        columns = [
            (
                self._wrapped(heading, self._width + gutter - _COLUMN_GAP, size=theme.HEADING, weight="bold"),
                self._notes(notes, self._width + gutter - _COLUMN_GAP),
            )
            for (heading, notes), gutter in zip(headings, self._gutters, strict=True)
        ]
        row, small = self._size("Ag")[1] * 1.45, self._size("Ag", size=theme.CAPTION)[1] * 1.45
        self._bottom = _EDGE + small * len(captions) + 92
        heading_top = self._bottom + _AXES_HEIGHT + 18 + row * max(len(first) + len(rest) for first, rest in columns)
        title_top = heading_top + 22 + row * 1.35 * len(titles) + (row if key else 0)
        self._height = title_top + _EDGE * 0.6
        self.figure.set_size_inches(width / theme.DPI, self._height / theme.DPI)
        self._lines(titles, _EDGE, title_top, row * 1.35, size=theme.TITLE, weight="bold")
        for (first, rest), x in zip(columns, self._lefts, strict=True):
            self._lines(first, x, heading_top, row, size=theme.HEADING, weight="bold")
            self._lines(rest, x, heading_top - row * len(first), row, color=theme.MUTED)
        self._lines(captions, _EDGE, _EDGE * 0.7 + small * len(captions), small, size=theme.CAPTION, color=theme.MUTED)
        if key:
            self._key(title_top - row * 1.35 * len(titles))

    def panel(self, place: int) -> Axes:
        """The axes of a panel, by its place from the left."""
        x, y = self._lefts[place] / self._whole, self._bottom / self._height
        return self.figure.add_axes((x, y, self._width / self._whole, _AXES_HEIGHT / self._height))

    def room(self, place: int) -> Box:
        """Where a panel's texts may stand, in pixels: its axes and the gutter beside them."""
        right = self._lefts[place] + self._width + self._gutters[place] - 10
        return Box(self._lefts[place], self._bottom, right, self._bottom + _AXES_HEIGHT)

    def lengths(self, axes: Axes, lengths: Sequence[float], label: str) -> None:
        """A base-2 logarithmic axis with a tick at each length (of many, at powers of two), as far as there is room."""
        axes.set_xscale("log", base=2)
        axes.set_xlabel(label, labelpad=8)
        axes.xaxis.set_minor_locator(NullLocator())
        if not lengths:
            axes.set_xticks([])
            axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", va="center", color=theme.MUTED)
            return
        octaves = math.log2(lengths[-1] / lengths[0]) if len(lengths) > 1 else 1.0
        margin = 2.0 ** (0.045 * octaves)
        axes.set_xlim(lengths[0] / margin, lengths[-1] * margin)
        named = lengths if len(lengths) <= _FEW else _powers_of_two(lengths[0], lengths[-1])
        shown = self._uncrowded(named, self._width / (octaves * 1.09))
        axes.set_xticks(shown, [plain_length(x) for x in shown])

    def _uncrowded(self, lengths: Sequence[float], octave: float) -> list[float]:
        """Every length, or every second, third, ... counted from the largest, so that their labels keep apart."""
        half = {length: self._size(plain_length(length), size=theme.TICK)[0] / 2 + 5 for length in lengths}
        for stride in range(1, len(lengths) + 1):
            shown = list(lengths[::-1][::stride][::-1])
            if all(math.log2(b / a) * octave >= half[a] + half[b] for a, b in pairwise(shown)):
                return shown
        return []

    def _notes(self, notes: Sequence[str], width: float) -> list[str]:
        return [row for note in notes for row in self._wrapped(note, width)]

    def _key(self, top: float) -> None:
        measured = Line2D([], [], color=theme.MUTED, marker="o", **theme.MEASURED_LINE, **theme.MEASURED_MARKER)
        predicted = Line2D([], [], color=theme.MUTED, marker="o", **theme.PREDICTED_LINE, **theme.PREDICTED_MARKER)
        self.figure.legend(
            [measured, predicted],
            ["measured", "predicted by the cost model"],
            loc="upper left",
            bbox_to_anchor=((_EDGE - 2) / self._whole, top / self._height),
            ncols=2,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=3,
            fontsize=theme.TICK,
        )

    def _lines(self, rows: Sequence[str], x: float, top: float, step: float, **style: Any) -> None:
        for place, row in enumerate(rows):
            self.figure.text(x / self._whole, (top - place * step) / self._height, row, va="top", ha="left", **style)

    def _wrapped(self, text: str, width: float, **style: Any) -> list[str]:
        """The text in rows that are no wider than `width` pixels (a single word may be)."""
        rows: list[str] = []
        for word in text.split():
            longer = f"{rows[-1]} {word}" if rows else word
            if rows and self._size(longer, **style)[0] <= width:
                rows[-1] = longer
            else:
                rows.append(word)
        return rows

    def _size(self, text: str, **style: Any) -> tuple[float, float]:
        """Width and height of a text in pixels."""
        measured = Text(0, 0, text, figure=self.figure, **style)
        extent = measured.get_window_extent(self._renderer, dpi=theme.DPI)
        return extent.width, extent.height


def box_of(text: Text, figure: Figure) -> Box:
    """Where a text is, in pixels."""
    extent = text.get_window_extent(FigureCanvasAgg(figure).get_renderer())
    return Box(extent.x0, extent.y0, extent.x1, extent.y1)


def _powers_of_two(low: float, high: float) -> list[float]:
    return [2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
