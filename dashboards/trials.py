"""Two charts of trials: how much of a planted slowdown each tool finds, and what its false alarms cost in time.

    python -m frostline.dashboards.trials results/method.jsonl docs/images

The bars are 95 % intervals. A tool's usual setting is filled, its reading at our delta is hollow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from frostline.dashboards import theme
from frostline.dashboards.charts import picture_folder
from frostline.results.record import UsageError
from frostline.results.trials import DEFAULT_SETTING, OURS, Share, Trial, Trials, pick, settings_of

SIZE = (8.0, 4.6)
CHANGES = (0, 3, 5, 10)
TICKS_S = (1, 2, 5, 10, 20, 50, 100, 200)
_LOOKS = {
    OURS: theme.Look("#0072b2", "o"),
    "asv": theme.Look("#d55e00", "s"),
    "pyperf": theme.Look("#00805d", "^"),
    "pytest-benchmark": theme.Look("#b0568a", "D"),
}


def shown(trials: Sequence[Trial]) -> list[tuple[str, str, bool]]:
    """The tools and settings that are drawn, and whether that is the usual one; of ours one way of running."""
    seen: list[tuple[str, str, bool]] = []
    for tool, setting in settings_of(trials):
        if tool != OURS or setting == DEFAULT_SETTING:
            seen.append((tool, setting, tool not in {each[0] for each in seen}))
    return seen


def draw_found(trials: Sequence[Trial]) -> Figure:
    """Share called slower over the slowdown planted; at 0 % one kind of false alarm. Call inside `theme.applied()`."""
    figure, axes = _frame("Called slower, by how much slower the code was made", "Extra work planted (%)")
    drawn = shown(trials)
    for place, (tool, setting, usual) in enumerate(drawn):
        points = []
        for change in CHANGES:
            tally = pick(trials, tool, [setting], change=change)
            if tally.trials:
                points.append((change + 0.14 * (place - (len(drawn) - 1) / 2), tally.found))
        _line(axes, points, f"{tool}, {setting}", tool, usual)
    axes.set_xticks(CHANGES, [str(change) for change in CHANGES])
    _legend(axes)
    return figure


def draw_time(trials: Sequence[Trial]) -> Figure:
    """Share of false alarms over the median time of a comparison, both loads together. Call inside `theme.applied()`."""
    figure, axes = _frame("False alarms, and how long a comparison takes", "Time of a comparison (s)")
    times = []
    for tool, setting, usual in shown(trials):
        tally = pick(trials, tool, [setting], change=0)
        if tally.trials:
            times.append(tally.seconds)
            _line(axes, [(tally.seconds * (1 if usual else 1.05), tally.false)], f"{tool}, {setting}", tool, usual)
    axes.set_xscale("log")
    axes.set_xlim(min(times, default=1) / 1.6, max(times, default=1) * 1.6)
    axes.set_xticks([tick for tick in TICKS_S if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    _legend(axes)
    return figure


def _frame(title: str, across: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=theme.TITLE, pad=10)
    axes.set_xlabel(across)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    return figure, axes


def _line(axes: Axes, points: Sequence[tuple[float, Share]], label: str, tool: str, usual: bool) -> None:
    look = _LOOKS.get(tool) or theme.looks([tool])[tool]
    across, shares = [at for at, _ in points], [one for _, one in points]
    reach = [[one.value - one.low for one in shares], [one.high - one.value for one in shares]]
    axes.errorbar(
        across,
        [one.value for one in shares],
        reach,
        label=label,
        color=look.colour,
        marker=look.marker,
        markersize=6,
        markerfacecolor=look.colour if usual else "white",
        linestyle="-" if usual else (0, (4, 2.5)),
        linewidth=1.6 if usual else 1.1,
        elinewidth=0.9,
    )


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=theme.CAPTION, borderaxespad=0.2)


def main() -> None:
    """Write `method-found.png` and `method-time.png` into a folder."""
    try:
        lines, folder = (Path(name) for name in sys.argv[1:])
    except ValueError:
        sys.exit("usage: python -m frostline.dashboards.trials LINES FOLDER")
    try:
        kept = Trials.load(lines)
        if not kept.trials:
            raise UsageError(f"{lines}: no trials to draw; run: make method")
        place = picture_folder(folder)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    with theme.applied():
        for name, draw in (("method-found", draw_found), ("method-time", draw_time)):
            draw(kept.trials).savefig(place / f"{name}.png")
            print(f"Chart: {place / name}.png")


if __name__ == "__main__":
    main()
