"""Triton kernels that are launched by hand, noted instead of run: under fake tensors there is nothing that they could work on.

What such a kernel writes its caller has allocated before, so that memory is predicted all the same; what it computes and moves
is in no schema, so that its FLOPs and bytes are not.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def noted_launches() -> Iterator[Counter[str]]:
    """A context in which no Triton kernel runs, autotuned or not: the number of launches by the kernel's name."""
    noted: Counter[str] = Counter()
    if importlib.util.find_spec("triton") is None:
        yield noted
        return
    from triton.runtime.jit import KernelInterface  # type: ignore[import-untyped]  # Triton ships no annotations

    def launcher(kernel: Any, _grid: Any) -> Callable[..., None]:
        def launch(*_: Any, **__: Any) -> None:
            noted[_name(kernel)] += 1

        return launch

    with patch.object(KernelInterface, "__getitem__", launcher):
        yield noted


def _name(kernel: Any) -> str:
    """Of the function, under what tunes it or adds arguments."""
    while hasattr(kernel, "fn") and not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", type(kernel).__name__))
