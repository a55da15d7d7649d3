"""An empty step beside which nothing was imported: what a suite without torch is at least."""

from __future__ import annotations

from collections.abc import Callable

from frostline.harness import suite


@suite()
def nothing(_implementation: str, _device: str) -> Callable[[], None]:
    """A step that does nothing."""
    return lambda: None
