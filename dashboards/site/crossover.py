"""The crossover pages: memory and time over the sequence length, a page for each suite, vocab, hidden size and dtype.

Of several sessions that measured (or predicted) one choice the newest is shown. The charts are those of
`frostline chart crossover`, a panel at a time, so that they fit a page of any width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from frostline.dashboards.charts import METRICS, SUBJECTS, draw_crossover, has_figures, overlay, said_of, sizes_of
from frostline.dashboards.panel import points_gid
from frostline.dashboards.site.grid import Entry, Grid, Heading, Row, text
from frostline.dashboards.site.pages import Chart, Page, session_name
from frostline.dashboards.site.svg import inline_svg
from frostline.results.crossover import PANELS, Panel, Samples, load_panels, narrowed, usual_reference
from frostline.results.evidence import Evidence
from frostline.results.lines import Series, format_x
from frostline.results.notes import plain
from frostline.results.record import Role, UsageError, content_id
from frostline.results.units import MISSING, format_spread

X = "seq_len"
LEAST_LENGTHS = 3  # fewer make no line
WIDTH = 840  # pixels of a panel
PAGES = 60  # the newest choices; each has up to four charts

_ROLES: Mapping[Role, str] = {Role.MEASURE: "measured", Role.PREDICT: "predicted"}


@dataclass(frozen=True)
class Source:
    """Where the lines of one role come from: the session, what it ran on, and the panels by metric."""

    session_id: str
    machine: str
    panels: Mapping[str, Sequence[Panel]]


@dataclass
class Choice:
    """A suite at fixed sizes, with the newest source for each role."""

    suite: str
    sizes: str
    params: Mapping[str, object]
    sources: dict[Role, Source] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file of its page."""
        return f"crossover-{content_id([self.suite, self.sizes])}.html"


class Crossovers:
    """What crossover pages there will be, filled session by session, the newest first."""

    def __init__(self) -> None:
        self._choices: dict[tuple[str, str], Choice] = {}

    def add(self, evidence: Evidence, samples: Samples) -> None:
        """Take what a session has of lines that no newer one had."""
        for part in _parts(evidence):
            suite, sizes = part.cases[0].suite, sizes_of(part)
            for role in _ROLES:
                known = self._choices.get((suite, sizes))
                full = known is None and len(self._choices) >= PAGES
                if full or (known is not None and role in known.sources):
                    continue
                panels = _panels(part, role, samples)
                if panels:
                    params = {axis: value for axis, value in part.cases[0].params.items() if axis not in (X, *PANELS)}
                    choice = self._choices.setdefault((suite, sizes), Choice(suite, sizes, params))
                    choice.sources[role] = Source(part.session.id, part.machine.label, panels)

    def pages(self) -> Iterator[Page]:
        """The list of choices and a page for each."""
        choices = list(self._choices.values())
        listing = _listing(choices) if choices else None
        yield Page("crossover.html", "crossover_list.html", "Crossover", {"choices": listing}, "crossover.html")
        for choice in choices:
            yield _page(choice)


def _parts(evidence: Evidence) -> Iterator[Evidence]:
    """The session for each choice of the axes beside the length and the head, where it has several lengths."""
    if not all(isinstance(case.params.get(X), int) for case in evidence.cases):
        return
    axes = dict.fromkeys(axis for case in evidence.cases for axis in case.params if axis not in (X, *PANELS))
    values = {axis: list(dict.fromkeys(str(case.params.get(axis)) for case in evidence.cases)) for axis in axes}
    varying = {axis: found for axis, found in values.items() if len(found) > 1}
    for chosen in product(*varying.values()):
        where = {axis: [value] for axis, value in zip(varying, chosen, strict=True)}
        try:
            part = narrowed(evidence, (), where)
        except UsageError:  # not every combination was planned
            continue
        if len({case.params[X] for case in part.cases}) >= LEAST_LENGTHS:
            yield part


def _panels(part: Evidence, role: Role, samples: Samples) -> dict[str, Sequence[Panel]]:
    found: dict[str, Sequence[Panel]] = {}
    for metric in METRICS:
        if has_figures(part, role, metric):
            found[metric] = load_panels(part, metric=metric, role=role, against=usual_reference(part), samples=samples)
    return found


def _listing(choices: Sequence[Choice]) -> Grid:
    axes = list(dict.fromkeys(axis for choice in choices for axis in choice.params))
    headings = [Heading("suite", choice=True), *(Heading(axis, choice=True) for axis in axes), Heading("lines", choice=True)]
    rows = []
    for choice in choices:
        sizes = [text(plain(choice.params.get(axis, MISSING)), sort=_sort(choice.params.get(axis))) for axis in axes]
        lines = " and ".join(_ROLES[role] for role in _ROLES if role in choice.sources)
        rows.append(Row([text(choice.suite, href=choice.name), *sizes, text(lines)]))
    return Grid("choices", "Sizes with a crossover chart", headings, rows)


def _sort(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _page(choice: Choice) -> Page:
    measured = choice.sources.get(Role.MEASURE)
    where = f"measured on {measured.machine}" if measured else "predicted by the cost model"
    sessions = [
        (f"{_ROLES[role]} in session", text(source.session_id, href=f"{session_name(source.session_id)}.html"))
        for role, source in choice.sources.items()
    ]
    return Page(
        choice.name,
        "crossover.html",
        f"{choice.suite}: crossover",
        {
            "facts": [("sizes", text(choice.sizes)), ("figures", text(where)), *sessions],
            "parts_shown": [part for metric in METRICS if (part := _part(choice, metric)) is not None],
        },
        "crossover.html",
    )


@dataclass(frozen=True)
class Part:
    """A metric on a crossover page: its charts, what they say, and the table with every point."""

    title: str
    note: str
    charts: Sequence[Chart]
    sentences: Sequence[str]
    table: Grid


def _part(choice: Choice, metric: str) -> Part | None:
    by_role = {role: source.panels.get(metric, ()) for role, source in choice.sources.items()}
    panels = overlay(by_role.get(Role.MEASURE, ()), by_role.get(Role.PREDICT, ()))
    if not panels:
        return None
    subject = SUBJECTS[metric]
    charts = []
    for place, panel in enumerate(panels):
        figure = draw_crossover(
            [panel], x_label="Sequence length (tokens)", y_label=subject.axis, title="", width=WIDTH, told=False
        )
        caption = f"{subject.axis} over sequence length {f'({panel.title})' if panel.title else ''}".strip()
        tips = {points_gid(at): _tips(line) for at, line in enumerate(panel.lines) if line.xs}
        charts.append(Chart(caption, inline_svg(figure, name=f"{metric}-{place}", label=caption, tips=tips)))
    sentences = [f"{panel.title}: {said}".removeprefix(": ") for panel in panels for said in said_of(panel)]
    return Part(subject.axis, subject.note, charts, sentences, _table(panels, metric))


def _tips(line: Series) -> list[str]:
    kind = "predicted" if line.predicted else "measured"
    return [f"{line.label}, {format_x(x)} tokens: {shown} ({kind})" for x, shown in zip(line.xs, _values(line), strict=True)]


def _values(line: Series) -> list[str]:
    spreads = line.spreads or [0.0] * len(line.xs)
    return [format_spread(v, by or float("nan"), line.metric.unit) for v, by in zip(line.values, spreads, strict=True)]


def _table(panels: Sequence[Panel], metric: str) -> Grid:
    """Every point of the charts: a row for each head, length and side, with what was measured and what was predicted."""
    points: dict[tuple[str, float, str], dict[bool, Entry]] = {}
    for panel in panels:
        for line in panel.lines:
            for x, value, shown in zip(line.xs, line.values, _values(line), strict=True):
                points.setdefault((panel.title, x, line.label), {})[line.predicted] = text(shown, sort=value)
            if line.oom_at is not None:
                out = text("OOM", sort=float("inf"), word="oom")
                points.setdefault((panel.title, line.oom_at, line.label), {})[line.predicted] = out
    kinds = [kind for kind in (False, True) if any(kind in point for point in points.values())]
    rows = [
        Row([text(title), text(format_x(x), sort=x), text(side), *(point.get(kind, text(MISSING, sort=-1)) for kind in kinds)])
        for (title, x, side), point in points.items()
    ]
    headings = [Heading("panel", choice=True), Heading("sequence length", figures=True), Heading("side", choice=True)]
    headings += [Heading("predicted" if kind else "measured", figures=True) for kind in kinds]
    return Grid(f"points-{metric}", f"{SUBJECTS[metric].axis}: every point", headings, rows)
