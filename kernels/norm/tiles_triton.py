"""The norms on a GPU, the host's side: memory, grids and launches of `kernels_triton`. Contracts are in `tiles`.

For a small norm the host takes longer than the GPU, so a call does as little as it can: what follows from dtypes, the number
of columns and what needs a gradient is made once (`_Forward`, `_Backward`) and looked up by that key. The number of rows,
addresses and strides are all that is new in a call.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from frostline.kernels.launch import Launcher
from frostline.kernels.layout import laid_out
from frostline.kernels.norm import geometry
from frostline.kernels.norm import kernels_triton as kernels
from frostline.kernels.norm.geometry import Gpu, most_walkers, reduction, tile_of, walk_of, walkers
from frostline.kernels.norm.layout import Needs, Norm

LEAST_SHARED = 48 * 1024  # bytes that every GPU lets a program have
_MOST_STEP = 8  # elements: 16 bytes of the narrowest dtype


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, norm: Norm, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Normalise the rows of x (+ residual); see `tiles`."""
    x, x_stride = laid_out(x)
    columns = x.shape[-1]
    bits = columns | x_stride
    residual_stride = 0
    if residual is not None:
        residual, residual_stride = laid_out(residual)
        bits |= residual_stride
    key = (
        columns, x.dtype, residual is not None, None if weight is None else weight.dtype, None if bias is None else bias.dtype,
        norm, keep, _step(bits), x.get_device(),
    )  # fmt: skip
    plan = _forwards.get(key)
    if plan is None:
        plan = _forwards[key] = _Forward(*key)
    return plan(x, residual, weight, bias, x_stride, residual_stride)


def backward(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor | None, stats: Tensor, norm: Norm, needs: Needs
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients that are asked for; see `tiles`."""
    x, x_stride = laid_out(x)
    dy, dy_stride = laid_out(dy)
    columns = x.shape[-1]
    bits = columns | x_stride | dy_stride
    dtotal_stride = 0
    if dtotal is not None:
        dtotal, dtotal_stride = laid_out(dtotal)
        bits |= dtotal_stride
    key = (
        columns, x.dtype, dy.dtype, None if dtotal is None else dtotal.dtype, None if weight is None else weight.dtype,
        norm, needs, _step(bits), x.get_device(),
    )  # fmt: skip
    plan = _backwards.get(key)
    if plan is None:
        plan = _backwards[key] = _Backward(*key)
    return plan(dy, dtotal, x, weight, stats, dy_stride, dtotal_stride, x_stride)


class ContiguousBackward:
    """A backward for operands that lie as they mostly do: contiguous, the upstream gradient of x's dtype."""

    __slots__ = ("_columns", "_constants", "_dtype", "_plan")

    def __init__(
        self, columns: int, dtype: torch.dtype, weight: torch.dtype | None, norm: Norm, needs: Needs, device: int
    ) -> None:
        self._columns, self._dtype, self._constants = columns, dtype, (norm, needs)
        self._plan = _Backward(columns, dtype, dtype, None, weight, norm, needs, _step(columns), device)

    def __call__(
        self, dy: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor | None, stats: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """As `backward`, which is asked where operands lie otherwise."""
        if dtotal is None and dy.dtype is self._dtype and dy.is_contiguous() and x.is_contiguous():
            columns = self._columns
            return self._plan(dy, None, x, weight, stats, columns, 0, columns)
        return backward(dy, dtotal, x, weight, stats, *self._constants)


def planned_backward(x: Tensor, weight: Tensor | None, norm: Norm, needs: Needs) -> ContiguousBackward:
    """The backward of a forward of `x`, made once for all calls alike."""
    key = (x.shape[-1], x.dtype, None if weight is None else weight.dtype, norm, needs, x.get_device())
    plan = _planned.get(key)
    if plan is None:
        plan = _planned[key] = ContiguousBackward(*key)
    return plan


class _Forward:
    """A forward of one configuration."""

    def __init__(
        self, columns: int, dtype: torch.dtype, adds: bool, weight: torch.dtype | None, bias: torch.dtype | None,
        norm: Norm, keep: bool, step: int, device: int,
    ) -> None:  # fmt: skip
        self._columns, self._keep, self._scalars = columns, keep, (norm.eps, norm.offset)
        self._tile = tile = tile_of(columns, dtype.itemsize)
        self._figures = 1 + norm.centred  # that are kept of a row, or of its chunks
        chunked = tile.chunks > 1
        shape = {"COLUMNS": columns, "ROWS": tile.rows, "BLOCK": tile.block, "STEP": step, "CHUNKS": tile.chunks}
        flags = {
            "PADDED": tile.padded_chunks, "CENTRED": norm.centred, "ROUNDED": norm.rounded,
            "HAS_RESIDUAL": adds and not chunked, "HAS_WEIGHT": weight is not None, "HAS_BIAS": bias is not None, "KEEP": keep,
        }  # fmt: skip
        self._launch = Launcher(kernels.forward_kernel, shape | flags, tile.warps, device)
        del shape["ROWS"]
        flags = {"CENTRED": norm.centred, "HAS_RESIDUAL": adds}
        self._launch_sums = Launcher(kernels.forward_sums_kernel, shape | flags, tile.warps, device) if chunked else None

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        x_stride: int,
        residual_stride: int,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        tile, sums = self._tile, None
        rows = x.numel() // self._columns
        y = _empty_like(x)
        total = None if residual is None else _empty_like(x)
        stats = x.new_empty(self._figures * rows, dtype=torch.float32) if self._keep else None
        if rows and self._launch_sums is not None:
            sums = x.new_empty(self._figures * tile.chunks * rows, dtype=torch.float32)
            self._launch_sums(rows, tile.chunks, (x, residual, sums, total), (rows, x_stride, residual_stride))
            if total is not None:
                x, residual, x_stride = total, None, self._columns
        if rows:
            written = total if residual is not None else None
            self._launch(
                -(-rows // tile.rows), tile.chunks, (x, residual, weight, bias, sums, y, written, stats),
                (rows, x_stride, residual_stride, *self._scalars),
            )  # fmt: skip
        return y, total, stats


class _Backward:
    """A backward of one configuration."""

    def __init__(
        self, columns: int, dtype: torch.dtype, upstream: torch.dtype, total: torch.dtype | None, weight: torch.dtype | None,
        norm: Norm, needs: Needs, step: int, device: int,
    ) -> None:  # fmt: skip
        self._columns, self._offset, self._needs = columns, norm.offset, needs
        self._tile = tile = tile_of(columns, dtype.itemsize)
        self._sums = (1 + norm.centred) * tile.chunks
        shape = {"COLUMNS": columns, "ROWS": tile.rows, "BLOCK": tile.block, "STEP": step, "CHUNKS": tile.chunks}
        flags = {"PADDED": tile.padded_chunks, "CENTRED": norm.centred}
        has = {"HAS_TOTAL": total is not None, "HAS_WEIGHT": weight is not None}
        self._parameters = (needs.weight is not None) + (needs.bias is not None)
        if self._parameters:
            loaded, gpu = dtype.itemsize + upstream.itemsize + (0 if total is None else total.itemsize), gpu_of(device)
            self._most = most_walkers(tile, loaded, gpu)
            self._reduce = _Reduction(columns, needs, device)
            asked = {"NEED_X": needs.x, "NEED_WEIGHT": needs.weight is not None, "NEED_BIAS": needs.bias is not None}
            constants = shape | flags | {"ROUNDED": norm.rounded} | has | asked | {"STAGES": walk_of(tile, loaded, gpu)[1]}
            self._launch = Launcher(kernels.backward_walk_kernel, constants, tile.warps, device)
        else:
            self._launch = Launcher(kernels.backward_kernel, shape | flags | has, tile.warps, device)
        del shape["ROWS"]
        flags = {"CENTRED": norm.centred, "HAS_WEIGHT": weight is not None}
        chunked = tile.chunks > 1 and needs.x
        self._launch_sums = Launcher(kernels.backward_sums_kernel, shape | flags, tile.warps, device) if chunked else None

    def __call__(
        self, dy: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor | None, stats: Tensor,
        dy_stride: int, dtotal_stride: int, x_stride: int,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
        tile, sums = self._tile, None
        rows = x.numel() // self._columns
        dx = _empty_like(x) if self._needs.x else None
        if not rows:
            dweight, dbias = (None if dtype is None else x.new_zeros(self._columns, dtype=dtype) for dtype in self._needs[1:])
            return dx, dweight, dbias
        if self._launch_sums is not None:
            sums = x.new_empty(self._sums * rows, dtype=torch.float32)
            self._launch_sums(rows, tile.chunks, (dy, x, weight, stats, sums), (rows, dy_stride, x_stride, self._offset))
        scalars = (rows, dy_stride, dtotal_stride, x_stride, self._offset)
        tiles = -(-rows // tile.rows)
        if not self._parameters:
            self._launch(tiles, tile.chunks, (dy, dtotal, x, weight, stats, sums, dx), scalars)
            return dx, None, None
        programs = walkers(tiles, self._most)
        partials = x.new_empty(programs * self._parameters * self._columns, dtype=torch.float32)
        self._launch(programs, tile.chunks, (dy, dtotal, x, weight, stats, sums, dx, partials), scalars)
        return dx, *self._reduce(partials, programs)


class _Reduction:
    """The sum of the partial rows of the parameters' gradients."""

    def __init__(self, columns: int, needs: Needs, device: int) -> None:
        self._columns, (_, self._weight, self._bias) = columns, needs
        self._parameters = (needs.weight is not None) + (needs.bias is not None)
        block, depth, warps = reduction(columns)
        self._across = -(-columns // block)
        sizes = {"COLUMNS": columns, "BLOCK": block, "DEPTH": depth}
        flags = {"NEED_WEIGHT": needs.weight is not None, "NEED_BIAS": needs.bias is not None}
        self._launch = Launcher(kernels.reduce_kernel, sizes | flags, warps, device)

    def __call__(self, partials: Tensor, programs: int) -> tuple[Tensor | None, Tensor | None]:
        """(d weight, d bias) from [programs, parameters, columns]."""
        dweight = None if self._weight is None else partials.new_empty(self._columns, dtype=self._weight)
        dbias = None if self._bias is None else partials.new_empty(self._columns, dtype=self._bias)
        self._launch(self._across, self._parameters, (partials, dweight, dbias), (programs,))
        return dweight, dbias


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x) if x.is_contiguous() else x.new_empty(x.shape)


def _step(bits: int) -> int:
    """The power of two, up to a vector load's, that all strides are multiples of; `bits` are the strides, joined by or."""
    return min(bits & -bits, _MOST_STEP)


@cache
def gpu_of(device: int) -> Gpu:
    """What a walk must know of a device, asked once; the interpreter's has few multiprocessors, each of which walks far."""
    if device < 0:
        return Gpu(3, geometry.H200.shared_bytes, geometry.H200.registers)
    found = torch.cuda.get_device_properties(device)
    return Gpu(
        int(found.multi_processor_count),
        int(getattr(found, "shared_memory_per_block_optin", LEAST_SHARED)),
        int(getattr(found, "regs_per_multiprocessor", geometry.H200.registers)),
    )


_forwards: dict[object, _Forward] = {}
_backwards: dict[object, _Backward] = {}
_planned: dict[object, ContiguousBackward] = {}
