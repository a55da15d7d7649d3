"""The bound chart: what each side reaches of the bandwidth bound, a row for each shape and a panel for each kind of case.

To the right is better; the line at 100 % is the time of moving the bytes alone. A marker is one side at one shape, the sides of
a shape one below the other, so that none hides another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from frostline.dashboards import theme
from frostline.dashboards.charts import Picture, picture_folder
from frostline.results.evidence import Evidence
from frostline.results.over_bound import BOUND, BoundPanel, load_bound_panels, time_of
from frostline.results.record import UsageError

_WIDTH = 8.0  # inches, as all charts
_ROW = 0.36  # inches of a shape
_HEAD, _FOOT, _BETWEEN = 1.05, 0.95, 0.55  # inches above the panels, below them, and between two rows of them
_LEFT, _RIGHT, _APART = 1.15, 0.25, 0.2  # inches beside the panels, and between two
_SPREAD = 0.64  # of a shape's row, that its markers take


def bound_picture(evidence: Evidence, folder: Path) -> Picture:
    """Draw a session as `norms.png` in a folder: a column for frozen and one for trained parameters.

    Raises:
        UsageError: a session without a side called `bound` or in which no other was measured beside it, or a folder that cannot
            be made.
    """
    panels = load_bound_panels(evidence)
    path = picture_folder(folder) / "norms.png"
    time = time_of(evidence).replace("_", " ")
    fixed = [f"{axis} {value}" for axis, value in evidence.cases[0].params.items() if axis in ("dtype",)]
    with theme.applied():
        draw_bound(
            panels,
            title=f"{evidence.cases[0].suite}: share of the bandwidth bound that a backward reaches",
            caption=f"{BOUND}: the same bytes read and written by an addition; {', '.join(fixed)}; {evidence.machine.label}",
            time=time,
        ).savefig(path)
    return Picture(path, [sentence for panel in panels for sentence in panel.sentences])


def draw_bound(panels: Sequence[BoundPanel], *, title: str, caption: str = "", time: str = "kernel time") -> Figure:
    """The figure of the panels. Call it inside `theme.applied()`.

    Panels that differ in `parameters` alone stand side by side; the shapes are named once for both.

    Raises:
        UsageError: no panels.
    """
    if not panels:
        raise UsageError("a bound chart needs at least one panel, got none")
    grid = _grid(panels)
    columns = list(dict.fromkeys(column for row in grid for column in row))
    shapes = [sorted({s for p in row.values() for s in p.shapes}, key=lambda s: (s[0] * s[1], s[1])) for row in grid]
    heights = [_ROW * len(names) for names in shapes]
    height = _HEAD + sum(heights) + _BETWEEN * (len(grid) - 1) + _FOOT
    figure = Figure(figsize=(_WIDTH, height))
    width = (_WIDTH - _LEFT - _RIGHT - _APART * (len(columns) - 1)) / len(columns)
    sides = list(dict.fromkeys(side for panel in panels for side in panel.shares))
    looks = theme.looks(sides)
    reach = 100 * max(1.0, *(share for panel in panels for shares in panel.shares.values() for share in shares.values()))
    top = height - _HEAD
    for at, (row, names, tall) in enumerate(zip(grid, shapes, heights, strict=True)):
        for place, column in enumerate(columns):
            if column not in row:
                continue
            left = _LEFT + place * (width + _APART)
            axes = figure.add_axes((left / _WIDTH, (top - tall) / height, width / _WIDTH, tall / height))
            leftmost = column == next(iter(one for one in columns if one in row))
            _panel(axes, row[column], names, sides, looks, reach, named=leftmost)
            if not any(column in below for below in grid[at + 1 :]):
                axes.set_xlabel(f"Share of the bound, by {time} (%)", labelpad=6)
            else:
                axes.tick_params(labelbottom=False)
        top -= tall + _BETWEEN
    figure.text(_LEFT / _WIDTH, 1 - 0.3 / height, title, weight="bold", size=theme.HEADING)
    figure.text(
        (_LEFT - 0.07) / _WIDTH,
        1 - (_HEAD - 0.08) / height,
        "rows x columns",
        ha="right",
        color=theme.MUTED,
        size=theme.CAPTION,
    )
    handles = [Line2D([], [], linestyle="none", marker=looks[side].marker, color=looks[side].colour) for side in sides]
    figure.legend(
        handles, sides, ncols=len(sides), frameon=False, loc="center left", handletextpad=0.1, columnspacing=1.2,
        bbox_to_anchor=((_LEFT - 0.12) / _WIDTH, 1 - 0.56 / height), borderpad=0,
    )  # fmt: skip
    figure.text(_LEFT / _WIDTH, 0.2 / height, caption, color=theme.MUTED, size=theme.CAPTION - 1)
    return figure


def _grid(panels: Sequence[BoundPanel]) -> list[dict[object, BoundPanel]]:
    """Rows of panels by the value of `parameters`; a row is what all else agrees in."""
    rows: dict[tuple[object, ...], dict[object, BoundPanel]] = {}
    for panel in panels:
        rest = tuple(value for axis, value in panel.place.items() if axis != "parameters")
        rows.setdefault(rest, {})[panel.place.get("parameters", "")] = panel
    return list(rows.values())


def _panel(
    axes: Axes, panel: BoundPanel, shapes: Sequence[tuple[int, int]], sides: Sequence[str], looks: Mapping[str, theme.Look],
    reach: float, *, named: bool,
) -> None:  # fmt: skip
    axes.set_title(panel.title, loc="left", size=theme.TEXT, weight="bold", pad=5)
    axes.axvline(100, color=theme.INK, linewidth=1.1, zorder=2)
    for at, shape in enumerate(shapes):
        if at % 2:
            axes.axhspan(at - 0.5, at + 0.5, color=theme.RULE, alpha=0.35, linewidth=0, zorder=0)
        for place, side in enumerate(sides):
            share = panel.shares.get(side, {}).get(shape)
            if share is not None:
                look = looks[side]
                down = at + _SPREAD * ((place + 0.5) / len(sides) - 0.5)
                axes.plot(100 * share, down, marker=look.marker, color=look.colour, markersize=5.5, clip_on=False, zorder=3)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlim(0, 1.04 * reach)
    axes.set_xticks(range(0, int(1.04 * reach) + 1, 20))
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    axes.set_yticks(
        range(len(shapes)), [f"{rows:,} x {columns:,}" for rows, columns in shapes] if named else [""] * len(shapes)
    )
