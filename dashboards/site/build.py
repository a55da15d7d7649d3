"""Building the site: a page for the overview, each session and each comparison, read one session after the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from frostline.dashboards import theme
from frostline.dashboards.charts import picture_folder
from frostline.dashboards.site.comparison import comparison_pages
from frostline.dashboards.site.crossover import Crossovers
from frostline.dashboards.site.findings import Findings, find_comparisons
from frostline.dashboards.site.overview import glance, overview_pages
from frostline.dashboards.site.pages import FOLDER, Page
from frostline.dashboards.site.session import session_pages
from frostline.dashboards.site.style import theme_css
from frostline.results.evidence import Evidence
from frostline.results.listing import sessions_table
from frostline.results.record import Session, UsageError, Verdict
from frostline.results.store import Store
from frostline.results.table import Table

NEWEST_WITH_BLOCKS = 10  # sessions of which a round is drawn block by block: a third chart for each comparison
MARK = ".frostline-site"  # in a folder that we made: what is in it may be replaced


@dataclass(frozen=True)
class Site:
    """What was built: its first page and how many pages there are."""

    index: Path
    pages: int


def build_site(store: Store, folder: Path, verdicts_of: Callable[[Session], Sequence[Verdict]]) -> Site:
    """Write the site of a database.

    Args:
        store: the database.
        folder: where it goes; made where it is not there. Pages of an older build are replaced.
        verdicts_of: what is concluded of a session.

    Raises:
        UsageError: no session, a folder that cannot be made or written to, or one that holds anything but a site.
    """
    listing = sessions_table(store)
    _clear(picture_folder(folder))
    shared = {
        "navigation": [("index.html", "Overview"), ("crossover.html", "Crossover")],
        "database": store.path.name,
        "built": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    }
    written = 0
    with theme.applied():
        for page in _pages(store, listing, verdicts_of):
            (folder / page.name).write_text(page.html(**shared), encoding="utf-8")
            written += 1
    return Site(folder / "index.html", written)


def _pages(store: Store, listing: Table, verdicts_of: Callable[[Session], Sequence[Verdict]]) -> Iterator[Page]:
    glances, crossovers = [], Crossovers()
    headers = [column.header for column in listing.columns]
    for place, (session, row) in enumerate(zip(reversed(store.sessions()), listing.rows, strict=True)):
        evidence = Evidence.load(store, session.id)
        verdicts = verdicts_of(session)
        others = {one.baseline_session_id for one in verdicts} - {""}
        comparisons = find_comparisons(evidence, verdicts, {other: Evidence.load(store, other) for other in others})
        found = Findings(evidence, verdicts, comparisons)
        yield from session_pages(found)
        for one in comparisons:
            yield from comparison_pages(one, store.samples if place < NEWEST_WITH_BLOCKS else None)
        glances.append(glance(found, dict(zip(headers, row, strict=True))))
        crossovers.add(evidence, store.samples)
    yield from crossovers.pages()
    yield from overview_pages(glances, listing)


def _clear(folder: Path) -> None:
    """Remove what an older build left, so that no page of a session that is gone stays; and lay the assets there."""
    strangers = [path.name for path in folder.iterdir() if path.name != MARK]
    if strangers and not (folder / MARK).exists():
        raise UsageError(f"--out: expected an empty folder or a site to replace, got {folder} (it holds {strangers[0]})")
    for page in folder.glob("*.html"):
        page.unlink()
    (folder / MARK).write_text("This folder is written anew by `frostline site build`.\n")
    (folder / "assets").mkdir(exist_ok=True)
    shutil.copy(FOLDER / "assets" / "site.js", folder / "assets" / "site.js")
    style = (FOLDER / "assets" / "site.css").read_text(encoding="utf-8")
    (folder / "assets" / "site.css").write_text(theme_css() + style, encoding="utf-8")
