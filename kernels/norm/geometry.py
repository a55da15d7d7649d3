"""How a norm's rows are laid on a GPU: tiles of rows, chunks of columns, programs. Pure functions of sizes.

A tile is what one program holds in registers at a time. The same tile serves a backward with and without parameter gradients,
so that sums over a row are formed in the same order and the input's gradient is the same bit for bit. Figures are from sweeps
on an NVIDIA H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

WIDEST = 16384  # columns that a tile may have
_CHUNK = 4096  # columns of a chunk of a wider row
_TILE = 4096  # elements of a tile of several rows
_LEAST_BLOCK = 16


@dataclass(frozen=True)
class Tile:
    """The part of a matrix [rows, columns] that one program holds.

    Attributes:
        rows: how many rows; 1 where rows are cut into chunks.
        block: a power of two, the columns of the tile.
        chunks: in how many a row is cut; 1 where a tile holds whole rows.
        warps: of 32 threads, that share a tile.
    """

    rows: int
    block: int
    chunks: int
    warps: int

    @property
    def padded_chunks(self) -> int:
        """The number of chunks as a power of two."""
        return _power_of_two(self.chunks)


@cache
def tile_of(columns: int, itemsize: int) -> Tile:
    """The tile for rows of `columns` elements of `itemsize` bytes."""
    if columns > WIDEST * 2 // max(itemsize, 2):
        return Tile(1, _CHUNK, -(-columns // _CHUNK), 8)
    block = max(_LEAST_BLOCK, _power_of_two(columns))
    if block >= _TILE:
        return Tile(1, block, 1, min(32, block // 512))
    return Tile(max(1, min(_TILE // block, 64)), block, 1, 4)


def walkers(tile: Tile, rows: int, multiprocessors: int, parameters: int) -> int:
    """How many programs walk the tiles of a backward.

    Without a parameter's gradient there is nothing to keep from one tile to the next: a program each. With one, as many as are
    on the device at the same time: more would only write more partial rows.
    """
    tiles = -(-rows // tile.rows)
    if not parameters:
        return tiles
    resident = max(1, 16 // tile.warps)
    return max(1, min(tiles, multiprocessors * resident // min(tile.chunks, resident)))


def loads_ahead(tile: Tile, parameters: int) -> bool:
    """Whether a program of a backward asks for its next tile before it works on this one: where it has a next one."""
    return parameters > 0 and tile.rows * tile.block <= 1 << 14


def reduction(programs: int) -> tuple[int, int, int]:
    """(columns, depth, warps) of a program that adds `programs` partial rows."""
    return 32, 32 if programs <= 64 else 64, 4


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
