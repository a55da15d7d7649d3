"""Launching a Triton kernel that is compiled already, without what the JIT does on every call.

A call of a `triton.jit` function binds and inspects all arguments anew: 15-22 us of the host's time a launch, more than a
small norm takes on the GPU. What that inspection decides is fixed here: sizes and strides are not specialized on, constants
belong to the `Launcher`, and pointers are specialized on their alignment alone. So the first call with aligned pointers goes
through the JIT, which returns what it compiled, and later ones hand their arguments to its launcher, addresses as plain
integers. A call with a pointer that is not aligned goes through the JIT every time.

`CompiledKernel.run` and its order of arguments are no public interface of Triton. They are the same in 3.6 and 3.7; with any
other release, or where an attribute is missing, every call goes through the JIT.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor

_ALIGNMENT = 16  # bytes: what the JIT distinguishes
_KNOWN_RELEASES = ("3.6", "3.7")
# Not there in a torch without CUDA, where nothing asks for them.
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def known_release(version: str) -> bool:
    """Whether `CompiledKernel.run` of this release of Triton takes what is handed to it here."""
    return ".".join(version.split(".")[:2]) in _KNOWN_RELEASES


class Launcher:
    """One kernel with its constants on one device."""

    __slots__ = ("_compiled", "_constants", "_device", "_direct", "_kernel", "_options")

    def __init__(self, kernel: Any, constants: Mapping[str, Any], warps: int, device: int) -> None:
        """`constants` in the order of the kernel's signature; `device` is the index of a CUDA device, -1 for the CPU."""
        self._kernel = kernel
        self._options = {**constants, "num_warps": warps, "enable_fp_fusion": False}  # see `kernels_triton`
        self._constants = tuple(constants.values())
        self._device = device
        self._direct = device >= 0 and known_release(triton.__version__)
        self._compiled: tuple[Any, Any, Any] | None = None

    def __call__(self, across: int, down: int, tensors: tuple[Tensor | None, ...], scalars: tuple[int | float, ...]) -> None:
        """Launch a grid of `across` x `down` programs.

        `tensors` stand first in the kernel's signature, None where there is none (the same ones in every call), then `scalars`.
        """
        compiled = self._compiled
        if compiled is not None:
            bits = 0
            addresses = []
            for tensor in tensors:
                address = None if tensor is None else tensor.data_ptr()
                bits |= address or 0
                addresses.append(address)
            if bits % _ALIGNMENT == 0 and _current_device() == self._device:
                run, function, metadata = compiled
                stream = _current_stream(self._device)
                run(across, down, 1, stream, function, metadata, None, None, None, *addresses, *scalars, *self._constants)
                return
        self._through_the_jit(across, down, tensors, scalars)

    def _through_the_jit(
        self, across: int, down: int, tensors: tuple[Tensor | None, ...], scalars: tuple[int | float, ...]
    ) -> None:
        if self._device < 0:
            self._kernel[(across, down)](*tensors, *scalars, **self._options)
            return
        with torch.cuda.device(self._device):  # Triton launches on the current device
            compiled = self._kernel[(across, down)](*tensors, *scalars, **self._options)
        if self._direct and all(t is None or t.data_ptr() % _ALIGNMENT == 0 for t in tensors):
            found = tuple(getattr(compiled, name, None) for name in ("run", "function", "packed_metadata"))
            self._compiled = None if None in found else (found[0], found[1], found[2])
            self._direct = self._compiled is not None
