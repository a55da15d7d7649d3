"""Watching the torch operators of a step: the ground that the meters for memory and for counts stand on.

A `TorchDispatchMode` sees an operator after autograd, once for the forward and once for each node of the backward. Compiled
code runs eagerly in its sight: torch would otherwise compile every operator of it by itself. Two things must not depend on how
a step is called, or figures of fake and of real tensors would differ:

- an operator that torch composes of others (`matmul`, `linear`) arrives whole under `torch.inference_mode`, where no autograd
  key takes it apart, and in parts elsewhere: it is always taken apart here, unless the device has a kernel for the whole
  (`silu_backward` has both, and runs as one);
- fake tensors are asked for metadata through operators (`prim.device`, `aten.size`), real ones are not: those are not operators
  of the step;
- autograd writes the gradient of an indexing into zeros that it made for it, but beside them in the sight of a mode: it is led
  back to where it writes otherwise, or a tensor of the whole source would be counted that no run without a meter allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from frostline.harness.meters.compiler import compiler_is_loaded

# Questions about a tensor, asked as operators by subclasses: they compute nothing and allocate nothing.
_QUESTIONS = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "dim",
        "is_contiguous",
        "is_non_overlapping_and_dense",
        "is_strides_like_format",
        "numel",
        "size",
        "storage_offset",
        "stride",
        "sym_is_contiguous",
        "sym_numel",
        "sym_size",
        "sym_storage_offset",
        "sym_stride",
    )
    if hasattr(torch.ops.aten, name)
)


# What the backward of an indexing (the nodes below) does to its zeros, out of place and in place.
_INTO_ZEROS = {
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
}
_INDEXINGS = ("GatherBackward", "IndexSelectBackward", "IndexBackward")


class OperatorWatch(TorchDispatchMode):
    """A mode that shows every operator of this thread: its arguments before it runs, its result afterwards.

    Args:
        before: called with the positional and keyword arguments, as one tuple.
        after: called with what the operator returned.
        call: called with the operator, its arguments and its result.
        whole: operators that are not taken apart though the tensors' device has no kernel for them.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        *,
        before: Callable[[Any], None] | None = None,
        after: Callable[[Any], None] | None = None,
        call: Callable[[Any, Any, dict[str, Any], Any], None] | None = None,
        whole: Collection[Any] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._before = before
        self._after = after
        self._call = call
        self._whole = whole
        self._stances: list[Any] = []

    def __enter__(self) -> Any:
        # Nothing can have been compiled where the compiler was not imported; asking for it here would take 2 s.
        if compiler_is_loaded():
            self._stances.append(torch.compiler.set_stance("force_eager"))
            self._stances[-1].__enter__()
        else:
            self._stances.append(None)
        return super().__enter__()  # type: ignore[no-untyped-call]  # untyped in torch

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]  # untyped in torch
        if (stance := self._stances.pop()) is not None:
            stance.__exit__(*exception)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's default imports torch._dynamo at the first operator, which takes 2 s of every process

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Take a composite operator apart, otherwise run it between `before` and `after`."""
        given = kwargs or {}
        if not isinstance(func, HigherOrderOperator):
            if _is_question(func):
                return func(*args, **given)
            if _is_composed(func) and func not in self._whole and not _has_kernel(func, _device_of((*args, *given.values()))):
                with self:
                    result = func.decompose(*args, **given)
                if result is not NotImplemented:
                    return result
            if func in _INTO_ZEROS and node_name().startswith(_INDEXINGS):
                func = _INTO_ZEROS[func]
        if self._before is not None:
            self._before((*args, *given.values()))
        result = func(*args, **given)
        if self._after is not None:
            self._after(result)
        if self._call is not None:
            self._call(func, args, given, result)
        return result


def _device_of(arguments: tuple[Any, ...]) -> str:
    return next((tensor.device.type for tensor in tensors_in(arguments)), "cpu")


# What torch knows of an operator stays, and asking it takes longer than a small operator: these are asked once of each.
@lru_cache(maxsize=4096)
def _is_question(func: Any) -> bool:
    return func.namespace == "prim" or func.overloadpacket in _QUESTIONS


@lru_cache(maxsize=4096)
def _is_composed(func: Any) -> bool:
    return bool(func._can_decompose())


@lru_cache(maxsize=4096)
def _has_kernel(func: Any, device: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), torch._C._dispatch_key_for_device(device)))


def node_name() -> str:
    """The node of autograd's backward that is running, `MmBackward0`; empty in a forward."""
    node = torch._C._current_autograd_node()
    return "" if node is None else str(node.name())


@lru_cache(maxsize=4096)
def operator_name(operator: Any) -> str:
    """`aten.mm`, of all overloads."""
    return str(getattr(operator, "overloadpacket", operator))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of an operator's arguments or result: alone, or in lists and tuples (what a schema can hold)."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    if isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, torch.Tensor):
                found.append(item)
            elif isinstance(item, (list, tuple)):
                found += tensors_in(item)
    return found
