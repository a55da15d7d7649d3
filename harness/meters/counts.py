"""Work of a step, counted: floating-point operations of its matrix products, bytes that operators move, operators dispatched.

The FLOPs come from the formulas of torch's `FlopCounterMode`, and ours for the matrix products that it does not know or cannot
count. (The mode itself would import torch's compiler, which takes 2 s of every process.)

| operator | in torch 2.13 |
|---|---|
| `addmm_`, `baddbmm_`, `addbmm`, `mv`, `addmv`, `dot`, `vdot` | no formula: counted as 0 |
| `addmm`, `bmm`, `baddbmm` with `out_dtype` | the formula takes `out_dtype` for its own `out_shape` and raises |
| attention on a CPU | no formula for the CPU's own operators |

A product of [m, k] and [k, n] is 2 m n k FLOPs; additions to it and elementwise work are none. That is the convention of
torch's counter, and of the GEMM floors that times are held against.

Bytes moved are declared by whoever wrote a kernel (a suite hands the declarations over). Of other operators they are what the
operator cannot do without: each tensor argument read once and each result written once, and nothing for views and allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count, shape_wrapper

from frostline.harness.declare import Step
from frostline.harness.meters.dispatch import OperatorWatch, node_name, operator_name, tensors_in
from frostline.harness.meters.traffic import least_bytes
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


Formulas = Mapping[Any, Callable[..., int]]


@dataclass(frozen=True)
class Call:
    """Calls of an operator that are alike: each does as much, and moves as much.

    Attributes:
        operator: its name, `aten.mm`.
        dtype: of what it computes on, `bfloat16`; empty where it has no floating-point tensor.
        flops: of the matrix products in one call.
        bytes: read and written by one call.
        declared: whether the bytes are what the kernel's author declares, rather than the least.
        calls: how many there are.
    """

    operator: str
    dtype: str
    flops: int
    bytes: int
    declared: bool
    calls: int = 1

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


# Products whose first argument is what they are added to, in whatever dtype; the factors come after it.
_ADDED_TO = (torch.ops.aten.addmm, torch.ops.aten.baddbmm, torch.ops.aten.addbmm, torch.ops.aten.addmv)


@dataclass(frozen=True)
class _Known:
    """What is to be counted of an operator: its name, FLOPs and declared bytes by arguments, whether it adds to the first."""

    name: str
    formula: Callable[..., int] | None
    declared: Callable[..., int] | None
    adds: bool


class Tally:
    """Counts operators as they pass: hand `seen` to an `OperatorWatch` as its `call`.

    Args:
        formulas: FLOPs of a suite's own operators that contain matrix products, by operator (`torch.ops.mine.attention`):
            called with the operator's arguments, shapes in place of tensors, and `out_shape`.
        traffic: bytes that a suite's own operators read and write, by operator: called with the operator's arguments.
    """

    def __init__(self, formulas: Formulas | None = None, traffic: Formulas | None = None) -> None:
        own = {**FORMULAS, **(formulas or {})}
        self._formulas = {operator: shape_wrapper(formula) for operator, formula in own.items()}
        self._traffic = dict(traffic or {})
        self._known: dict[Any, _Known] = {}
        self._calls: dict[tuple[str, str, int, int, bool], int] = {}
        self.products_in: set[str] = set()  # "forward", "backward": where there were matrix products

    def seen(self, operator: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Count one call."""
        known = self._known.get(operator) or self._look_up(operator)
        flops = 0 if known.formula is None else int(known.formula(*args, **kwargs, out_val=result))
        declared = known.declared
        moved = least_bytes(operator, args, kwargs, result) if declared is None else declared(*args, **kwargs)
        dtype = _dtype_of(args[1:] if known.adds else args, kwargs, result)
        key = (known.name, dtype, flops, int(moved), declared is not None)
        if flops:
            self.products_in.add("backward" if node_name() else "forward")
        self._calls[key] = self._calls.get(key, 0) + 1

    def _look_up(self, operator: Any) -> _Known:
        packet = getattr(operator, "overloadpacket", operator)
        formula = self._formulas.get(packet) or flop_registry.get(packet)
        known = _Known(operator_name(operator), formula, self._traffic.get(packet), packet in _ADDED_TO)
        self._known[operator] = known
        return known

    @property
    def calls(self) -> list[Call]:
        """What was seen, calls that are alike together, in the order of their first one."""
        return [Call(*key, calls) for key, calls in self._calls.items()]

    def totals(self) -> dict[str, float]:
        """`flops` of matrix products, and `operators` dispatched (views and allocations too; an operator that torch composes of
        others counts as those)."""
        flops, operators = sum(one.flops * one.calls for one in self.calls), sum(self._calls.values())
        return {FLOPS.name: float(flops), OPERATORS.name: float(operators)}


def count(step: Step, extra_formulas: Formulas | None = None) -> dict[str, float]:
    """Count one step, forward and backward: the same figures in every run, and for fake tensors as for real ones.

    Args:
        step: `reset` runs first, uncounted; what `run` returns is dropped.
        extra_formulas: see `Tally`.

    Returns:
        `flops` and `operators`, see `Tally.totals`.
    """
    if step.reset is not None:
        step.reset()
    tally = Tally(extra_formulas)
    with OperatorWatch(call=tally.seen):
        step.run()
    return tally.totals()


def _dtype_of(args: Any, kwargs: dict[str, Any], result: Any) -> str:
    """The dtype of the first floating-point tensor among arguments and results: that of the arithmetic, for a product."""
    for tensor in tensors_in([*args, *kwargs.values(), result]):
        if (dtype := tensor.dtype).is_floating_point:
            return _NAMES.get(dtype) or _NAMES.setdefault(dtype, str(dtype).removeprefix("torch."))
    return ""


_NAMES: dict[torch.dtype, str] = {}
