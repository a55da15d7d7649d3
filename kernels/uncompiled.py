"""`torch.compiler.disable` without its import, which loads the compiler: 1.3 s of every process, compiled or not."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Break the graph around `function`, and compile nothing inside it, when the caller is being compiled."""
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None:  # nothing can be compiling
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(dynamo.disable(function))
        return disabled[0](*args, **kwargs)

    marked: Any = outside
    marked._torchdynamo_disable = True  # what the compiler looks for before it traces a call
    return outside
