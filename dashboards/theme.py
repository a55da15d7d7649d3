"""How every chart of Frostline looks: one style, and one colour and marker for each implementation, the same everywhere.

The hues are those of Okabe and Ito ("Color Universal Design", 2008), told apart with any of the common colour-vision
deficiencies, most a little darker so that a name in its line's colour reads well on white. A marker says the same again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib

INK = "#1f2430"
MUTED = "#5b6270"
RULE = "#d9dce1"

# The same on a dark page, for charts that are shown in one: each as far from its ground as in the light.
DARK: Mapping[str, str] = {
    "#ffffff": "#14171d",
    INK: "#e6e9ef",
    MUTED: "#a7afbd",
    RULE: "#363c48",
    "#0072b2": "#5ab4ea",
    "#5e3c99": "#b9a3e3",
    "#d55e00": "#ff9150",
    "#00805d": "#3cc79c",
    "#b0568a": "#e79fc8",
    "#9a6a00": "#ddb042",
    "#3a8fc4": "#9bd3fb",
    "#4d4d4d": "#c2c2c2",
    "#6a3d9a": "#c6a6f0",
    "#0f7173": "#52c5c7",
    "#8c2d04": "#f1946e",
    "#1b7837": "#72cf8c",
    "#ae017e": "#f584d1",
    "#2c4a6e": "#92b6e4",
}

DPI = 150

# Sizes of texts in points. A chart of 1,200 pixels is shown 390 wide on a telephone: a third of what is meant here.
TITLE, HEADING, TEXT, TICK, CAPTION = 14.5, 12.0, 10.5, 10.0, 9.0

# How measured and predicted values are drawn, beside the colour.
MEASURED_LINE: Mapping[str, Any] = {"linestyle": "-", "linewidth": 1.9}
MEASURED_MARKER: Mapping[str, Any] = {"markersize": 5.5}
PREDICTED_LINE: Mapping[str, Any] = {"linestyle": (0, (4, 2.5)), "linewidth": 1.4}
PREDICTED_MARKER: Mapping[str, Any] = {"markersize": 3.5, "markerfacecolor": "white"}
IMPORTED_MARKER: Mapping[str, Any] = {"markersize": 8, "markerfacecolor": "white", "markeredgewidth": 1.6}  # hollow: not ours


@dataclass(frozen=True)
class Look:
    """A colour (hex) and a marker (matplotlib's code)."""

    colour: str
    marker: str


# The implementations that this project compares have their look by name; each other name takes one from the rest by its hash.
_KNOWN: Mapping[str, Look] = {
    "pruned": Look("#0072b2", "o"),
    "known": Look("#0072b2", "o"),
    "unknown": Look("#5e3c99", "s"),
    "unpruned": Look("#d55e00", "s"),
    "torch": Look("#00805d", "^"),
    "liger": Look("#b0568a", "D"),
    "trl": Look("#9a6a00", "v"),
    "torch_compile": Look("#3a8fc4", "P"),
    "cce": Look("#4d4d4d", "p"),
}
_REST = (
    Look("#6a3d9a", "X"),
    Look("#0f7173", "*"),
    Look("#8c2d04", "h"),
    Look("#1b7837", "<"),
    Look("#ae017e", ">"),
    Look("#2c4a6e", "d"),
)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name of one chart: fixed for the known ones, otherwise chosen by the name's hash.

    Names that hash alike take the next free look in alphabetical order, so that no two of a chart of up to six unknown names
    share one; the same names always come out the same.
    """
    chosen: dict[str, Look] = {}
    for name in sorted(set(names)):
        if name in _KNOWN:
            chosen[name] = _KNOWN[name]
            continue
        start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        turn = [_REST[(start + step) % len(_REST)] for step in range(len(_REST))]
        chosen[name] = next((look for look in turn if look not in chosen.values()), turn[0])
    return chosen


@contextmanager
def applied() -> Iterator[None]:
    """Draw in the house style; matplotlib's settings are the caller's own again afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "figure.dpi": DPI,
                "savefig.dpi": DPI,
                "figure.facecolor": "white",
                "font.family": "DejaVu Sans",  # shipped with matplotlib, so a chart is the same on every machine
                "font.size": TEXT,
                "text.color": INK,
                "text.parse_math": False,  # a name may hold dollar signs
                "axes.labelcolor": MUTED,
                "axes.labelsize": TEXT,
                "axes.edgecolor": MUTED,
                "axes.linewidth": 0.8,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "axes.grid": True,
                "axes.grid.axis": "y",
                "grid.color": RULE,
                "grid.linewidth": 0.8,
                "xtick.color": MUTED,
                "ytick.color": MUTED,
                "xtick.labelsize": TICK,
                "ytick.labelsize": TICK,
                "ytick.major.size": 0,
                "lines.solid_capstyle": "round",
            }
        )
        yield
