"""A norm's forward and backward as registered ops, and the shorter way to the same functions.

`forward(x, residual, weight, bias, norm, keep) -> (y, total, stats)` normalises the rows of `x` [..., D], or of `total` = x +
residual, rounded to their dtype as a separate addition would be. `stats` is fp32 (fp64 for fp64): 1 / deviation of every row
and then, of a centred norm, the mean of every row; None unless `keep`.

`backward(dy, dtotal, x, weight, stats, norm, needs) -> (dx, d weight, d bias)` is its vector-Jacobian product, `x` being what
was normalised; `dtotal`, the gradient that reaches `total` from elsewhere, is added to `dx`. What `needs` does not ask for is
None, and neither computed nor allocated; the parameters' gradients are summed in fp32 and rounded once.

On the CPU and for float64 they are torch operators (`tiles_torch`), on CUDA Triton kernels (`tiles_triton`, imported at the
first launch). `torch.ops.frostline.norm` and `norm_backward` are the same for whoever must see an operator: the compiler, fake
tensors, dispatch modes. An operator cannot leave a result out: what is not asked for is empty there. Dispatch costs a few
microseconds of the host's time, so plain tensors outside of all that go past it (`backends.plain`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from frostline.kernels.backends import Backends
from frostline.kernels.matmul import accumulator_dtype
from frostline.kernels.norm import tiles_torch
from frostline.kernels.norm.geometry import most_walkers, tile_of, walkers
from frostline.kernels.norm.layout import Needs, Norm
from frostline.kernels.traffic import size_of

Forward: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]
Backward: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]

_NORM = "float eps, float offset, bool centred, bool rounded"
_SCHEMAS = {
    "norm": f"(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, {_NORM}, bool keep)"
    " -> (Tensor y, Tensor total, Tensor stats)",
    "norm_backward": f"(Tensor dy, Tensor? dtotal, Tensor x, Tensor? weight, Tensor stats, {_NORM}, bool needs_x,"
    " ScalarType? needs_weight, ScalarType? needs_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)",
}
_backends = Backends(tiles_torch, "frostline.kernels.norm.tiles_triton")
interpreted, _tiles = _backends.interpreted, _backends.of


def forward(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, norm: Norm, keep: bool) -> Forward:
    """Normalise rows of plain tensors (see the module)."""
    return _tiles(x).forward(x, residual, weight, bias, norm, keep)  # type: ignore[no-any-return]  # a module's attribute


def backward(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor | None, stats: Tensor, norm: Norm, needs: Needs
) -> Backward:
    """The gradients that are asked for, of plain tensors (see the module)."""
    return _tiles(x).backward(dy, dtotal, x, weight, stats, norm, needs)  # type: ignore[no-any-return]  # a module's attribute


def planned_backward(x: Tensor, weight: Tensor | None, norm: Norm, needs: Needs) -> Callable[..., Backward]:
    """`backward` for all that a forward of `x` knows of it: to be called with (dy, dtotal, x, weight, stats)."""
    return _tiles(x).planned_backward(x, weight, norm, needs)  # type: ignore[no-any-return]  # a module's attribute


def _norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    eps: float, offset: float, centred: bool, rounded: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    y, total, stats = forward(x, residual, weight, bias, Norm(eps, offset, centred, rounded), keep)
    return y, _or_empty(total, x), _or_empty(stats, x)


def _norm_backward(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor | None, stats: Tensor,
    eps: float, offset: float, centred: bool, rounded: bool,
    needs_x: bool, needs_weight: torch.dtype | None, needs_bias: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    needs = Needs(needs_x, needs_weight, needs_bias)
    dx, dweight, dbias = backward(dy, dtotal, x, weight, stats, Norm(eps, offset, centred, rounded), needs)
    return _or_empty(dx, x), _or_empty(dweight, x), _or_empty(dbias, x)


def _norm_fake(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    eps: float, offset: float, centred: bool, rounded: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    del weight, bias, eps, offset, rounded
    rows = x.numel() // x.shape[-1]
    return (
        x.new_empty(x.shape),
        x.new_empty(0 if residual is None else x.shape),
        x.new_empty((1 + centred) * rows if keep else 0, dtype=accumulator_dtype(x.dtype)),
    )


def _norm_backward_fake(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor | None, stats: Tensor,
    eps: float, offset: float, centred: bool, rounded: bool,
    needs_x: bool, needs_weight: torch.dtype | None, needs_bias: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    del dy, dtotal, weight, stats, eps, offset, centred, rounded
    dweight, dbias = (
        x.new_empty(0) if dtype is None else x.new_empty(x.shape[-1], dtype=dtype) for dtype in (needs_weight, needs_bias)
    )
    return x.new_empty(x.shape if needs_x else 0), dweight, dbias


def _or_empty(result: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if result is None else result


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, residual, weight, bias, *constants, _ = inputs
    _, total, stats = output
    ctx.save_for_backward(x if residual is None else total, weight, stats)
    ctx.constants = constants
    ctx.dtypes = (None if weight is None else weight.dtype, None if bias is None else bias.dtype)
    ctx.added = residual is not None
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dy: Tensor | None, dtotal: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, stats = ctx.saved_tensors
    needs = needs_of(ctx.needs_input_grad, ctx.added, *ctx.dtypes)
    constants = (None,) * 5
    if dy is None:
        return dtotal, dtotal if ctx.added else None, None, None, *constants
    dx, dweight, dbias = seen_backward(dy, dtotal if ctx.added else None, x, weight, stats, Norm(*ctx.constants), needs)
    return dx, dx if ctx.added else None, dweight, dbias, *constants


def needs_of(needed: tuple[bool, ...], added: bool, weight: torch.dtype | None, bias: torch.dtype | None) -> Needs:
    """What is asked for, from autograd's `needs_input_grad` of (x, residual, weight, bias)."""
    return Needs(needed[0] or (added and needed[1]), weight if needed[2] else None, bias if needed[3] else None)


def seen_forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, norm: Norm, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """(y, total) through the operator, which autograd, the compiler and dispatch modes see."""
    y, total, _ = torch.ops.frostline.norm.default(x, residual, weight, bias, *norm, keep)
    return y, None if residual is None else total


def seen_backward(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor | None, stats: Tensor, norm: Norm, needs: Needs
) -> Backward:
    """`backward` through the operator."""
    dx, dweight, dbias = torch.ops.frostline.norm_backward.default(dy, dtotal, x, weight, stats, *norm, *needs)
    return dx if needs.x else None, None if needs.weight is None else dweight, None if needs.bias is None else dbias


def _no_second_derivative(*_: Any) -> None:
    raise RuntimeError("a norm has no second derivative here: take a penalty of gradients on torch's own norms")


_library = torch.library.Library("frostline", "FRAGMENT")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema)
for _key in ("CPU", "CUDA"):
    _library.impl("norm", _norm, _key)
    _library.impl("norm_backward", _norm_backward, _key)
_library.impl("norm", _norm_fake, "Meta")
_library.impl("norm_backward", _norm_backward_fake, "Meta")
torch.library.register_autograd("frostline::norm", _differentiate, setup_context=_setup, lib=_library)
torch.library.register_autograd("frostline::norm_backward", _no_second_derivative, lib=_library)


def _norm_bytes(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    eps: float, offset: float, centred: bool, rounded: bool, keep: bool,
) -> int:  # fmt: skip
    """The rows are read and written, of a sum twice; in chunks they are read once more, with the sums of each chunk."""
    del eps, offset, rounded
    whole, figures = x.numel() * x.element_size(), _figures(x, centred)
    moved = size_of(x, residual, weight, bias) + whole * (1 + (residual is not None)) + (figures if keep else 0)
    chunks = tile_of(x.shape[-1], x.element_size()).chunks
    return moved if chunks == 1 else moved + whole + 2 * chunks * figures


def _norm_backward_bytes(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor | None, stats: Tensor,
    eps: float, offset: float, centred: bool, rounded: bool,
    needs_x: bool, needs_weight: torch.dtype | None, needs_bias: torch.dtype | None,
) -> int:  # fmt: skip
    """What is read and the gradients; in chunks most is read once more, with the sums of each chunk; and the partial rows.

    Those are as many as an H200 has programs for.
    """
    del eps, offset, rounded
    rows, columns, tile = x.numel() // x.shape[-1], x.shape[-1], tile_of(x.shape[-1], x.element_size())
    read, asked = size_of(dy, x, weight, stats), [one for one in (needs_weight, needs_bias) if one is not None]
    moved = read + columns * sum(dtype.itemsize for dtype in asked)
    if needs_x:
        moved += size_of(dtotal) + x.numel() * x.element_size()
        if tile.chunks > 1:
            moved += read + 2 * tile.chunks * _figures(x, centred)
    if asked and rows:
        loaded = dy.element_size() + x.element_size() + (0 if dtotal is None else dtotal.element_size())
        programs = walkers(-(-rows // tile.rows), most_walkers(tile, loaded))
        moved += 2 * 4 * programs * len(asked) * columns
    return moved


def _figures(x: Tensor, centred: bool) -> int:
    """Bytes of the statistics of all rows."""
    return (1 + centred) * (x.numel() // x.shape[-1]) * accumulator_dtype(x.dtype).itemsize


# Bytes that an op's Triton kernels read and write, from its arguments (`frostline.kernels.traffic`).
TRAFFIC: dict[Any, Callable[..., int]] = {
    torch.ops.frostline.norm: _norm_bytes,
    torch.ops.frostline.norm_backward: _norm_backward_bytes,
}
