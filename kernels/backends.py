"""Where the work of a family of ops runs: torch operators on a CPU and for float64, Triton kernels on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

_PLAIN = frozenset({Tensor, torch.nn.Parameter, type(None)})


def plain(*tensors: Tensor | None) -> bool:
    """Whether nobody has to see an operator: no subclass, no compiler, no dispatch mode, no function transform."""
    if torch.compiler.is_compiling():
        return False
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return False
    return not torch._C._len_torch_dispatch_stack() and not torch._C._are_functorch_transforms_active()


class Backends:
    """Two modules with the same functions.

    in_torch: the one in torch operators.
    in_triton: the name of the one in Triton, which is imported at the first launch.
    """

    __slots__ = ("_cpu", "_cuda", "_in_torch", "_in_triton")

    def __init__(self, in_torch: ModuleType, in_triton: str) -> None:
        self._in_torch, self._in_triton = in_torch, in_triton
        self._cpu = in_torch
        self._cuda: ModuleType | None = None

    def of(self, x: Tensor) -> ModuleType:
        """The one that works on `x`."""
        if not x.is_cuda:
            return self._cpu
        if x.dtype == torch.float64:  # scalars reach a Triton kernel as fp32: not enough for float64
            return self._in_torch
        return self._cuda or self._import()

    def _import(self) -> ModuleType:
        self._cuda = found = import_module(self._in_triton)
        return found

    @contextmanager
    def interpreted(self) -> Iterator[None]:
        """Run the Triton kernels on CPU tensors, interpreted: TRITON_INTERPRET=1 must be set before they are imported."""
        before, self._cpu = self._cpu, import_module(self._in_triton)
        try:
            yield
        finally:
            self._cpu = before
