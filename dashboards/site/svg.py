"""A matplotlib figure as SVG within a page: colours that follow the page's theme, ids of its own, tooltips on its points.

Texts are drawn as outlines: the layout was worked out with the metrics of one font, which a reader may not have. What they
say is told by the chart's label and by the table beside it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_USE, _DEFS, _STYLE, _METADATA = (f"{{{_SVG}}}{name}" for name in ("use", "defs", "style", "metadata"))
_COLOUR = re.compile(r"#([0-9a-f]{6})\b")
_PLACE = re.compile(r"(-?\d+\.\d{2})\d+")

ElementTree.register_namespace("", _SVG)


def inline_svg(figure: Figure, *, name: str, label: str, tips: Mapping[str, Sequence[str]] | None = None) -> Markup:
    """The figure as an `<svg>` element. Call it inside `theme.applied()`.

    Args:
        figure: drawn already; its width in pixels at 150 dpi is what it may grow to, at two thirds.
        name: what its ids begin with; unique within the page.
        label: what it shows, for who cannot see it.
        tips: for the gid of an artist that draws markers the text of each, in the order of its points.

    Raises:
        ValueError: another number of markers than texts: a tooltip would stand at a wrong point.
    """
    written = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "frostline"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    root = ElementTree.fromstring(written.getvalue())
    for metadata in root.findall(_METADATA):
        root.remove(metadata)
    for definitions in root.findall(_DEFS):
        for style in definitions.findall(_STYLE):  # it would be the whole page's
            definitions.remove(style)
    for gid, texts in (tips or {}).items():
        _add_tips(root, gid, texts)
    for element in root.iter():
        _make_own(element, name)
    del root.attrib["width"], root.attrib["height"]
    root.set("style", f"max-width: {figure.get_figwidth() * 100:.0f}px")
    root.set("role", "img")
    root.set("aria-label", label)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # its texts were escaped when it was serialised


def _add_tips(root: ElementTree.Element, gid: str, texts: Sequence[str]) -> None:
    group = next((element for element in root.iter() if element.get("id") == gid), None)
    marks = [] if group is None else list(group.iter(_USE))
    if len(marks) != len(texts):
        raise ValueError(f"{gid}: {len(marks)} markers were drawn, with {len(texts)} tooltips")
    for mark, told in zip(marks, texts, strict=True):
        mark.set("data-tip", told)


def _make_own(element: ElementTree.Element, name: str) -> None:
    """Ids with the chart's name in front, colours as the page's variables, places to a hundredth of a point."""
    if "id" in element.attrib:
        element.set("id", f"{name}-{element.attrib['id']}")
    link = element.attrib.pop(_LINK, None)
    if link is not None:
        element.set("href", f"#{name}-{link.removeprefix('#')}")
    for attribute, value in element.attrib.items():
        if attribute == "style":
            element.set(attribute, _COLOUR.sub(r"var(--c\1, #\1)", value))
        elif attribute in ("d", "x", "y"):
            element.set(attribute, _PLACE.sub(r"\1", value).replace("\n", ""))
        elif attribute == "clip-path":
            element.set(attribute, value.replace("url(#", f"url(#{name}-"))
    if element.text is not None and not element.text.strip():
        element.text = None
    if element.tail is not None and not element.tail.strip():
        element.tail = None
