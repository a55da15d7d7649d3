"""Fake tensors, quickly: without torch's compiler (`compiler.py`), and with a memory of what operators return (`recall.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from frostline.harness.meters.compiler import without_compiler
from frostline.harness.meters.recall import Recall

_DEVICE = torch.ops.prim.device.default
_dispatch = getattr(FakeTensorMode.__torch_dispatch__, "__wrapped__", FakeTensorMode.__torch_dispatch__)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """A context in which tensors are their shape, dtype and storage size, and no operator runs.

    Without fallback kernels: they would run an operator that has no fake for real on zeros, at full size.
    """
    with without_compiler(), _conversions_to_the_same(), _Shapes():
        yield


@contextmanager
def _conversions_to_the_same() -> Iterator[None]:
    """Let a module be converted to the dtype and device that it has, as libraries do to be sure of them.

    torch swaps the parameters of a module when they are fake, whatever they become, and cannot: the mode refers to them.
    """
    convert: Any = torch.nn.Module._apply

    def convert_what_changes(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        own = [*self._parameters.values(), *self._buffers.values()]
        with torch.no_grad():
            changes = any(fn(tensor) is not tensor for tensor in own if tensor is not None)
        if changes:
            converted: torch.nn.Module = convert(self, fn, recurse)
            return converted
        if recurse:
            for module in self.children():
                module._apply(fn)
        return self

    torch.nn.Module._apply = convert_what_changes  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module._apply = convert  # type: ignore[method-assign]


class _Shapes(FakeTensorMode):
    """The mode, with a memory of its own in place of torch's."""

    def __init__(self) -> None:
        super().__init__(allow_fallback_kernels=False)
        self.cache_enabled = False
        self._recall = Recall(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's default is to mark the method below as not to be compiled, which asks the compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The shapes of what an operator returns."""
        if func is _DEVICE and type(args[0]) is FakeTensor:  # a question that autograd asks at every second operator
            return args[0].fake_device
        return self._recall.call(func, types, args, kwargs or {}, self._work_out)

    def _work_out(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _dispatch(self, func, types, args, kwargs)
