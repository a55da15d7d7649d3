"""The memory crossover chart: peak memory over the sequence length, one line a side, one panel a value of another axis.

What it shows is worked out in `frostline.results.crossover`; here it is drawn. Between two points a line is straight in the
length, as the crossings were interpolated, and so a curve over the logarithmic axis: a crossing lies where the lines cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from frostline.dashboards import theme
from frostline.dashboards.frame import Frame, Scale
from frostline.dashboards.panel import Drawing, crown_rows, every_x, names_at_the_right
from frostline.results.crossover import Panel, load_panels
from frostline.results.evidence import Evidence
from frostline.results.record import Role


@dataclass(frozen=True)
class Picture:
    """A chart that was written, and what it shows in sentences."""

    path: Path
    sentences: Sequence[str]


def crossover_pictures(sessions: Sequence[tuple[Evidence, Role]], folder: Path, against: str | None = None) -> list[Picture]:
    """Draw sessions of measured and of predicted figures: one picture where both are of the same cases, else one of each.

    Args:
        sessions: each with the role of the figures to draw; all of one suite with the axes `seq_len` and `lm_head`.
        folder: where the pictures go: `crossover.png`, or `crossover-predicted.png` and `crossover-measured.png`.
        against: the side that the others are compared with; None: the session's baseline.

    Raises:
        UsageError: a session without such figures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[tuple[Evidence, Role]]] = {}
    for evidence, role in sessions:
        groups.setdefault(_sizes(evidence), []).append((evidence, role))
    return [_picture(members, folder, against, alone=len(groups) == 1) for members in groups.values()]


def _picture(members: Sequence[tuple[Evidence, Role]], folder: Path, against: str | None, *, alone: bool) -> Picture:
    by_role = {role: load_panels(evidence, role=role, against=against) for evidence, role in members}
    panels = overlay(by_role.get(Role.MEASURE, []), by_role.get(Role.PREDICT, []))
    evidence, role = members[0]
    kind = "measured and predicted" if len(by_role) == 2 else "measured" if role is Role.MEASURE else "predicted"
    path = folder / ("crossover.png" if alone else f"crossover-{kind}.png")
    case = evidence.cases[0]
    where = f"measured on {evidence.machine.label}" if Role.MEASURE in by_role else "predicted by the cost model for a CUDA GPU"
    crossover_chart(
        panels,
        x_label="Sequence length (tokens)",
        y_label="Peak memory",
        title=f"{case.suite}: peak memory over sequence length, {kind}",
        path=path,
        caption=f"{_sizes(evidence)}; {where}; one forward and backward, inputs and weights included",
    )
    sentences = [f"{panel.title} ({kind}): {one.sentence}" for panel in panels for one in panel.comparisons]
    return Picture(path, sentences)


def _sizes(evidence: Evidence) -> str:
    """What all cases of a chart have in common; what is off (no bias, nothing masked) goes without saying."""
    params = evidence.cases[0].params
    return ", ".join(f"{axis} {value}" for axis, value in params.items() if axis not in ("seq_len", "lm_head") and value)


def overlay(measured: Sequence[Panel], predicted: Sequence[Panel]) -> list[Panel]:
    """The measured lines and the predicted ones: panels of one title become one, with what was said of the measured lines."""
    by_title = {panel.title: panel for panel in measured}
    for panel in predicted:
        known = by_title.get(panel.title)
        by_title[panel.title] = panel if known is None else replace(known, lines=[*known.lines, *panel.lines])
    return list(by_title.values())


def crossover_chart(
    panels: Sequence[Panel], *, x_label: str, y_label: str, title: str, path: Path | str, caption: str = ""
) -> None:
    """Draw the panels side by side on one scale and write the picture.

    Args:
        panels: at least one; the sentences of their comparisons and their remarks stand under their titles.
        x_label: what x is, with its unit: `Sequence length (tokens)`.
        y_label: what the values are; their unit (they are bytes) is put behind it.
        title: the chart's own.
        path: a PNG, 1200 pixels wide, or what the suffix asks for (`.svg`, `.pdf`).
        caption: a sentence below: machine, dtype, sizes, measured or predicted.

    Raises:
        ValueError: no panels, an x that is not positive, or a suffix that is no picture's.
    """
    with theme.applied():
        figure = draw_crossover(panels, x_label=x_label, y_label=y_label, title=title, caption=caption)
        figure.savefig(Path(path))


def draw_crossover(panels: Sequence[Panel], *, x_label: str, y_label: str, title: str, caption: str = "") -> Figure:
    """The figure that `crossover_chart` writes. Call it inside `theme.applied()`."""
    if not panels:
        raise ValueError("a crossover chart needs at least one panel, got none")
    lines = [line for panel in panels for line in panel.lines]
    if any(x <= 0 for line in lines for x in every_x(line)):
        raise ValueError("a crossover chart needs positive x: its axis is logarithmic")
    looks = theme.looks(line.label for line in lines)
    scale = Scale.of(
        [value for line in lines for value in line.values],
        crowns=max((row + 1 for panel in panels for row in crown_rows(panel).values()), default=0),
    )
    frame = Frame(
        title=title,
        caption=caption,
        headings=[(panel.title, _notes(panel)) for panel in panels],
        ticks=scale.labels(),
        gutters=[names_at_the_right(panel) for panel in panels],
        key=len({line.predicted for line in lines}) == 2,
    )
    for place, panel in enumerate(panels):
        axes = frame.panel(place)
        scale.apply(axes, y_label, labelled=place == 0)
        frame.lengths(axes, sorted({x for line in panel.lines for x in every_x(line)}), x_label)
        Drawing(panel, axes, frame.figure, frame.room(place), scale, looks).draw()
    return frame.figure


def _notes(panel: Panel) -> list[str]:
    return [*(comparison.sentence for comparison in panel.comparisons), *panel.remarks]
