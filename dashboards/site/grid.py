"""Tables of the site: rows of entries that can be filtered and sorted, bounded to what one page holds.

A page stays below 2 MB however large the database is: a table with more rows than `ROWS_A_PAGE` goes on on further pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frostline.results.table import Table

ROWS_A_PAGE = 400


@dataclass(frozen=True)
class Entry:
    """A cell.

    Attributes:
        lines: what it says; results may hold any text, which the templates escape.
        sort: what it is sorted by; None: its text.
        href: where it leads within the site.
        word: an outcome or a status that the whole cell is: shown as a badge, its colour repeats the word.
        strong: whether it stands out.
    """

    lines: Sequence[str]
    sort: float | str | None = None
    href: str = ""
    word: str = ""
    strong: bool = False

    @property
    def bare(self) -> bool:
        """Whether it is a line of text and nothing more, as most are."""
        return len(self.lines) == 1 and not (self.href or self.word or self.strong)


@dataclass(frozen=True)
class Heading:
    """A column's name. `figures` are set to the right; a `choice` gets a list to choose one of its values from."""

    name: str
    figures: bool = False
    choice: bool = False


@dataclass(frozen=True)
class Row:
    """A row, with the name of the place in the page that links lead to."""

    entries: Sequence[Entry]
    anchor: str = ""


@dataclass(frozen=True)
class Grid:
    """A table with its id in the page and a caption."""

    id: str
    caption: str
    headings: Sequence[Heading]
    rows: Sequence[Row]

    @property
    def choices(self) -> list[tuple[int, str, list[str]]]:
        """The place, name and values of each column that offers a choice: those with more than one value."""
        found = []
        for place, heading in enumerate(self.headings):
            values = sorted({" ".join(row.entries[place].lines) for row in self.rows})
            if heading.choice and len(values) > 1:
                found.append((place, heading.name, values))
        return found

    def part(self, number: int) -> Grid:
        """The rows of one page, by its number from 0."""
        return replace(self, rows=self.rows[number * ROWS_A_PAGE : (number + 1) * ROWS_A_PAGE])


def pages_for(*grids: Grid) -> int:
    """How many pages the longest of some tables takes."""
    return max(1, *(-(-len(grid.rows) // ROWS_A_PAGE) for grid in grids))


def text(*lines: str, sort: float | str | None = None, href: str = "", word: str = "", strong: bool = False) -> Entry:
    """An entry of these lines."""
    return Entry(lines, sort, href, word, strong)


def grid_of(table: Table, name: str) -> Grid:
    """A table of a report as a table of a page."""
    headings = [Heading(column.header, column.figures) for column in table.columns]
    return Grid(name, table.title, headings, [Row([Entry(cell) for cell in row]) for row in table.rows])
