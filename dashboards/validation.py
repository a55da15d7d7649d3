"""The chart of a validated cost model: predicted peaks over measured ones, and by how much they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from frostline.dashboards import theme
from frostline.dashboards.charts import Picture, picture_folder
from frostline.results.evidence import Evidence
from frostline.results.units import human_scale
from frostline.results.validation import BAR, Checked, load_checked

_SIZE = (10.5, 5.4)  # inches
_LEAST_RANGE = 0.03  # of the differences: what is shown is never narrower


def validation_picture(evidence: Evidence, folder: Path) -> Picture:
    """Draw a session as `validation.png` in a folder.

    Raises:
        UsageError: a session with nothing that was both predicted and measured, or a folder that cannot be made.
    """
    checked = load_checked(evidence)
    path = picture_folder(folder) / "validation.png"
    worst = max(checked, key=lambda one: abs(one.error))
    with theme.applied():
        draw_validation(
            checked,
            title=f"{evidence.cases[0].suite}: peak memory, predicted and measured",
            caption=f"measured on {evidence.machine.label}; a point for each case and side; shaded: {BAR:.0%}",
        ).savefig(path)
    within = sum(abs(one.error) <= BAR for one in checked)
    said = f"{within} of {len(checked)} predicted peaks are within {BAR:.0%} of the measured ones; the furthest is off by"
    return Picture(path, [f"{said} {worst.error:+.2%} ({worst.side}, {worst.case.label})"])


def draw_validation(checked: Sequence[Checked], *, title: str, caption: str = "") -> Figure:
    """The figure. Call it inside `theme.applied()`."""
    figure = Figure(figsize=_SIZE)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.11, right=0.975, top=0.87, bottom=0.19, wspace=0.3)
    looks = theme.looks(dict.fromkeys(one.side for one in checked))
    peaks = [value for one in checked for value in (one.predicted, one.measured)]
    ends = min(peaks) / 1.3, max(peaks) * 1.3
    left.fill_between(ends, [end * (1 - BAR) for end in ends], [end * (1 + BAR) for end in ends], color=theme.RULE, linewidth=0)
    left.plot(ends, ends, color=theme.INK, linewidth=0.9)
    reach = max(1.3 * max(abs(one.error) for one in checked), _LEAST_RANGE)
    right.axhspan(-100 * BAR, 100 * BAR, color=theme.RULE, linewidth=0)
    right.axhline(0, color=theme.INK, linewidth=0.9)
    for side, look in looks.items():
        points = [one for one in checked if one.side == side]
        measured = [one.measured for one in points]
        for axes, values in ((left, [one.predicted for one in points]), (right, [100 * one.error for one in points])):
            # Hollow, or one side would hide another at the same place.
            axes.plot(
                measured, values, linestyle="none", marker=look.marker, markersize=8, label=side,
                markerfacecolor="none", markeredgecolor=look.colour, markeredgewidth=1.7, clip_on=False,
            )  # fmt: skip
    for axes in (left, right):
        _bytes_axis(axes, ends, "x")
        axes.set_xlabel("Measured peak")
    _bytes_axis(left, ends, "y")
    left.set_ylabel("Predicted peak")
    right.set_ylim(-100 * reach, 100 * reach)
    right.set_ylabel("Predicted above measured (%)")
    left.legend(frameon=False, loc="upper left")
    figure.suptitle(title, x=0.11, y=0.965, ha="left", weight="bold")
    figure.text(0.11, 0.045, caption, color=theme.MUTED, size=8.5)
    return figure


def _bytes_axis(axes: Axes, ends: tuple[float, float], which: str) -> None:
    """A logarithmic axis in powers of two."""
    power = 2.0 ** int(ends[0]).bit_length()
    ticks = []
    while power < ends[1]:
        ticks.append(power)
        power *= 2
    step = max(1, -(-len(ticks) // 6))
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(*ends)
    axis.set_ticks(ticks[::step])
    axis.set_major_formatter(FuncFormatter(_power))
    axis.set_minor_locator(NullLocator())


def _power(value: float, _: int) -> str:
    """A tick: `8 GiB`."""
    factor, unit = human_scale(value, "B")
    return f"{value / factor:g} {unit}"
