"""Work of a step, counted: floating-point operations of its matrix products, and operators dispatched.

The FLOPs come from the formulas of torch's `FlopCounterMode`, and ours for the matrix products that it does not know or cannot
count. (The mode itself would import torch's compiler, which takes 2 s of every process.)

| operator | in torch 2.13 |
|---|---|
| `addmm_`, `baddbmm_`, `addbmm`, `mv`, `addmv`, `dot`, `vdot` | no formula: counted as 0 |
| `addmm`, `bmm`, `baddbmm` with `out_dtype` | the formula takes `out_dtype` for its own `out_shape` and raises |
| attention on a CPU | no formula for the CPU's own operators |

A product of [m, k] and [k, n] is 2 m n k FLOPs; additions to it and elementwise work are none. That is the convention of
torch's counter, and of the GEMM floors that times are held against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count, shape_wrapper

from frostline.harness.declare import Step
from frostline.harness.meters.dispatch import OperatorWatch
from frostline.results.record import FLOPS, OPERATORS

_Shape = Any  # a torch.Size: the counter puts shapes in the place of tensors and passes other arguments as they are


def _product(a: _Shape, b: _Shape, *_: Any, **__: Any) -> int:
    """[m, k] @ [k, n], or [b, m, k] @ [b, k, n]."""
    *batch, m, k = (int(size) for size in a)
    return 2 * (batch[0] if batch else 1) * m * k * int(b[-1])


def _add_product(_: _Shape, a: _Shape, b: _Shape, *__: Any, **___: Any) -> int:
    """[m, n] + [m, k] @ [k, n], with or without a batch."""
    return _product(a, b)


def _matrix_vector(a: _Shape, *_: Any, **__: Any) -> int:
    """[m, k] @ [k]."""
    return 2 * int(a[0]) * int(a[1])


def _add_matrix_vector(_: _Shape, a: _Shape, *__: Any, **___: Any) -> int:
    """[m] + [m, k] @ [k]."""
    return _matrix_vector(a)


def _dot(a: _Shape, *_: Any, **__: Any) -> int:
    """[k] . [k]."""
    return 2 * int(a[0])


def _attention(query: _Shape, key: _Shape, value: _Shape, *_: Any, **__: Any) -> int:
    """Two products; a causal mask saves none, as for the CUDA operators in torch's own table."""
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(gradient: _Shape, query: _Shape, key: _Shape, value: _Shape, *_: Any, **__: Any) -> int:
    """Five products: the scores again, and the gradients of scores, values, queries and keys."""
    return int(sdpa_backward_flop_count(gradient, query, key, value))


_aten = torch.ops.aten
FORMULAS: Mapping[Any, Callable[..., int]] = {
    _aten.mm: _product,
    _aten.bmm: _product,
    _aten.addmm: _add_product,
    _aten.addmm_: _add_product,
    _aten.baddbmm: _add_product,
    _aten.baddbmm_: _add_product,
    _aten.addbmm: _add_product,
    _aten.addbmm_: _add_product,
    _aten.mv: _matrix_vector,
    _aten.addmv: _add_matrix_vector,
    _aten.addmv_: _add_matrix_vector,
    _aten.dot: _dot,
    _aten.vdot: _dot,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""FLOPs by operator, for all its overloads, from the shapes of its arguments. They win over torch's own."""


def count(step: Step, extra_formulas: Mapping[Any, Callable[..., int]] | None = None) -> dict[str, float]:
    """Count one step, forward and backward: the same figures in every run, and for fake tensors as for real ones.

    Args:
        step: `reset` runs first, uncounted; what `run` returns is dropped.
        extra_formulas: FLOPs of a suite's own operators that contain matrix products, by operator
            (`torch.ops.mine.attention`): called with the operator's arguments, shapes in place of tensors, and `out_shape`.

    Returns:
        `flops` of matrix products, and `operators` dispatched (views and allocations too; an operator that torch composes
        of others counts as those).
    """
    if step.reset is not None:
        step.reset()
    formulas = {**FORMULAS, **(extra_formulas or {})}
    own = {operator: shape_wrapper(formula) for operator, formula in formulas.items()}
    flops = operators = 0

    def seen(operator: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        nonlocal flops, operators
        operators += 1
        packet = getattr(operator, "overloadpacket", operator)
        formula = own.get(packet) or flop_registry.get(packet)
        if formula is not None:
            flops += formula(*args, **kwargs, out_val=result)

    with OperatorWatch(call=seen):
        step.run()
    return {FLOPS.name: float(flops), OPERATORS.name: float(operators)}
