"""How a norm's rows are laid on a GPU: tiles of rows, chunks of columns, programs. Pure functions of sizes.

A tile is what one program holds in registers at a time. The same tile serves a backward with and without parameter gradients,
so that sums over a row are formed in the same order and the input's gradient is the same bit for bit. Figures are from sweeps
in bf16 on an NVIDIA H200, backwards with and without parameter gradients, at 256, 4096 and 8192 columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

_RESERVE = 4096  # bytes of shared memory for what the sums over a row exchange
_THREAD = 128  # registers of a thread that walks

WIDEST = 16384  # columns that a tile may have
_CHUNK = 4096  # columns of a chunk of a wider row
_TILE = 4096  # elements of a tile of several rows
_LEAST_BLOCK = 16
_SHARED_BY_8_WARPS = 16384  # bytes of a row: with more, a thread would hold too much of it


@dataclass(frozen=True)
class Gpu:
    """What of a GPU a walk depends on.

    Attributes:
        multiprocessors: how many.
        shared_bytes: of memory that one program may have for itself and its loads.
        registers: of 4 bytes, on a multiprocessor.
    """

    multiprocessors: int
    shared_bytes: int
    registers: int


H200 = Gpu(132, 227 * 1024, 65536)
"""What the figures are from, and what is assumed where no GPU is asked."""


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
        return Tile(1, block, 1, 8 if block * itemsize <= _SHARED_BY_8_WARPS else min(32, block // 512))
    return Tile(max(1, min(_TILE // block, 64)), block, 1, 4)


def walk_of(tile: Tile, loaded: int, gpu: Gpu = H200) -> tuple[int, int]:
    """How a backward with parameter gradients walks the tiles: (programs on a multiprocessor, stages of the loads).

    Args:
        tile: what a program holds at a time.
        loaded: the bytes that it loads for each element of it.
        gpu: fewer stages where its shared memory has no room for three of tiles, fewer programs where its registers have none.
    """
    programs = 2 if tile.rows > 1 else 1 if tile.block > _TILE else 16 // tile.warps
    programs = min(programs, gpu.registers // (32 * tile.warps * _THREAD))
    stages = (gpu.shared_bytes - _RESERVE) // (tile.rows * tile.block * loaded)
    return max(1, programs), max(1, min(3, stages))


def most_walkers(tile: Tile, loaded: int, gpu: Gpu = H200) -> int:
    """How many programs may walk the tiles, of which each has a chunk: as many as the GPU has room for."""
    return max(1, gpu.multiprocessors * walk_of(tile, loaded, gpu)[0] // tile.chunks)


def walkers(tiles: int, most: int) -> int:
    """How many programs, at most `most`, walk the tiles: as few as let the largest share be as small as it can be.

    More would only write more partial rows.
    """
    return -(-tiles // -(-tiles // most))


def reduction(columns: int) -> tuple[int, int, int]:
    """(columns, depth, warps) of a program that adds partial rows: enough programs for the device, then enough depth."""
    block = 32 if columns >= 4096 else 8
    return block, 4096 // block, 4


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
