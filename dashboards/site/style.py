"""The theme as CSS variables: every colour of the charts by its own name, light as drawn and dark as `theme.DARK` has it."""

from __future__ import annotations

from frostline.dashboards import theme

WHITE = "#ffffff"
COLOURS = {
    "page": (WHITE, theme.DARK[WHITE]),
    "ink": (theme.INK, theme.DARK[theme.INK]),
    "muted": (theme.MUTED, theme.DARK[theme.MUTED]),
    "rule": (theme.RULE, theme.DARK[theme.RULE]),
    "tint": ("#f1f3f6", "#20252e"),
    "link": ("#00609a", "#7cc4f2"),
    "bad": ("#a8330a", "#ff9a73"),
    "open": ("#7a5400", "#e0b54c"),
    "good": ("#00694c", "#4fd0a5"),
}
"""What pages are coloured with, in the light and in the dark. A colour says nothing that a word beside it does not."""


def theme_css() -> str:
    """The variables that the pages and the charts in them are coloured with."""
    dark = "".join(f"--c{light.removeprefix('#')}:{shown};" for light, shown in theme.DARK.items())
    plain = "".join(f"--{name}:{light};" for name, (light, _) in COLOURS.items())
    darkened = "".join(f"--{name}:{shown};" for name, (_, shown) in COLOURS.items())
    return (
        f":root{{color-scheme:light dark;{plain}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{darkened}{dark}}}}}\n"
    )
