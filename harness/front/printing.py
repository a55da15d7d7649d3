"""How what was found is printed: tables for a terminal or a log, Markdown for a pull request, where it is kept."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from frostline.harness.outputs import SCREEN
from frostline.harness.progress import Progress

if TYPE_CHECKING:
    from frostline.results.record import Session, Verdict
    from frostline.results.store import Store
    from frostline.results.table import Table

REPORT_WIDTH = 128  # of a table of sentences where there is no terminal to ask


def progress() -> Progress:
    """A bar or lines on stderr, so that stdout has the results alone."""
    return Progress(Console(stderr=True))


def command_line() -> str:
    """What was typed, for the session to keep."""
    return shlex.join(["frostline", *sys.argv[1:]])


def show(table: Table, width: int | None = None) -> None:
    """Print a table for the terminal, or as text; `width` is that of a text whose sentences are to be wrapped."""
    console = Console()
    if console.is_terminal:
        console.print(table.rich(console.width))
    else:
        print(table.text(width))
    print()


def deliver(tables: Sequence[Table], markdown: Path | None, page: str = "", width: int | None = None) -> None:
    """Print the tables, and write them, or another `page`, as Markdown if that was asked for: on the screen in their place."""
    if markdown != SCREEN:
        for table in tables:
            show(table, width)
    if markdown is not None:
        write_markdown(page or "\n\n".join(table.markdown() for table in tables) + "\n", markdown)


def write_markdown(page: str, markdown: Path) -> None:
    """Write a page to a file, or to the screen."""
    if markdown == SCREEN:
        print(page, end="")
    else:
        markdown.write_text(page)


def print_session(
    store: Store, session: Session, verdicts: Sequence[Verdict], markdown: Path | None, *, every_verdict: bool = False
) -> None:
    """Print what a session found, so that every figure is read once, and where it is kept.

    Of a comparison (one implementation on all sides) that is the verdicts; otherwise the figures of every side and the bars
    that the suite sets, and with `every_verdict` what was concluded of them.
    """
    from frostline.results.bars_report import bars_table
    from frostline.results.evidence import Evidence
    from frostline.results.report import bench_table, markdown_comparison, verdict_table
    from frostline.results.throughput_report import throughput_table
    from frostline.results.times_report import times_table

    evidence = Evidence.load(store, session.id)
    if len(evidence.sides) > 1 and len({side.implementation for side in evidence.sides}) == 1:
        page = "" if markdown is None else markdown_comparison(evidence, verdicts)
        deliver([verdict_table(evidence, verdicts)], markdown, page)
    else:
        found = [bench_table(evidence, verdicts), times_table(evidence), throughput_table(evidence), bars_table(evidence)]
        deliver([table for table in found if table is not None], markdown)
        if every_verdict and markdown != SCREEN:
            show(verdict_table(evidence, verdicts))
    say_kept(store, session.id, markdown)


def say_kept(store: Store, session_id: str, markdown: Path | None = None) -> None:
    """Say where the samples are and how to see the table again; away from Markdown that is on the screen."""
    again = f"again: frostline report {session_id} --db {store.path}"
    more = "" if markdown else " (for a pull request: --markdown -)"
    print(f"Kept in {store.path} as session {session_id}; {again}{more}", file=sys.stderr if markdown == SCREEN else None)
