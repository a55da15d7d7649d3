"""One row model for every table, and its three forms: rich for a terminal, plain text for a log, Markdown for a pull request.

A cell is a tuple of lines. No figure is ever cut: where a table is wider than the terminal, each row is written as a block
of its own, one line for each column.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

Cell: TypeAlias = tuple[str, ...]

STYLES = {
    "broken": "bold red",
    "missed": "bold red",
    "holds": "green",
    "not shown": "yellow",
    "wrong": "bold red",
    "OOM": "bold red",
    "slower": "red",
    "more": "red",
    "faster": "green",
    "less": "green",
    "fail": "bold red",
    "warn": "yellow",
    "inconclusive": "yellow",
    "incomparable": "yellow",
}
"""How a terminal shows the words of a verdict or a check; the colour says nothing that the word does not."""

LEAST_PROSE = 32  # a column of sentences narrower than this is no use
GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column. `figures` are set to the right; `prose` may be wrapped where it has to be, anything else never."""

    header: str
    figures: bool = False
    prose: bool = False


@dataclass(frozen=True)
class Table:
    """A table with a title, and notes that stand below it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def rich(self, width: int) -> RenderableType:
        """For a terminal of `width` columns."""
        notes = [Text(note, style="dim") for note in self.notes]
        if self._least_width(padding=3) > width:
            return Group(Text(self.title, style="bold"), "", *(Text(line) for line in self._blocks()), *notes)
        table = RichTable(title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for column in self.columns:
            justify: Literal["right", "left"] = "right" if column.figures else "left"
            table.add_column(column.header, justify=justify, no_wrap=not column.prose, overflow="fold")
        for row in self.rows:
            table.add_row(*(_styled(cell) for cell in row))
        return Group(table, *notes)

    def text(self, width: int | None = None) -> str:
        """Plain text, at most `width` columns wide where that can be; ends without a newline."""
        if width is not None and self._least_width(padding=len(GAP)) > width:
            body = list(self._blocks())
        else:
            body = list(self._grid(width))
        return "\n".join([self.title, "", *body, "", *self.notes]).rstrip()

    def markdown(self) -> str:
        """GitHub's Markdown; the lines of a cell are kept apart by line breaks."""
        header = "| " + " | ".join(escaped(column.header) for column in self.columns) + " |"
        rule = "|" + "|".join("---:" if column.figures else "---" for column in self.columns) + "|"
        rows = ("| " + " | ".join("<br>".join(map(escaped, cell)) for cell in row) + " |" for row in self.rows)
        notes = "\n".join(f"{escaped(note)}  " for note in self.notes)  # two blanks: a line break
        return "\n".join([f"**{escaped(self.title)}**", "", header, rule, *rows, "", notes]).rstrip()

    def _widths(self) -> list[int]:
        """The width that each column needs for its header and its longest line."""
        needed = [len(column.header) for column in self.columns]
        for row in self.rows:
            needed = [max(width, *map(len, cell or ("",))) for width, cell in zip(needed, row, strict=True)]
        return needed

    def _least_width(self, padding: int) -> int:
        least = (min(w, LEAST_PROSE) if c.prose else w for w, c in zip(self._widths(), self.columns, strict=True))
        return sum(least) + padding * len(self.columns)

    def _grid(self, width: int | None) -> Iterator[str]:
        widths = self._widths()
        spare = None if width is None else width - sum(widths) - len(GAP) * (len(widths) - 1)
        if spare is not None and spare < 0:
            widths = self._narrowed(widths, -spare)
        header: list[Cell] = [(column.header,) for column in self.columns]
        rule: list[Cell] = [("-" * size,) for size in widths]
        for row in (header, rule, *self.rows):
            lines = [_wrapped(cell, size) if c.prose else cell for cell, size, c in zip(row, widths, self.columns, strict=True)]
            for i in range(max(map(len, lines), default=0)):
                parts = (cell[i] if i < len(cell) else "" for cell in lines)
                placed = (p.rjust(w) if c.figures else p.ljust(w) for p, w, c in zip(parts, widths, self.columns, strict=True))
                yield GAP.join(placed).rstrip()

    def _narrowed(self, widths: Sequence[int], excess: int) -> list[int]:
        """Take the excess from the columns of prose, the last first, down to what prose needs."""
        narrowed = list(widths)
        for i in reversed(range(len(narrowed))):
            if self.columns[i].prose:
                taken = min(excess, max(0, narrowed[i] - LEAST_PROSE))
                narrowed[i] -= taken
                excess -= taken
        return narrowed

    def _blocks(self) -> Iterator[str]:
        longest = max(len(column.header) for column in self.columns)
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                for i, line in enumerate(cell):
                    yield f"{column.header if i == 0 else '':{longest}}{GAP}{line}"
            yield ""


def _wrapped(cell: Cell, width: int) -> Cell:
    return tuple(part for line in cell for part in (textwrap.wrap(line, width) or [""]))


def _styled(cell: Cell) -> Text:
    text = Text("\n".join(cell))
    for word, style in STYLES.items():
        text.highlight_regex(rf"^{word}\b", style)
        text.highlight_regex(rf"(?<=: ){word}\b", style)
    return text


def escaped(line: str) -> str:
    """A line that Markdown and HTML leave as it is."""
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_"), ("`", "\\`")):
        line = line.replace(mark, safe)
    return line.replace("\n", " ")
