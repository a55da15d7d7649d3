"""Three steps of about a millisecond, made of a hundred equal units each, so that a slowdown can be planted to the percent."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the same for every tool, however it starts its processes

import numpy as np

UNITS = 100
EXTRA = 0


def gemm():
    """Small matrix products: bound by arithmetic."""
    left, right, product = _aligned((100, 100), (100, 100), (100, 100))
    np.random.default_rng(0).standard_normal(dtype=np.float32, out=left)
    right[:] = left.T

    def step():
        for _ in range(UNITS + EXTRA):
            np.matmul(left, right, out=product)

    return step


def norm():
    """RMS norm of 6.5 MB, a unit being a row: bound by memory beyond the second cache."""
    rows, width = UNITS + EXTRA, 16_320
    hidden, normed = _aligned((rows, width), (rows, width))
    np.random.default_rng(0).standard_normal(dtype=np.float32, out=hidden)

    def step():
        squares = np.einsum("ij,ij->i", hidden, hidden)
        np.multiply(hidden, (1 / np.sqrt(squares / width))[:, None], out=normed)

    return step


def python():
    """A loop over numbers: bound by the interpreter."""

    def step():
        total = 0
        for number in range(150 * (UNITS + EXTRA)):
            total = (total * 31 + number) % 65_521
        return total

    return step


def _aligned(*shapes):
    """Arrays of float32 one after the other in one piece of memory, each at a cache line's start.

    Where the allocator happens to put arrays decides up to 10 % of a small product's time, which would drown what is planted.
    """
    sizes = [-(-4 * rows * columns // 64) * 64 for rows, columns in shapes]
    memory = np.zeros(sum(sizes) + 64, dtype=np.uint8)
    start, arrays = -memory.ctypes.data % 64, []
    for (rows, columns), size in zip(shapes, sizes, strict=True):
        arrays.append(memory[start : start + 4 * rows * columns].view(np.float32).reshape(rows, columns))
        start += size
    return arrays
