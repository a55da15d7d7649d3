"""The geometry of a fused product: output tiles, and the partial figures that its programs leave for each row."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

ROWS, COLUMNS = 128, 256  # of an output tile: what one program holds in registers


class Partials(NamedTuple):
    """Views of a workspace, each [column tiles, rows] but the flag, a single element. Where the best column is not asked for,
    `best` and `best_column` are stand-ins that are not written to."""

    maxima: Tensor
    sums: Tensor
    moments: Tensor
    best: Tensor
    best_column: Tensor
    flag: Tensor


def workspace_size(rows: int, width: int, *, best: bool = False) -> int:
    """Elements of the workspace of a product of `rows` rows and `width` columns: partial figures, and a flag."""
    return _figures(best) * rows * -(-width // COLUMNS) + 1


def partials(workspace: Tensor, rows: int, width: int, *, best: bool = False) -> Partials:
    """The partial figures of a product, in a workspace of `workspace_size` elements."""
    tiles, count = -(-width // COLUMNS), _figures(best)
    maxima, sums, moments, *rest = workspace[: count * tiles * rows].view(count, tiles, rows).unbind(0)
    value, column = rest or (maxima, maxima)
    return Partials(maxima, sums, moments, value, column, workspace[-1:])


def _figures(best: bool) -> int:
    return 5 if best else 3
