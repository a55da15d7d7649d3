"""A product with the weight and the tile's work on it as one op: `torch.ops.frostline.*_logits`.

Each does what `matmul.mm_wide` followed by an op of `tiles` does (`fold_tile`, `reduce_tile`; `gradient_tile` without what goes
onto all columns), for 16-bit operands and without fp32 logits in memory. On CUDA they are Triton kernels (`fused_triton`,
imported at the first launch) for the GPUs that `fusable` names; on the CPU, where tests and the cost model's fake tensors come,
product and tile op in turn.

`weight` is a slice of the vocabulary, [width, H], that begins at `start`. `workspace` holds fp32 partial figures,
`output_tiles.workspace_size` elements of them: the ops allocate nothing on the GPU, so that a plan can name every byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from frostline.kernels.lm_head import tiles_torch
from frostline.kernels.lm_head.output_tiles import COLUMNS
from frostline.kernels.matmul import HOPPER, device_kind, mm_wide, target_capability
from frostline.kernels.traffic import size_of

_ALIGNED = 16  # bytes, of rows and beginnings, for the tensor memory accelerator
_DTYPES = (torch.bfloat16, torch.float16)

_SCALARS = "float inner, float outer, bool capped"
_SCHEMAS = {
    "fold_logits": "(Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, Tensor(a!) p, Tensor(b!) reference,"
    " Tensor(c!) total, Tensor(d!)? moment, Tensor(e!)? best, Tensor(f!) rescale, Tensor(g!) workspace, int start, float limit,"
    f" {_SCALARS}) -> ()",
    # With `x`, the raw logits are kept there as well, fp32.
    "reduce_logits": "(Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, Tensor(a!)? x, Tensor(b!) reference,"
    f" Tensor(c!) total, Tensor(d!)? moment, Tensor(e!)? best, Tensor(f!) workspace, int start, {_SCALARS}) -> ()",
    "gradient_logits": "(Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, Tensor reference, Tensor log_total,"
    f" Tensor at_target, Tensor onto_p, Tensor? grad_entropy, Tensor? entropy, Tensor(a!) out, int start, {_SCALARS}) -> ()",
}


def fusable(hidden: Tensor, weight: Tensor) -> bool:
    """Whether the ops take these operands: 16-bit, aligned rows, on a GPU of the generation that the kernels were made for.

    Where there is no device to ask, under `target_device("cuda")`, its generation is `target_capability`.
    """
    if device_kind(hidden) != "cuda" or hidden.dtype not in _DTYPES or not hidden.numel():
        return False
    if any(
        t.stride(0) * t.element_size() % _ALIGNED or t.storage_offset() * t.element_size() % _ALIGNED for t in (hidden, weight)
    ):
        return False
    return _is_hopper(hidden.device) if hidden.device.type == "cuda" else target_capability()[0] == HOPPER[0]


def fusable_shape(width: int, dtype: torch.dtype, kind: str) -> bool:
    """Whether contiguous operands of `width` columns would be taken by this machine's device of `kind`, or where there is no
    GPU to ask, by one of the generation that the kernels were made for."""
    if kind != "cuda" or dtype not in _DTYPES or width * dtype.itemsize % _ALIGNED:
        return False
    return not torch.cuda.is_available() or _is_hopper(torch.device("cuda", torch.cuda.current_device()))


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == HOPPER[0]


def _product(hidden: Tensor, weight: Tensor) -> Tensor:
    x = hidden.new_empty(hidden.shape[0], weight.shape[0], dtype=torch.float32)
    mm_wide(hidden, weight.t(), x)
    return x


class _InTurn:
    """The product, then the tile op."""

    @staticmethod
    def fold_logits(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, p: Tensor, reference: Tensor, total: Tensor,
        moment: Tensor | None, best: Tensor | None, rescale: Tensor, _workspace: Tensor, *scalars: Any,
    ) -> None:  # fmt: skip
        x = _product(hidden, weight)
        tiles_torch.fold_tile(x, bias, targets, p, reference, total, moment, best, rescale, *scalars)

    @staticmethod
    def reduce_logits(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, x: Tensor | None, reference: Tensor,
        total: Tensor, moment: Tensor | None, best: Tensor | None, _workspace: Tensor, *scalars: Any,
    ) -> None:  # fmt: skip
        product = _product(hidden, weight)
        tiles_torch.reduce_tile(product, bias, targets, reference, total, moment, best, *scalars)
        if x is not None:
            x.copy_(product)

    @staticmethod
    def gradient_logits(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, reference: Tensor, log_total: Tensor,
        at_target: Tensor, onto_p: Tensor, grad_entropy: Tensor | None, entropy: Tensor | None, out: Tensor, *scalars: Any,
    ) -> None:  # fmt: skip
        known = reference, log_total, at_target, onto_p, grad_entropy, entropy
        tiles_torch.gradient_tile(_product(hidden, weight), bias, targets, *known, None, None, out, *scalars)


_on_cpu: type[_InTurn] | ModuleType = _InTurn


@contextmanager
def interpreted() -> Iterator[None]:
    """Run the Triton kernels on CPU tensors, interpreted: TRITON_INTERPRET=1 must be set before they are imported."""
    global _on_cpu
    from frostline.kernels.lm_head import fused_triton

    before, _on_cpu = _on_cpu, fused_triton
    try:
        yield
    finally:
        _on_cpu = before


def _cpu(name: str) -> Callable[..., None]:
    def call(*args: Any) -> None:
        getattr(_on_cpu, name)(*args)

    return call


def _cuda(name: str) -> Callable[..., None]:
    def call(*args: Any) -> None:
        from frostline.kernels.lm_head import fused_triton

        with torch.cuda.device_of(args[0]):  # Triton launches on the current device
            getattr(fused_triton, name)(*args)

    return call


def _fake(*_: Any) -> None:
    """The ops write in place and allocate nothing."""


def _flops(hidden: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """2 N H V of the product; what is done to a tile is not counted, as torch does not count elementwise work."""
    return 2 * hidden[0] * hidden[1] * weight[0]


FLOP_FORMULAS: dict[Any, Callable[..., int]] = {}
_library = torch.library.Library("frostline", "FRAGMENT")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema)
    _library.impl(_name, _cpu(_name), "CPU")
    _library.impl(_name, _cuda(_name), "CUDA")
    _library.impl(_name, _fake, "Meta")
    FLOP_FORMULAS[getattr(torch.ops.frostline, _name)] = _flops
for _op, _formula in FLOP_FORMULAS.items():
    register_flop_formula(_op)(_formula)


def _partial_bytes(rows: int, width: int, workspace: Tensor, moment: Tensor | None, best: Tensor | None) -> int:
    """What output tiles leave of each row, written and read again: a maximum, a sum and where they are asked for a moment, and
    the best column with its value."""
    figures = 2 + (moment is not None) + 2 * (best is not None)
    return 2 * figures * rows * -(-width // COLUMNS) * workspace.element_size()


def _fold_logits_bytes(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, p: Tensor, reference: Tensor, total: Tensor,
    moment: Tensor | None, best: Tensor | None, rescale: Tensor, workspace: Tensor, *_: Any,
) -> int:  # fmt: skip
    """The operands are read and the tile is written; logits live in registers. No reference moves, as on ordinary logits."""
    rows = size_of(targets, rescale) + 2 * size_of(reference, total, moment, best)
    return size_of(hidden, weight, bias, p) + rows + _partial_bytes(p.shape[0], p.shape[1], workspace, moment, best)


def _reduce_logits_bytes(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, x: Tensor | None, reference: Tensor,
    total: Tensor, moment: Tensor | None, best: Tensor | None, workspace: Tensor, *_: Any,
) -> int:  # fmt: skip
    """The operands are read; the logits are written where they are asked for."""
    rows = size_of(targets) + 2 * size_of(reference, total, moment, best)
    return size_of(hidden, weight, bias, x) + rows + _partial_bytes(hidden.shape[0], weight.shape[0], workspace, moment, best)


def _gradient_logits_bytes(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, reference: Tensor, log_total: Tensor,
    at_target: Tensor, onto_p: Tensor, grad_entropy: Tensor | None, entropy: Tensor | None, out: Tensor, *_: Any,
) -> int:  # fmt: skip
    """The operands are read and the gradient is written; of the rows, what is known of them is read."""
    rows = size_of(targets, reference, log_total, at_target, onto_p, grad_entropy, entropy)
    return size_of(hidden, weight, bias, out) + rows


# Bytes that an op's Triton kernels read and write, from its arguments (`frostline.kernels.traffic`).
TRAFFIC: dict[Any, Callable[..., int]] = {
    torch.ops.frostline.fold_logits: _fold_logits_bytes,
    torch.ops.frostline.reduce_logits: _reduce_logits_bytes,
    torch.ops.frostline.gradient_logits: _gradient_logits_bytes,
}

fold_logits = torch.ops.frostline.fold_logits.default
reduce_logits = torch.ops.frostline.reduce_logits.default
gradient_logits = torch.ops.frostline.gradient_logits.default
