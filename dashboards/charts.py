"""The crossover charts: peak memory or step time over the sequence length, a line for each side, a panel for each head.

What they show is worked out in `frostline.results.crossover` and `lines`; here it is drawn. Between two points a line is
straight in the length, as the crossings were interpolated, and so a curve over the logarithmic axis: a crossing lies where the
drawn lines cross. Memory is drawn as measured and as predicted, time only as measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from frostline.dashboards import theme
from frostline.dashboards.frame import WIDTH, Frame, Scale
from frostline.dashboards.panel import Drawing, bars, crown_rows, every_x, names_at_the_right
from frostline.results.crossover import PANELS, Panel, Samples, load_panels, usual_reference
from frostline.results.evidence import Evidence
from frostline.results.lines import together
from frostline.results.record import PEAK_ALLOCATED, STEP_TIME, Kind, Role, UsageError


@dataclass(frozen=True)
class Picture:
    """A chart that was written, and what it shows in sentences."""

    path: Path
    sentences: Sequence[str]


@dataclass(frozen=True)
class Subject:
    """A metric that a crossover chart can show: how its axis and title call it, what its file and caption add."""

    axis: str
    suffix: str
    note: str


SUBJECTS: Mapping[str, Subject] = {
    PEAK_ALLOCATED.name: Subject("Peak memory", "", "one forward and backward, inputs and weights included"),
    STEP_TIME.name: Subject(
        "Step time",
        "-time",
        "one forward and backward; bars: ± half the interquartile range of the processes, or of the samples of the only one",
    ),
}
METRICS = tuple(SUBJECTS)
_KINDS: Mapping[Role, str] = {Role.MEASURE: "measured", Role.PREDICT: "predicted"}


def chosen_metrics(typed: str | None) -> Sequence[str]:
    """The metrics named in a text with commas; without one, all that a crossover chart can show.

    Raises:
        UsageError: another metric.
    """
    names = [name for name in (typed or "").split(",") if name]
    for name in names:
        if name not in METRICS:
            raise UsageError(f"--metric: expected {' or '.join(METRICS)}, got {name!r}")
    return list(dict.fromkeys(names)) or METRICS


def crossover_pictures(
    sessions: Sequence[tuple[Evidence, Role]],
    folder: Path,
    against: str | None = None,
    *,
    metrics: Sequence[str] | None = None,
    samples: Samples | None = None,
) -> list[Picture]:
    """Draw measured and predicted sessions: one picture for each metric where both are of the same sizes, else one of each.

    Args:
        sessions: each with the role of the figures to draw; all of one suite with the axes `seq_len` and one of `PANELS`.
        folder: where the pictures go: `crossover.png` (or `crossover-predicted.png` and `crossover-measured.png`) for memory,
            `crossover-time.png` for times. Where several of a kind differ in their sizes, the session's id is added.
        against: the side that the others are compared with; None: `torch` where it is one of them, else the session's baseline.
        metrics: `peak_allocated`, `step_time` or both, each of which the sessions must have; times are not predicted, so for
            them only the measured ones. None: those that the sessions have.
        samples: gives the samples of a process by its id (`Store.samples`), for the spread of a time that one process measured.

    Raises:
        UsageError: a session without such figures, or two of one role at the same sizes.
        KeyError: a metric that is none of these.
    """
    _refuse_doubles(sessions)
    shown = {metric: _with_figures(sessions, metric, required=metrics is not None) for metric in metrics or METRICS}
    if not any(shown.values()):
        if metrics is not None:
            raise UsageError("--metric: times are measured, not predicted, and none of these sessions measured any")
        ids = ", ".join(evidence.session.id for evidence, _ in sessions)
        raise UsageError(f"chart: neither {' nor '.join(METRICS)} in session {ids}; measure one with frostline run")
    picture_folder(folder)
    pictures = []
    for metric, drawn in shown.items():
        groups: dict[str, list[tuple[Evidence, Role]]] = {}
        for evidence, role in drawn:
            groups.setdefault(sizes_of(evidence), []).append((evidence, role))
        names = _names([*groups.values()])
        pictures += [
            _picture(metric, some, folder, name, against, samples) for name, some in zip(names, groups.values(), strict=True)
        ]
    return pictures


def picture_folder(folder: Path) -> Path:
    """Make the folder of `--out` where it is not there yet.

    Raises:
        UsageError: it is a file, cannot be made or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: expected a folder, or where one can be made, got {folder} ({error.strerror})") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--out: expected a folder that can be written to, got {folder}")
    return folder


def _with_figures(sessions: Sequence[tuple[Evidence, Role]], metric: str, *, required: bool) -> list[tuple[Evidence, Role]]:
    """The sessions that have a metric. Where it is required, all must have it but predicted ones that lack times."""
    kept = []
    for evidence, role in sessions:
        if has_figures(evidence, role, metric):
            kept.append((evidence, role))
        elif required and (role is Role.MEASURE or metric != STEP_TIME.name):
            others = ",".join(one for one in METRICS if has_figures(evidence, role, one))
            hint = f"; it has --metric {others}" if others else ""
            raise UsageError(f"--metric: session {evidence.session.id} has no {_KINDS[role]} {metric}{hint}")
    return kept


def has_figures(evidence: Evidence, role: Role, metric: str) -> bool:
    """Whether any process of a role gave a value of a metric."""
    return any(evidence.values(case.id, side.position, metric, role) for case in evidence.cases for side in evidence.sides)


def _refuse_doubles(sessions: Sequence[tuple[Evidence, Role]]) -> None:
    """Two sessions of one role at the same sizes would be two lines of one name: which is which, no chart could tell."""
    known: dict[tuple[Role, str, bool], Evidence] = {}
    for evidence, role in sessions:
        other = known.setdefault((role, sizes_of(evidence), bool(evidence.session.origin)), evidence)
        if other is not evidence:
            raise UsageError(
                f"--session: {other.session.id} and {evidence.session.id} are both {_KINDS[role]} at the same sizes;"
                " draw one of them, or both into folders of their own (--out)"
            )


def _names(groups: Sequence[Sequence[tuple[Evidence, Role]]]) -> list[str]:
    """What is added to the name of each group's file: nothing to a single one, else its kind, and its session if need be."""
    if len(groups) == 1:
        return [""]
    kinds = [_kind(members) for members in groups]
    return [
        f"-{kind}" if kinds.count(kind) == 1 else f"-{kind}-{members[0][0].session.id}"
        for kind, members in zip(kinds, groups, strict=True)
    ]


def _kind(members: Sequence[tuple[Evidence, Role]]) -> str:
    own = {role for evidence, role in members if not evidence.session.origin}
    kinds = [_KINDS[role] for role in sorted(own, key=list(_KINDS).index)]
    return " and ".join([*kinds, *(["imported"] if any(evidence.session.origin for evidence, _ in members) else [])])


def _picture(
    metric: str,
    members: Sequence[tuple[Evidence, Role]],
    folder: Path,
    name: str,
    against: str | None,
    samples: Samples | None,
) -> Picture:
    subject = SUBJECTS[metric]
    own = [member for member in members if not member[0].session.origin]
    by_role = {
        role: load_panels(evidence, metric=metric, role=role, against=against or usual_reference(evidence), samples=samples)
        for evidence, role in own
    }
    panels = overlay(by_role.get(Role.MEASURE, []), by_role.get(Role.PREDICT, []))
    for evidence, role in members:
        if evidence.session.origin:
            panels = overlay(panels, load_panels(evidence, metric=metric, role=role, samples=samples))
    evidence, kind = (own or members)[0][0], _kind(members)
    path = folder / f"crossover{subject.suffix}{name.replace(' ', '-')}.png"
    where = f"measured on {evidence.machine.label}" if Role.MEASURE in by_role else "predicted by the cost model for a CUDA GPU"
    if not own:
        where = f"imported, of {evidence.machine.label}"
    elif len(own) < len(members):
        labels = ", ".join(one.machine.label for one, _ in members if one.session.origin)
        where += f"; hollow marks: imported, of {labels}"
    crossover_chart(
        panels,
        x_label="Sequence length (tokens)",
        y_label=subject.axis,
        title=f"{evidence.cases[0].suite}: {subject.axis.lower()} over sequence length, {kind}",
        path=path,
        caption=f"{sizes_of(evidence)}; {where}; {subject.note}",
    )
    sentences = [f"{panel.title} ({kind}): {said}".strip() for panel in panels for said in said_of(panel)]
    return Picture(path, sentences)


def said_of(panel: Panel) -> list[str]:
    """What there is to say of a panel, in sentences."""
    return [*(comparison.sentence for comparison in panel.comparisons), *panel.remarks, *panel.absent]


def sizes_of(evidence: Evidence) -> str:
    """What all cases of a chart have in common; what is off (no bias, nothing masked) goes without saying."""
    params = evidence.cases[0].params
    return ", ".join(f"{axis} {value}" for axis, value in params.items() if axis not in ("seq_len", *PANELS) and value)


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
        y_label: what the values are; their unit is put behind it. All are bytes, or all are ns (drawn as ms).
        title: the chart's own.
        path: a PNG, 1200 pixels wide, or what the suffix asks for (`.svg`, `.pdf`).
        caption: a sentence below: machine, dtype, sizes, measured or predicted.

    Raises:
        ValueError: no panels, an x that is not positive, lines of bytes and of times, or a suffix that is no picture's.
    """
    with theme.applied():
        figure = draw_crossover(panels, x_label=x_label, y_label=y_label, title=title, caption=caption)
        figure.savefig(Path(path))


def draw_crossover(
    panels: Sequence[Panel],
    *,
    x_label: str,
    y_label: str,
    title: str,
    caption: str = "",
    width: int = WIDTH,
    told: bool = True,
) -> Figure:
    """The figure that `crossover_chart` writes, `width` pixels wide. Call it inside `theme.applied()`.

    The markers of a panel's lines have the gids `panel.points_gid`. With `told` false the sentences are left to the page.
    """
    if not panels:
        raise ValueError("a crossover chart needs at least one panel, got none")
    lines = [line for panel in panels for line in panel.lines]
    if any(x <= 0 for line in lines for x in every_x(line)):
        raise ValueError("a crossover chart needs positive x: its axis is logarithmic")
    kinds = {line.metric.kind for line in lines}
    if len(kinds) > 1:
        raise ValueError(f"a crossover chart shows one kind of metric, got {' and '.join(sorted(kinds))}")
    looks = theme.looks(line.label for line in lines)
    ends = [end for line in lines for bar in bars(line) for _, end in bar]
    scale = Scale.of(
        [*(value for line in lines for value in line.values), *ends],
        timed=kinds == {Kind.TIMING},
        crowns=max((row + 1 for panel in panels for row in crown_rows(panel).values()), default=0),
    )
    frame = Frame(
        title=title,
        caption=caption,
        headings=[(panel.title, _notes(panel) if told else []) for panel in panels],
        ticks=scale.labels(),
        gutters=[names_at_the_right(panel) for panel in panels],
        key=len({line.predicted for line in lines}) == 2,
        width=width,
    )
    for place, panel in enumerate(panels):
        axes = frame.panel(place)
        scale.apply(axes, y_label, labelled=place == 0)
        frame.lengths(axes, sorted({x for line in panel.lines for x in every_x(line)}), x_label)
        Drawing(panel, axes, frame.figure, frame.room(place), scale, looks).draw()
    return frame.figure


def _notes(panel: Panel) -> list[str]:
    return [*together(panel.comparisons), *panel.remarks]
