"""Two charts of a comparison: what each round found, with the interval over them, and the processes in the order they ran.

Both have a place for each case and are as wide as a column of a page: shown on a telephone their texts are still read.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from frostline.dashboards import theme
from frostline.results.units import format_change

WIDTH = 5.2  # inches: 780 pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.3, 0.3, 0.12, 0.62  # inches around the axes
_LINE, _ROUND, _GAP = 0.19, 0.045, 0.16  # inches of a line of text, of a round, and between two cases
_LETTERS = 44  # of a line: as many as the width holds
_POINT = "#0072b2"
_GROUND = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # of a text, over a line of the grid
_MOST_TICKS = 6
_WIDE = 1.6  # from this ratio on, either way, the axis is logarithmic
ROUNDS, EFFECTS, BASELINE, SIDE = "rounds", "effects", "baseline", "side"  # the gids of the points, for tooltips


@dataclass(frozen=True)
class RatioRow:
    """A case of the chart: side over baseline in each round, in their order, and the effect with its interval."""

    label: str
    outcome: str
    rounds: Sequence[float]
    effect: float
    low: float
    high: float
    delta: float


@dataclass(frozen=True)
class Run:
    """A process or a block in its order: the time since the first began, and its value over the baseline's median."""

    at: float
    share: float
    baseline: bool


def draw_ratios(rows: Sequence[RatioRow]) -> Figure:
    """A row for each case: its rounds as points, the first on top, and below them the effect with its interval.

    The points of the rounds have the gid `ROUNDS`, in the order of rows and rounds; the effects have `EFFECTS`. Call it inside
    `theme.applied()`.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("a chart of ratios needs at least one row, got none")
    heads = [textwrap.wrap(f"{row.label}: {row.outcome} {format_change(row.effect)}", _LETTERS) for row in rows]
    tall = [_LINE * len(head) + _ROUND * (len(row.rounds) + 1) + _GAP for head, row in zip(heads, rows, strict=True)]
    height = sum(tall) + _GAP
    figure, axes = _canvas(height)
    axes.set_ylim(height, 0)
    top, points, effects = _GAP / 2, [], []
    for row, head, size in zip(rows, heads, tall, strict=True):
        for place, line in enumerate(head):
            across = axes.get_yaxis_transform()  # x as a share of the width
            axes.text(
                0, top + _LINE * (place + 0.5), line, transform=across, va="center", size=theme.TICK, zorder=6, bbox=_GROUND
            )
        first = top + _LINE * len(head) + _ROUND
        points += [(ratio, first + _ROUND * place) for place, ratio in enumerate(row.rounds)]
        at = first + _ROUND * len(row.rounds) + 0.04
        axes.fill_between(
            [1 / (1 + row.delta), 1 + row.delta], first - _ROUND, at + 0.05, color=theme.RULE, alpha=0.6, linewidth=0
        )
        axes.plot([row.low, row.high], [at, at], color=theme.INK, linewidth=2.2, solid_capstyle="butt", zorder=4)
        effects.append((row.effect, at))
        top += size
    _ratio_axis(axes, [*(x for x, _ in points), *(end for row in rows for end in (row.low, row.high, row.effect))])
    axes.axvline(1, color=theme.MUTED, linewidth=0.9, zorder=1)
    axes.plot(*zip(*points, strict=True), "o", color=_POINT, markersize=3.4, markeredgewidth=0, zorder=3, gid=ROUNDS)
    axes.plot(*zip(*effects, strict=True), "D", color=theme.INK, markersize=4.6, markeredgewidth=0, zorder=5, gid=EFFECTS)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("Side over baseline: change (%)" if axes.get_xscale() == "linear" else "Side over baseline (x)")
    return figure


def draw_order(runs: Sequence[Run], names: tuple[str, str]) -> Figure:
    """Every process over the time at which it started: the baseline hollow and the side filled.

    Their gids are `BASELINE` and `SIDE`.

    Call it inside `theme.applied()`.

    Args:
        runs: at least one of each, the time in minutes.
        names: the baseline's and the side's.
    """
    figure, axes = _canvas(2.5, left=0.8, top=0.42)
    for baseline, name in ((True, names[0]), (False, names[1])):
        own = [one for one in runs if one.baseline is baseline]
        axes.plot(
            [one.at for one in own], [one.share for one in own], linestyle="none", zorder=3, **_MARKS[baseline],
            label=textwrap.shorten(name, 28, placeholder="…"), gid=BASELINE if baseline else SIDE,
        )  # fmt: skip
    _ratio_axis(axes, [one.share for one in runs], along="y")
    axes.axhline(1, color=theme.MUTED, linewidth=0.9, zorder=1)
    last = max(one.at for one in runs) or 1
    axes.set_xlim(-0.04 * last, 1.04 * last)
    axes.set_xlabel("Started after (minutes)")
    axes.set_ylabel("Over baseline's median" + (" (%)" if axes.get_yscale() == "linear" else " (x)"))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=theme.TICK, borderaxespad=0.1)
    return figure


def draw_blocks(blocks: Sequence[Run], names: tuple[str, str]) -> Figure:
    """The blocks of one round over the time at which each began, joined in that order: how the sides took turns.

    Call it inside `theme.applied()`. The gids are those of `draw_order`.

    Args:
        blocks: at least one of each, the time in seconds.
        names: the baseline's and the side's.
    """
    figure = draw_order(blocks, names)
    (axes,) = figure.axes
    ordered = sorted(blocks, key=lambda one: one.at)
    axes.plot(
        [one.at for one in ordered], [one.share for one in ordered], color=theme.MUTED, linewidth=0.7, alpha=0.7, zorder=2
    )
    axes.set_xlabel("Began after (seconds)")
    return figure


_MARKS: Mapping[bool, Mapping[str, Any]] = {
    True: {"marker": "o", "color": "#d55e00", "markerfacecolor": "none", "markersize": 5.5, "markeredgewidth": 1.3},
    False: {"marker": "s", "color": "#0072b2", "markersize": 4.2, "markeredgewidth": 0},
}


def _canvas(height: float, *, left: float = _LEFT, top: float = _TOP) -> tuple[Figure, Axes]:
    """A figure with axes of this height in inches, and room around them for what stands there."""
    whole = height + top + _BOTTOM
    figure = Figure(figsize=(WIDTH, whole))
    place = (left / WIDTH, _BOTTOM / whole, (WIDTH - left - _RIGHT) / WIDTH, height / whole)
    return figure, figure.add_axes(place)


def _ratio_axis(axes: Axes, ratios: Sequence[float], along: str = "x") -> None:
    """The axis of the ratios: per cent of change, or where they are far from 1 a logarithmic one of multiples."""
    low, high = min(1.0, *ratios), max(1.0, *ratios)
    axis = axes.xaxis if along == "x" else axes.yaxis
    limit = axes.set_xlim if along == "x" else axes.set_ylim
    if high <= _WIDE and low >= 1 / _WIDE:
        reach = max(high - low, 0.01)
        limit(low - 0.06 * reach, high + 0.06 * reach)
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(_change))
        return
    (axes.set_xscale if along == "x" else axes.set_yscale)("log")
    limit(low / 1.12, high * 1.12)
    axis.set_ticks(_multiples(low / 1.12, high * 1.12))
    axis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    axis.set_minor_locator(NullLocator())


def _change(ratio: float, _: int) -> str:
    """A tick in per cent: `+5`, and `0` without a sign."""
    change = round(100 * (ratio - 1), 3)
    return f"{change:+g}" if change else "0"


def _multiples(low: float, high: float) -> list[float]:
    """Round multiples between two, as many as there is room for."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    found: list[float] = []
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
        found = [step * power for power in powers for step in steps if low <= step * power <= high]
        if len(found) <= _MOST_TICKS:
            return found
    return found[:: -(-len(found) // _MOST_TICKS)]
