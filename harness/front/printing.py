"""How what was found is printed: tables for a terminal or a log, Markdown for a pull request, where it is kept."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

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


def print_figures(store: Store, session: Session, verdicts: Sequence[Verdict], markdown: Path | None) -> None:
    """Print the figures of every side, its several times and the bars that the suite sets, and write all of it as Markdown."""
    from frostline.results.bars_report import bars_table
    from frostline.results.evidence import Evidence
    from frostline.results.report import bench_table
    from frostline.results.times_report import times_table

    evidence = Evidence.load(store, session.id)
    found = [bench_table(evidence, verdicts), times_table(evidence), bars_table(evidence)]
    tables = [table for table in found if table is not None]
    for table in tables:
        show(table)
    if markdown is not None:
        markdown.write_text("\n\n".join(table.markdown() for table in tables) + "\n")


def print_comparison(store: Store, session: Session, verdicts: Sequence[Verdict], markdown: Path | None) -> None:
    """Print the verdicts, and their Markdown or the file that has it."""
    from frostline.results.evidence import Evidence
    from frostline.results.report import markdown_comparison, verdict_table

    evidence = Evidence.load(store, session.id)
    show(verdict_table(evidence, verdicts))
    _offer_markdown(markdown_comparison(evidence, verdicts), markdown)
    say_kept(store, session.id)


def _offer_markdown(text: str, path: Path | None) -> None:
    if path is not None:
        path.write_text(text)
        print(f"Markdown for a pull request: {path}")
    else:
        print(f"Markdown for a pull request:\n\n{text}")


def say_kept(store: Store, session_id: str) -> None:
    """Say where the samples are and how to see the table again."""
    print(f"Kept in {store.path} as session {session_id}; again: frostline report {session_id} --db {store.path}")
