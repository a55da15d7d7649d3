"""The norms in torch operators: what runs on a CPU and for float64, and what the kernels are checked against.

Contracts are in `tiles`. Rows are walked in slabs that fit a core's cache, in fp32 (fp64 for fp64 inputs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from frostline.kernels.matmul import accumulator_dtype
from frostline.kernels.norm.layout import Needs, Norm

Backward: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]

_SLAB_ELEMENTS = 1 << 18  # 1 MiB in fp32


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, norm: Norm, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Normalise the rows of x (+ residual); see `tiles`."""
    wide = accumulator_dtype(x.dtype)
    columns = x.shape[-1]
    rows = x.numel() // columns
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = None if residual is None else torch.add(x, residual).contiguous()
    stats = torch.empty((1 + norm.centred) * rows, dtype=wide, device=x.device) if keep else None
    source, out = (x if total is None else total).reshape(rows, columns), y.view(rows, columns)
    scale = None if weight is None else weight.to(wide) + norm.offset
    for part in _slabs(rows, columns):
        values = source[part].to(wide)
        if norm.centred:
            mean = values.mean(1)
            values = values - mean[:, None]
            if stats is not None:
                stats[rows:][part] = mean
        rstd = torch.rsqrt(values.square().mean(1) + norm.eps)
        if stats is not None:
            stats[:rows][part] = rstd
        values = values * rstd[:, None]
        if norm.rounded:
            values = values.to(x.dtype).to(wide)
        if scale is not None:
            values *= scale
        if bias is not None:
            values += bias
        out[part] = values
    return y, total, stats


def backward(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor | None, stats: Tensor, norm: Norm, needs: Needs
) -> Backward:
    """The gradients that are asked for; see `tiles`."""
    wide = accumulator_dtype(x.dtype)
    columns = x.shape[-1]
    rows = x.numel() // columns
    source, upstream = x.reshape(rows, columns), dy.reshape(rows, columns)
    beside = None if dtotal is None else dtotal.reshape(rows, columns)
    scale = None if weight is None else weight.to(wide) + norm.offset
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device) if needs.x else None
    dweight = None if needs.weight is None else torch.zeros(columns, dtype=wide, device=x.device)
    dbias = None if needs.bias is None else torch.zeros(columns, dtype=wide, device=x.device)
    for part in _slabs(rows, columns):
        normal, onto_normal = source[part].to(wide), upstream[part].to(wide)
        if norm.centred:
            normal = normal - stats[rows:][part, None]
        rstd = stats[:rows][part, None]
        normal = normal * rstd
        if dweight is not None:
            dweight += (onto_normal * (normal.to(x.dtype).to(wide) if norm.rounded else normal)).sum(0)
        if dbias is not None:
            dbias += onto_normal.sum(0)
        if dx is None:
            continue
        if scale is not None:
            onto_normal = onto_normal * scale
        gradient = onto_normal - normal * (onto_normal * normal).mean(1, keepdim=True)
        if norm.centred:
            gradient -= onto_normal.mean(1, keepdim=True)
        gradient *= rstd
        if beside is not None:
            gradient += beside[part]
        dx.view(rows, columns)[part] = gradient
    return dx, _as(dweight, needs.weight), _as(dbias, needs.bias)


def planned_backward(x: Tensor, weight: Tensor | None, norm: Norm, needs: Needs) -> Callable[..., Backward]:
    """The backward of a forward of `x`: there is nothing to prepare."""
    del x, weight
    return partial(backward, norm=norm, needs=needs)


def _as(gradient: Tensor | None, dtype: torch.dtype | None) -> Tensor | None:
    return gradient if gradient is None or dtype is None else gradient.to(dtype)


def _slabs(rows: int, columns: int) -> Iterator[slice]:
    height = max(1, _SLAB_ELEMENTS // columns)
    for first in range(0, rows, height):
        yield slice(first, min(first + height, rows))
