"""What a page is: its file, its template and what fills it; and how the names of pages are made, so that links agree.

Text from results reaches HTML through the templates alone, which escape everything that is not marked as markup; only
charts are, and they are serialised by an XML library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Chart:
    """A chart with its caption."""

    caption: str
    svg: Markup


@dataclass(frozen=True)
class Page:
    """A page of the site, not yet rendered."""

    name: str
    template: str
    title: str
    content: Mapping[str, Any]
    here: str = ""  # the entry of the navigation that it belongs to

    def html(self, **shared: Any) -> str:
        """The page as HTML; `shared` is what every page has."""
        return _environment().get_template(self.template).render(title=self.title, here=self.here, **shared, **self.content)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def numbered(name: str, number: int) -> str:
    """The file of a page by its number from 0: `name.html`, `name-2.html`."""
    return f"{name}.html" if not number else f"{name}-{number + 1}.html"


def session_name(session_id: str) -> str:
    """What the files of a session's pages begin with."""
    return f"session-{session_id}"


def comparison_name(session_id: str, position: int, baseline_session_id: str = "") -> str:
    """What the files of a comparison's pages begin with."""
    against = f"-{baseline_session_id}" if baseline_session_id else ""
    return f"compare-{session_id}-{position}{against}"
