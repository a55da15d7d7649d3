"""Attributes put in place of others, and given back.

On a class or a module of Python a patch holds for all models there are and will be; on an instance for that one alone. An
instance's own attribute hides its class's, so giving it back is to delete it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


class _Absent:
    """Stands for an attribute that was not there; a class, since a deep copy of it is itself."""


class Patches:
    """What was replaced, in order. It holds its owners: keep it on one of them, and it goes with it and is copied with it."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Put `value` in the place of an attribute of a class, a module of Python or an object."""
        self._replaced.append((owner, name, vars(owner).get(name, _Absent)))
        setattr(owner, name, value)

    def bind(self, instance: Any, name: str, function: Callable[..., Any]) -> None:
        """Give one object a method of its own."""
        self.put(instance, name, types.MethodType(function, instance))

    def give_back(self) -> None:
        """Undo all of it, the last first."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _Absent:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def seeing(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """A copy of a function for which global `names` mean something else: what it calls by them is ours, for nobody else."""
    plain = function
    while hasattr(plain, "__wrapped__"):  # a decorator that warns of old arguments
        plain = plain.__wrapped__
    assert isinstance(plain, types.FunctionType)
    copy = types.FunctionType(
        plain.__code__, {**plain.__globals__, **names}, plain.__name__, plain.__defaults__, plain.__closure__
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    copy.__wrapped__ = function  # type: ignore[attr-defined]  # for its signature
    return copy
