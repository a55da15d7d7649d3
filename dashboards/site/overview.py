"""The first page: what was measured, on what and when, and the verdict matrix, the worst first.

The matrix has a row for each side that is compared with a baseline in a suite, by the newest session that did it; a cell is
a case with the worst that was concluded of it, and leads to its evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from frostline.dashboards.site.findings import Comparison, Findings, case_anchor, case_label, severity
from frostline.dashboards.site.grid import ROWS_A_PAGE, Grid, Heading, Row, pages_for, text
from frostline.dashboards.site.pages import Page, numbered
from frostline.results.notes import suite_of
from frostline.results.record import Outcome, Verdict
from frostline.results.table import Table
from frostline.results.units import format_change
from frostline.results.verdict import ONE_FOR_ALL, said_once, tally

CELLS_A_ROW = 60  # the worst of a comparison; its own pages have them all
ROWS_OF_THE_MATRIX = 60


@dataclass(frozen=True)
class Cell:
    """A case in the matrix: where its evidence is, the case, and each outcome with its change of a metric, the worst first."""

    href: str
    label: str
    told: Sequence[tuple[Outcome, str]]

    @property
    def worst(self) -> Outcome:
        """What the cell is coloured by."""
        return self.told[0][0]


@dataclass(frozen=True)
class MatrixRow:
    """A comparison in the matrix; `more` are the cases that have no cell."""

    suite: str
    title: str
    when: str
    href: str
    tally: str
    cells: Sequence[Cell]
    more: int


@dataclass(frozen=True)
class Glance:
    """What the overview keeps of a session while the others are read."""

    key: Sequence[tuple[str, ...]]
    rows: Sequence[tuple[int, float, MatrixRow]]
    listing: Row


def glance(found: Findings, listed: Mapping[str, Sequence[str]]) -> Glance:
    """A session at a glance. `listed` is its row in the list of sessions, by header."""
    rows, keys = [], []
    for one in found.comparisons:
        suite = suite_of(one.evidence.cases)
        keys.append((suite, one.side.label, one.baseline.label, one.role.value, str(bool(one.base is one.evidence))))
        worst = next(iter(one.verdicts.values()))[0]
        rows.append((severity(worst.outcome), -_size(worst), _matrix_row(one, suite)))
    session = found.evidence.session
    outcomes = tally(said_once(found.verdicts)) if found.verdicts else "-"
    link = f"{found.name}.html"
    cells = [text(*lines, href=link if place == 0 else "") for place, lines in enumerate([(name,) for name in _flat(listed)])]
    return Glance(keys, rows, Row([*cells, text(outcomes)], anchor=f"session-{session.id}"))


def _flat(listed: Mapping[str, Sequence[str]]) -> list[str]:
    return [" ".join(lines) for lines in listed.values()]


def overview_pages(glances: Sequence[Glance], listing: Table) -> Iterator[Page]:
    """The overview; further pages have the older sessions.

    Args:
        glances: every session's, the newest first.
        listing: the list of sessions, for its headers.
    """
    newest: dict[tuple[str, ...], tuple[int, float, MatrixRow]] = {}
    for one in glances:
        for key, row in zip(one.key, one.rows, strict=True):
            newest.setdefault(key, row)
    matrix = [row for *_, row in sorted(newest.values(), key=lambda each: each[:2])]
    choice = {"command", "suite", "device", "machine"}
    headings = [Heading(column.header, choice=column.header in choice) for column in listing.columns]
    sessions = Grid("sessions", listing.title, [*headings, Heading("verdicts")], [one.listing for one in glances])
    outcomes = sorted({outcome for row in matrix for cell in row.cells for outcome, _ in cell.told}, key=severity)
    count = pages_for(sessions)
    for number in range(count):
        yield Page(
            numbered("index", number),
            "overview.html",
            "Overview",
            {
                "matrix": matrix[:ROWS_OF_THE_MATRIX] if not number else [],
                "left_out": max(0, len(matrix) - ROWS_OF_THE_MATRIX),
                "outcomes": outcomes,
                "sessions": sessions.part(number),
                "pages": [numbered("index", each) for each in range(count)],
                "number": number,
                "rows_a_page": ROWS_A_PAGE,
            },
            here="index.html",
        )


def _matrix_row(one: Comparison, suite: str) -> MatrixRow:
    cases = {case.id: case for case in one.evidence.cases}
    cells = [
        Cell(
            f"{numbered(one.name, one.page_of(case_id))}#{case_anchor(case_id)}",
            case_label(one.evidence, cases[case_id]),
            _told(told),
        )
        for case_id, told in list(one.verdicts.items())[:CELLS_A_ROW]
    ]
    predicted = " (predicted)" if one.evidence.only_predicted else ""
    return MatrixRow(
        suite,
        f"{one.side_name} against {one.baseline_name}{predicted}",
        one.evidence.session.created_at[:16].replace("T", " "),
        f"{one.name}.html",
        tally(said_once(verdict for told in one.verdicts.values() for verdict in told)),
        cells,
        max(0, len(one.verdicts) - CELLS_A_ROW),
    )


def _told(verdicts: Sequence[Verdict]) -> list[tuple[Outcome, str]]:
    """Each outcome of a case once, with the verdict that has the largest effect: `slower`, `step time +5.2 %`."""
    return list({one.outcome: (one.outcome, _change(one)) for one in reversed(verdicts)}.values())[::-1]


def _change(verdict: Verdict) -> str:
    if verdict.reason in ONE_FOR_ALL:
        return ""
    words = verdict.metric.replace("_", " ")
    return words if math.isnan(verdict.effect) else f"{words} {format_change(verdict.effect)}"


def _size(one: Verdict) -> float:
    return abs(math.log(one.effect)) if one.effect > 0 else 0.0
