"""The elementwise work on a tile of logits, as registered ops of `torch.ops.frostline`.

A tile is `x` [rows, width], fp32 (fp64): raw products of a row block with a slice of the vocabulary that begins at `start`. The
ops add the bias, apply the `Transform` (inner, outer, capped) and keep per-row statistics, all [rows] in the tile's dtype:

- `target_logit`: z at the target, from the weight's own row; NaN where the target is no column of the vocabulary.
- `reference`: begins as the target's logit and is moved up to the maximum of the others' where those exceed it.
- `total`: sum of exp(z - reference), `moment`: sum of (z - reference) * exp(z - reference), both over all columns but the
  target's, both 0 to begin with. Where the target holds nearly all probability, 1 - p_target is what gradients depend on:
  total / (total + exp(target_logit - reference)) has it to full precision, a difference from 1 would not.
- `best`: [2, rows], the largest z of all columns so far, the target's included, and its column: the first of equals. Begins as
  -inf.
- `spread`: sum of w_j (z_j - target_logit) over the columns, w their `column_weight` (None: 1). Begins as 0.
- a row whose target is `INACTIVE` does not count: its gradients and probabilities are exact zeros (`gradient_tile`,
  `fold_tile`, `finish_rows`) whatever its logits hold, its `rescale` is 1, its other statistics have no meaning.

On the CPU they are torch operators working in slabs that fit a cache (`tiles_torch`), on CUDA Triton kernels (`tiles_triton`,
imported at the first launch). Registered with `Library.define`/`impl`, whose calls cost a tenth of `custom_op`'s. All ops write
in place and return nothing, so that what they allocate is seen by any tracker of torch's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from frostline.kernels.lm_head import tiles_torch
from frostline.kernels.traffic import size_of

INACTIVE = tiles_torch.INACTIVE

_SCALARS = "float inner, float outer, bool capped"
_SCHEMAS = {
    # Write the transformed logit of each row's target to `out`, 0 for inactive rows.
    "target_logits": f"(Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, Tensor(a!) out, {_SCALARS}) -> ()",
    # Fold a tile into reference, total and, if given, moment and best.
    "reduce_tile": "(Tensor x, Tensor? bias, Tensor targets, Tensor(a!) reference, Tensor(b!) total, Tensor(c!)? moment,"
    f" Tensor(d!)? best, int start, {_SCALARS}) -> ()",
    # The same, and write exp(z - reference) * (dz/dx / steepest), 0 at the target, to `p` (None: over x, which is scratch
    # either way). `reference` moves only when a tile exceeds it by more than `limit`; `rescale` is what the sums of earlier
    # tiles must then be multiplied by, else 1.
    "fold_tile": "(Tensor(a!) x, Tensor? bias, Tensor targets, Tensor(b!)? p, Tensor(c!) reference, Tensor(d!) total,"
    f" Tensor(e!)? moment, Tensor(f!)? best, Tensor(g!) rescale, int start, float limit, {_SCALARS}) -> ()",
    # Write d loss / d x to `out` (None: over x, which is scratch either way), where log p = z - reference - log_total and
    #   d loss / d z_j = onto_p p_j, or at_target in the target's column, where a rounded p has too few digits;
    #                    - grad_entropy p_j (log p_j + entropy) and + onto_all w_j, of those that are given.
    "gradient_tile": "(Tensor(a!) x, Tensor? bias, Tensor targets, Tensor reference, Tensor log_total, Tensor at_target,"
    " Tensor onto_p, Tensor? grad_entropy, Tensor? entropy, Tensor? onto_all, Tensor? column_weight, Tensor(b!)? out,"
    f" int start, {_SCALARS}) -> ()",
    # Add a tile to `spread`.
    "spread_tile": "(Tensor x, Tensor? bias, Tensor targets, Tensor target_logit, Tensor? column_weight, Tensor(a!) spread,"
    f" int start, {_SCALARS}) -> ()",
    # Multiply row r of values by factor[r].
    "rescale_rows": "(Tensor(a!) values, Tensor factor) -> ()",
    # Write values[r] * factor[r], rounded once, to row r of out. A factor expanded from a scalar is read as such.
    "scaled_rows": "(Tensor values, Tensor factor, Tensor(a!) out) -> ()",
    # Write onto_target[r] * weight[targets[r]] - onto_mean[r] * mean[r] to row r of out, zeros for inactive rows.
    "finish_rows": "(Tensor mean, Tensor weight, Tensor targets, Tensor onto_target, Tensor onto_mean, Tensor(a!) out) -> ()",
}

_cpu_tiles: ModuleType = tiles_torch


@contextmanager
def interpreted() -> Iterator[None]:
    """Run the Triton tiles on CPU tensors, in Triton's interpreter: TRITON_INTERPRET=1 must be set before they are imported."""
    global _cpu_tiles
    from frostline.kernels.lm_head import tiles_triton

    before, _cpu_tiles = _cpu_tiles, tiles_triton
    try:
        yield
    finally:
        _cpu_tiles = before


def _on_cpu(name: str) -> Callable[..., None]:
    def call(*args: Any) -> None:
        getattr(_cpu_tiles, name)(*args)

    return call


def _on_cuda(name: str) -> Callable[..., None]:
    def call(*args: Any) -> None:
        if args[0].dtype == torch.float64:  # scalars reach a Triton kernel as fp32: not enough for float64
            getattr(tiles_torch, name)(*args)
            return
        from frostline.kernels.lm_head import tiles_triton

        with torch.cuda.device_of(args[0]):  # Triton launches on the current device
            getattr(tiles_triton, name)(*args)

    return call


def _fake(*_: Any) -> None:
    """The ops write in place and allocate nothing."""


_library = torch.library.Library("frostline", "FRAGMENT")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema)
    _library.impl(_name, _on_cpu(_name), "CPU")
    _library.impl(_name, _on_cuda(_name), "CUDA")
    _library.impl(_name, _fake, "Meta")


def _target_logits_bytes(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, out: Tensor, *_: Any) -> int:
    """The hidden states, as many rows of the weight (and elements of the bias), the targets; a logit each."""
    picked = hidden.shape[0] * ((weight.shape[1] * weight.element_size()) + (0 if bias is None else bias.element_size()))
    return size_of(hidden, targets, out) + picked


def _reduce_tile_bytes(
    x: Tensor, bias: Tensor | None, targets: Tensor, reference: Tensor, total: Tensor, moment: Tensor | None,
    best: Tensor | None, *_: Any,
) -> int:  # fmt: skip
    """A tile is read once; of its rows, statistics are read and written."""
    return size_of(x, bias, targets) + 2 * size_of(reference, total, moment, best)


def _fold_tile_bytes(
    x: Tensor, bias: Tensor | None, targets: Tensor, p: Tensor | None, reference: Tensor, total: Tensor,
    moment: Tensor | None, best: Tensor | None, rescale: Tensor, *_: Any,
) -> int:  # fmt: skip
    """A tile is read once, held in registers, and written once, in its own place or another dtype's."""
    return size_of(x, x if p is None else p, bias, targets, rescale) + 2 * size_of(reference, total, moment, best)


def _gradient_tile_bytes(
    x: Tensor, bias: Tensor | None, targets: Tensor, reference: Tensor, log_total: Tensor, at_target: Tensor, onto_p: Tensor,
    grad_entropy: Tensor | None, entropy: Tensor | None, onto_all: Tensor | None, column_weight: Tensor | None,
    out: Tensor | None, *_: Any,
) -> int:  # fmt: skip
    """A tile is read once and written once; of its rows, what is known of them is read."""
    rows = size_of(targets, reference, log_total, at_target, onto_p, grad_entropy, entropy, onto_all)
    return size_of(x, x if out is None else out, bias, column_weight) + rows


def _spread_tile_bytes(
    x: Tensor, bias: Tensor | None, targets: Tensor, target_logit: Tensor, column_weight: Tensor | None, spread: Tensor, *_: Any
) -> int:
    """A tile is read once; of its rows, the sum is read and written."""
    return size_of(x, bias, targets, target_logit, column_weight) + 2 * size_of(spread)


def _rescale_rows_bytes(_values: Tensor, factor: Tensor) -> int:
    """The factors alone: a row whose factor is 1 is not touched, and it nearly always is."""
    return size_of(factor)


def _scaled_rows_bytes(values: Tensor, factor: Tensor, out: Tensor) -> int:
    """Values and factors are read, the result is written."""
    return size_of(values, factor, out)


def _finish_rows_bytes(
    mean: Tensor, weight: Tensor, targets: Tensor, onto_target: Tensor, onto_mean: Tensor, out: Tensor
) -> int:
    """The means, as many rows of the weight, two factors and a target a row; the result is written."""
    picked = mean.numel() * weight.element_size()
    return size_of(mean, targets, onto_target, onto_mean, out) + picked


# Bytes that an op's Triton kernel reads and writes, from its arguments (`frostline.kernels.traffic`).
TRAFFIC: dict[Any, Callable[..., int]] = {
    torch.ops.frostline.target_logits: _target_logits_bytes,
    torch.ops.frostline.reduce_tile: _reduce_tile_bytes,
    torch.ops.frostline.fold_tile: _fold_tile_bytes,
    torch.ops.frostline.gradient_tile: _gradient_tile_bytes,
    torch.ops.frostline.spread_tile: _spread_tile_bytes,
    torch.ops.frostline.rescale_rows: _rescale_rows_bytes,
    torch.ops.frostline.scaled_rows: _scaled_rows_bytes,
    torch.ops.frostline.finish_rows: _finish_rows_bytes,
}

target_logits = torch.ops.frostline.target_logits.default
reduce_tile = torch.ops.frostline.reduce_tile.default
fold_tile = torch.ops.frostline.fold_tile.default
gradient_tile = torch.ops.frostline.gradient_tile.default
spread_tile = torch.ops.frostline.spread_tile.default
rescale_rows = torch.ops.frostline.rescale_rows.default
scaled_rows = torch.ops.frostline.scaled_rows.default
finish_rows = torch.ops.frostline.finish_rows.default
