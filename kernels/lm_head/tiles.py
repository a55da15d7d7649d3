"""The elementwise work on a tile of logits, as registered ops of `torch.ops.frostline`.

A tile is `x` [rows, width], fp32 (fp64): raw products of a row block with a slice of the vocabulary that begins at `start`. The
ops add the bias, apply the `Transform` (inner, outer, capped) and keep per-row statistics, all [rows] in the tile's dtype:

- `maximum`: a reference of the row's logits (its running maximum, or within `limit` of it), `total`: sum of exp(z - maximum),
  `moment`: sum of z * exp(z - maximum), `target_logit`: z at the target once its column was seen, NaN before.
- a row whose target is `INACTIVE` does not count: its gradients are exact zeros (`gradient_tile`, `finish_rows`) whatever its
  logits hold, its `rescale` is 1, its other statistics and its probabilities have no meaning.

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

from frostline.kernels.lm_head import tiles_torch

INACTIVE = tiles_torch.INACTIVE

_SCALARS = "float inner, float outer, bool capped"
_SCHEMAS = {
    # Fold a tile into maximum, total, target_logit and, if given, moment. `first` starts them afresh.
    "reduce_tile": "(Tensor x, Tensor? bias, Tensor targets, Tensor(a!) maximum, Tensor(b!) total, Tensor(c!)? moment,"
    f" Tensor(d!) target_logit, int start, bool first, {_SCALARS}) -> ()",
    # The same, and write exp(z - maximum) * (dz/dx / steepest) to `p` (None: over x, which is scratch either
    # way). `maximum` moves only when a tile exceeds it by more than `limit`; `rescale` is what the sums of earlier tiles must
    # then be multiplied by, else 1.
    "fold_tile": "(Tensor(a!) x, Tensor? bias, Tensor targets, Tensor(b!)? p, Tensor(c!) maximum, Tensor(d!) total,"
    f" Tensor(e!)? moment, Tensor(f!) target_logit, Tensor(g!) rescale, int start, bool first, float limit, {_SCALARS}) -> ()",
    # Write d loss / d x to `out` (None: over x, which is scratch either way), from d loss / d logp = grad_logp and, with the
    # entropy, d loss / d entropy = grad_entropy.
    "gradient_tile": "(Tensor(a!) x, Tensor? bias, Tensor targets, Tensor log_z, Tensor grad_logp, Tensor? grad_entropy,"
    f" Tensor? entropy, Tensor(b!)? out, int start, {_SCALARS}) -> ()",
    # Multiply row r of values by factor[r].
    "rescale_rows": "(Tensor(a!) values, Tensor factor) -> ()",
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

reduce_tile = torch.ops.frostline.reduce_tile.default
fold_tile = torch.ops.frostline.fold_tile.default
gradient_tile = torch.ops.frostline.gradient_tile.default
rescale_rows = torch.ops.frostline.rescale_rows.default
finish_rows = torch.ops.frostline.finish_rows.default
