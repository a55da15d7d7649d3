"""The chart of a suite's history: a metric over commits, a line for each side and case, and a rule where it takes a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from frostline.dashboards import theme
from frostline.dashboards.charts import Picture, picture_folder
from frostline.results.evidence import varying_axes
from frostline.results.history import Line
from frostline.results.units import human_scale

_WIDTH, _EACH, _REST = 10.5, 2.6, 1.5  # inches: of the figure, of a metric's axes, of what is around them
_MOST = 8  # lines of one metric: more could not be told apart


def history_picture(suite: str, lines: Sequence[Line], folder: Path) -> Picture:
    """Draw lines as `history.png` in a folder: axes for each metric, with the longest lines where there are many.

    Raises:
        UsageError: a folder that cannot be made.
    """
    path = picture_folder(folder) / "history.png"
    with theme.applied():
        draw_history(suite, lines).savefig(path)
    said = []
    for line in lines:
        for step in line.steps:
            change = f"{step.ratio - 1:+.1%}" if step.before else "from nothing"
            said.append(f"{line.metric.name}, {_name(line, lines)}: {change} at {step.commit[:12]} {step.subject}".rstrip())
    return Picture(path, said or ["no step"])


def draw_history(suite: str, lines: Sequence[Line]) -> Figure:
    """The figure. Call it inside `theme.applied()`."""
    metrics = list(dict.fromkeys(line.metric.name for line in lines))
    height = _EACH * len(metrics) + _REST
    figure = Figure(figsize=(_WIDTH, height))
    grid = figure.subplots(len(metrics), 1, squeeze=False)
    figure.subplots_adjust(left=0.1, right=0.72, top=1 - 0.62 / height, bottom=0.82 / height, hspace=0.42)
    for axes, metric in zip(grid[:, 0], metrics, strict=True):
        shown = sorted((line for line in lines if line.metric.name == metric), key=lambda line: -len(line.points))[:_MOST]
        _draw(axes, shown, lines)
    grid[-1, 0].set_xlabel("Commit, the oldest first")
    figure.suptitle(f"{suite}: history", x=0.1, y=1 - 0.2 / height, ha="left", va="top", weight="bold")
    caption = "dotted: a step of the level; each commit: the median over its sessions"
    figure.text(0.1, 0.14 / height, caption, color=theme.MUTED, size=8.5)
    return figure


def _draw(axes: Axes, shown: Sequence[Line], lines: Sequence[Line]) -> None:
    """The lines of one metric."""
    metric, most = shown[0].metric, max(point.value for line in shown for point in line.points)
    factor, unit = (1e6, "ms") if metric.unit == "ns" else human_scale(most, metric.unit)
    commits = list(dict.fromkeys(point.commit for line in shown for point in line.points))
    place = {commit: at for at, commit in enumerate(commits)}
    looks = theme.looks(dict.fromkeys(_name(line, lines) for line in shown))
    for line in shown:
        name = _name(line, lines)
        xs, values = [place[point.commit] for point in line.points], [point.value / factor for point in line.points]
        axes.plot(xs, values, color=looks[name].colour, marker=looks[name].marker, markersize=4, linewidth=1, label=name)
        for step in line.steps:
            axes.axvline(place[step.commit] - 0.5, color=looks[name].colour, linewidth=0.9, linestyle=":")

    def named(at: float, _: int) -> str:
        return commits[int(at)][:7] if 0 <= at < len(commits) and at == int(at) else ""

    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(named))
    axes.set_ylim(bottom=0)
    axes.set_ylabel(metric.name.replace("_", " ") + (f" ({unit})" if unit else ""))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8.5)


def _name(line: Line, lines: Sequence[Line]) -> str:
    """What tells a line from the others."""
    axes = varying_axes([one.case for one in lines])
    parts = [line.implementation, *(f"{line.case.params[axis]}" for axis in axes if axis in line.case.params)]
    if len({(one.machine, one.device) for one in lines}) > 1:
        parts.append(line.machine if line.machine == "predicted" else line.device)
    if len({one.case.suite_version for one in lines}) > 1:
        parts.append(line.case.suite_version[:6])
    return " ".join(parts)
