"""`frostline history`: how a suite's figures changed over commits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frostline.harness.front.options import (
    DEFAULT_DB,
    DbOption,
    ImplementationsOption,
    MarkdownOption,
    RepoOption,
    SetOption,
    make_request,
)
from frostline.harness.front.printing import REPORT_WIDTH, deliver
from frostline.harness.outputs import check_outputs

StoredSuite = Annotated[str, typer.Argument(metavar="SUITE", help="A suite that the database has sessions of.")]
MetricsOption = Annotated[
    str | None, typer.Option("--metric", help="Metrics, commas between them. Default: step_time,peak_allocated.")
]


def history(
    suite: StoredSuite,
    metric: MetricsOption = None,
    settings: SetOption = None,
    implementations: ImplementationsOption = None,
    repo: RepoOption = Path(),
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
) -> None:
    """Where did a suite's figures take a step, by commit? From stored sessions; nothing is measured, and nothing gated.

    Commits are in the order that the repository has them. Each suite version, machine and device has lines of its own.
    """
    from frostline.harness.history import history_of
    from frostline.results.history_report import history_table
    from frostline.results.store import Store

    check_outputs({"--markdown": markdown})
    request = make_request(suite, None, settings, implementations)
    with Store.open(db, create=False) as store:
        lines = history_of(request, [name for name in (metric or "").split(",") if name], repo, store)
    deliver([history_table(suite, lines)], markdown, width=REPORT_WIDTH)
