"""An empty step in a process that has imported torch, as most suites do."""

from __future__ import annotations

from collections.abc import Callable

import torch

from frostline.harness import suite

torch.set_grad_enabled(True)  # its default: the import has a use


@suite()
def with_torch(_implementation: str, _device: str) -> Callable[[], None]:
    """A step that does nothing, whichever torch it is beside."""
    return lambda: None
