"""Fake tensors without torch's compiler: its import takes 2 s of every process, and nothing of it is used.

Two things in `FakeTensorMode` ask for it. Its constructor imports `torch._dynamo.config`, and with that the whole of
`torch._dynamo`, for two switches; the module of the switches needs none of the rest, so it is loaded by itself. And many of the
functions that work out shapes are marked as not to be compiled, which imports the compiler to tell it so; while such a function
runs, an object stands in that says yes. Where the compiler is loaded already, all is as torch has it, and after the context
nothing is left: code that compiles gets the real one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

_COMPILER, _SWITCHES = "torch._dynamo", "torch._dynamo.config"
_MARK = "__dynamo_disable"  # where `torch._disable_dynamo` keeps what `disable` gave
_dispatch = getattr(FakeTensorMode.__torch_dispatch__, "__wrapped__", FakeTensorMode.__torch_dispatch__)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """A context in which tensors are their shape, dtype and storage size, and no operator runs.

    Without fallback kernels: they would run an operator that has no fake for real on zeros, at full size.
    """
    with _StandIn().present() as stand_in, _Shapes(stand_in):
        yield


class _StandIn(ModuleType):
    """What is seen of `torch._dynamo` while shapes are worked out: its switches, and `disable`. The rest is the real one's."""

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.marked: list[Callable[..., Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a look around at all modules, as `inspect` takes
            raise AttributeError(name)
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        return getattr(importlib.import_module(_COMPILER), name)

    def disable(self, function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """The function itself: there is no compiler that could take it."""
        self.marked.append(function)
        return function

    @contextmanager
    def present(self) -> Iterator[_StandIn]:
        """Stand where torch's own code looks for the switches, unless the compiler is there."""
        if _COMPILER in sys.modules:
            yield self
            return
        self.__dict__["config"] = _load_switches()
        torch.__dict__["_dynamo"] = self
        try:
            yield self
        finally:
            for function in self.marked:
                function.__dict__.pop(_MARK, None)
            if _COMPILER not in sys.modules:  # or the real one has taken both places
                del torch.__dict__["_dynamo"], sys.modules[_SWITCHES]


class _Shapes(FakeTensorMode):
    """The mode, with the stand-in where an import finds it, for as long as one operator's shapes are worked out."""

    def __init__(self, stand_in: _StandIn) -> None:
        super().__init__(allow_fallback_kernels=False)
        self._stand_in = stand_in

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's default is to mark the method below, as above

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The shapes of what an operator returns."""
        if _COMPILER in sys.modules:  # the compiler, or the stand-in for an operator that asked for this one
            return _dispatch(self, func, types, args, kwargs)
        sys.modules[_COMPILER] = self._stand_in
        try:
            return _dispatch(self, func, types, args, kwargs)
        finally:
            if sys.modules.get(_COMPILER) is self._stand_in:
                del sys.modules[_COMPILER]


def _load_switches() -> ModuleType:
    path = Path(torch.__file__).parent / "_dynamo" / "config.py"
    spec = importlib.util.spec_from_file_location(_SWITCHES, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[_SWITCHES] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
