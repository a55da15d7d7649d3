"""A stand-in for torch's compiler, `torch._dynamo`: whose import takes a second or two of every process, unused.

`FakeTensorMode` imports the whole of it for two switches, whose module needs none of the rest and is loaded by itself. Many
functions that work out shapes are marked as not to be compiled, which asks the compiler to take note; the stand-in says yes. A
constant's fake is given a name by a class of it. And packages import it to be ready for a use that does not come.

Whoever uses anything else of it gets the real one, in the stand-in's place. Where that is loaded already, all is as torch has
it, and after the context nothing is left: code that compiles gets the real one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

COMPILER = "torch._dynamo"
_SWITCHES, _SOURCES = f"{COMPILER}.config", f"{COMPILER}.source"
_MARK = "__dynamo_disable"  # where `torch._disable_dynamo` keeps what `disable` gave


def compiler_is_loaded() -> bool:
    """Whether the real one is."""
    return getattr(sys.modules.get(COMPILER), "__file__", None) is not None


@contextmanager
def without_compiler() -> Iterator[None]:
    """The context in which the stand-in is what an import finds, unless the compiler is there."""
    if COMPILER in sys.modules:
        yield
        return
    stand_in = _StandIn()
    stand_in.enter()
    try:
        yield
    finally:
        stand_in.leave()


class ConstantSource(NamedTuple):
    """Where a constant comes from: a name, of use to who traces it."""

    source_name: str


class RandomValueSource:
    """What no constant comes from."""


class _Sources(ModuleType):
    """What is seen of `torch._dynamo.source`."""

    def __init__(self, real: Callable[[], ModuleType]) -> None:
        super().__init__(_SOURCES)
        self.ConstantSource, self.RandomValueSource = ConstantSource, RandomValueSource
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._real()
        return getattr(importlib.import_module(_SOURCES), name)


class _StandIn(ModuleType):
    """What is seen of `torch._dynamo`: its switches, and `disable`."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.__path__: list[str] = []  # a package, of which nothing is found but by the finder
        self._marked: list[Callable[..., Any]] = []
        self._finder = _Finder(self._real)
        self._parts: dict[str, ModuleType] = {COMPILER: self, _SWITCHES: _load_switches(), _SOURCES: _Sources(self._real)}
        self.__dict__["config"] = self._parts[_SWITCHES]

    def disable(self, function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
        """The function itself: there is no compiler that could take it. Without one, what does that as a decorator."""
        if function is None:
            return self.disable
        self._marked.append(function)
        return function

    def mark_dynamic(self, *_: Any, **__: Any) -> None:
        """Nothing: a tensor without data is never compiled for."""

    maybe_mark_dynamic = mark_static = mark_dynamic

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a look around at all modules, as `inspect` takes
            raise AttributeError(name)
        return getattr(self._real(), name)

    def enter(self) -> None:
        """Take the place."""
        sys.modules.update(self._parts)
        sys.meta_path.insert(0, self._finder)
        torch.__dict__["_dynamo"] = self

    def leave(self) -> None:
        """Give it back, with what was marked on the way."""
        for function in self._marked:
            function.__dict__.pop(_MARK, None)
        self._marked.clear()
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        for name, part in self._parts.items():
            if sys.modules.get(name) is part:
                del sys.modules[name]
        if torch.__dict__.get("_dynamo") is self:
            del torch.__dict__["_dynamo"]

    def _real(self) -> ModuleType:
        self.leave()
        return importlib.import_module(COMPILER)


class _Finder(MetaPathFinder):
    """Is asked for modules of the compiler that the stand-in has not: has the real one loaded, which brings most of them."""

    def __init__(self, real: Callable[[], ModuleType]) -> None:
        self._real = real

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """How that module is had; None of any other."""
        if not name.startswith(f"{COMPILER}."):
            return None
        real = self._real()
        loaded = sys.modules.get(name)
        return PathFinder.find_spec(name, list(real.__path__)) if loaded is None else ModuleSpec(name, _Loaded(loaded))


class _Loaded(Loader):
    """Hands over a module that was loaded while it was looked for."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        """That module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it was run."""
        module.__spec__ = self._spec


def _load_switches() -> ModuleType:
    path = Path(torch.__file__).parent / "_dynamo" / "config.py"
    spec = importlib.util.spec_from_file_location(_SWITCHES, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[_SWITCHES] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
