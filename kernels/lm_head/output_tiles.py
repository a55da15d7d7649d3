"""The geometry of a fused product: output tiles, and the partial figures that its programs leave for each row."""

from __future__ import annotations

from torch import Tensor

ROWS, COLUMNS = 128, 256  # of an output tile: what one program holds in registers


def workspace_size(rows: int, width: int) -> int:
    """Elements of the workspace of a product of `rows` rows and `width` columns: three partial figures, and a flag."""
    return 3 * rows * -(-width // COLUMNS) + 1


def partials(workspace: Tensor, rows: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(maxima, sums, moments), each [column tiles, rows], and the flag of a workspace."""
    tiles = -(-width // COLUMNS)
    maxima, sums, moments = workspace[: 3 * tiles * rows].view(3, tiles, rows)
    return maxima, sums, moments, workspace[-1:]
