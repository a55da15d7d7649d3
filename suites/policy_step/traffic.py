"""What this package's head declares that its ops read and write: the suites' hook for the cost model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frostline.kernels import matmul
from frostline.kernels.lm_head import fused, tiles


def traffic_of_head() -> dict[Any, Callable[..., int]]:
    """Bytes by op, each from the op's arguments."""
    return {**matmul.TRAFFIC, **tiles.TRAFFIC, **fused.TRAFFIC}
