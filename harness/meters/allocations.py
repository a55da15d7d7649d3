"""What a step's memory is made of: every storage with who allocated it, and which of them are alive when most is.

`Ledger` is `LiveBytes` with a memory: the same bytes, and for each storage the tensor that first had it, the operator that made
it, and the line of the measured code that called that operator. A backward that autograd runs has no line of its own, so there
the node is named as well (`MmBackward0`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from torch import Tensor

from frostline.harness.meters.dispatch import OperatorWatch, node_name, operator_name
from frostline.harness.meters.memory import LiveBytes

Shown: TypeAlias = Callable[[Any, Any, dict[str, Any], Any], None]

_HARNESS = __name__.rsplit(".", 2)[0]
_BETWEEN = ("torch", "contextlib", "functools")  # packages between an operator and the code that asked for it
_CALLERS = 2  # of the line that allocated: a helper that allocates says little without who called it


@dataclass(frozen=True)
class Allocation:
    """A storage, as the tensor that first had it.

    Attributes:
        shape, dtype: of that tensor.
        bytes: of the storage, as the allocator rounds it.
        operator: what made it, `aten.mm`; empty where it came from where no operator was seen.
        node: the node of autograd's backward that called the operator; empty in a forward.
        where: the line of the measured code, and its callers: `package/module.py:12 function`.
        born: how many operators had been seen when it was found, its own included; 0 where it was there before.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    operator: str
    node: str
    where: tuple[str, ...]
    born: int

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Peak:
    """The fullest moment of a step.

    Attributes:
        bytes: alive then.
        operator, node, where: what ran when it was reached, as of an `Allocation`.
        at: how many operators of the step had been seen, of `operators` in all.
        alive: what was alive, the largest first.
    """

    bytes: int
    operator: str
    node: str
    where: tuple[str, ...]
    at: int
    operators: int
    alive: tuple[Allocation, ...]


@dataclass
class _Entry:
    """An allocation, and when it came and went: events are counted in births and deaths, so that no two are at once."""

    allocation: Allocation
    birth: int
    death: int | None = None

    def alive_at(self, event: int) -> bool:
        return self.birth <= event and (self.death is None or self.death > event)


class Ledger(LiveBytes):
    """A context that follows live tensor bytes as `LiveBytes` does, and keeps who allocated them.

    Args:
        block: as of `LiveBytes`.
        whole: as of `OperatorWatch`.
    """

    def __init__(self, block: Callable[[int], int] = int, whole: Collection[Any] = ()) -> None:
        super().__init__(block)
        self._entries: list[_Entry] = []  # in the order of their birth
        self._open: dict[int, _Entry] = {}  # those that are alive, by storage
        self._operators = self._began = self._events = self._moment = 0
        self._running: tuple[str, str] = ("", "")
        self._where: tuple[str, ...] | None = None  # of the operator that is seen, once it was asked for
        self._top: tuple[int, str, str, tuple[str, ...]] = (0, "", "", ())
        self._shown: Shown | None = None
        self._watch = OperatorWatch(before=self._see, call=self._called, whole=whole)

    @contextmanager
    def showing(self, call: Shown) -> Iterator[None]:
        """The context, with every operator shown to `call`: the operator, its arguments and its result."""
        self._shown = call
        try:
            with self:
                yield
        finally:
            self._shown = None

    def reset_peak(self) -> None:
        """Let the peak start from what is alive now; what died before is forgotten."""
        super().reset_peak()
        self._entries = [entry for entry in self._entries if entry.death is None]
        self._began, self._moment = self._operators, self._events
        self._top = (self._operators, "", "", ())

    def peak_of_step(self) -> Peak:
        """The fullest moment since `reset_peak`, with everything that was alive then."""
        at, operator, node, where = self._top
        alive = [entry.allocation for entry in self._entries if entry.alive_at(self._moment)]
        alive.sort(key=lambda one: -one.bytes)
        return Peak(self.peak, operator, node, where, at - self._began, self._operators - self._began, tuple(alive))

    def _called(self, operator: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        self._operators += 1
        self._running = (operator_name(operator), node_name())
        self._see(result)
        self._running = ("", "")
        if self._shown is not None:
            self._shown(operator, args, kwargs, result)

    def _see(self, value: Any) -> None:
        before, self._where = self.peak, None
        super()._see(value)
        if self.peak > before:
            self._top = (self._operators, *self._running, self._lines())
            self._moment = self._events

    def _resize(self, key: int, size: int, tensor: Tensor) -> None:
        super()._resize(key, size, tensor)
        if key in self._open:
            before = self._open[key].allocation
            if before.bytes == size:
                return
            self._close(key)  # it grew or shrank: from now on another size
            allocation = replace(before, bytes=size)
        else:
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            allocation = Allocation(shape, dtype, size, *self._running, self._lines(), self._operators)
        self._open_entry(key, allocation)

    def _release(self, key: int, reference: object) -> None:
        super()._release(key, reference)
        self._close(key)

    def _lines(self) -> tuple[str, ...]:
        if self._where is None:
            self._where = _lines()
        return self._where

    def _open_entry(self, key: int, allocation: Allocation) -> None:
        self._events += 1
        self._open[key] = _Entry(allocation, self._events)
        self._entries.append(self._open[key])

    def _close(self, key: int) -> None:
        self._events += 1
        self._open.pop(key).death = self._events


def _lines() -> tuple[str, ...]:
    """The innermost line of the measured code and its callers in it, up to where the harness called it."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) <= _CALLERS:
        name = _FILES.get(frame.f_code.co_filename) or _name_file(frame)
        if name is _OURS:
            if found:
                break
        elif name is not _ON_THE_WAY:
            found.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(found)


_OURS, _ON_THE_WAY = "the harness'", "of those between"
_FILES: dict[str, str] = {}  # by path: the name of a file of the measured code, or one of the two above


def _name_file(frame: FrameType) -> str:
    """`package/module.py` where the module has its file's name, else the file's name: nothing of where it is installed."""
    path, module = frame.f_code.co_filename, _module(frame)
    name = module.replace(".", "/") + ".py" if module.split(".")[-1] == Path(path).stem else Path(path).name
    if module.startswith(_HARNESS):
        name = _OURS
    elif module.split(".")[0] in _BETWEEN or path.startswith("<"):
        name = _ON_THE_WAY
    if not path.startswith("<"):  # `<string>` is many files
        _FILES[path] = name
    return name


def _module(frame: FrameType) -> str:
    """The name of a frame's module, also where that was run as a program (`python -m`)."""
    spec = frame.f_globals.get("__spec__")
    return str(getattr(spec, "name", None) or frame.f_globals.get("__name__", ""))
