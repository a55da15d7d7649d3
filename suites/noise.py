"""Three kinds of work that a machine will see, for `frostline doctor --noise`, which compares each with itself.

A matrix product (bound by arithmetic), an elementwise operation (bound by memory) and plain Python (bound by the
interpreter): what disturbs one kind often leaves the others alone. Each takes some milliseconds on two cores and well below
one on a GPU. torch is imported by the steps that need it: the Python step's process stays an interpreter and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frostline.harness import suite
from frostline.harness.declare import Preset, skip

_ON_GPU = ("matmul", "elementwise")
_PYTHON_LOOPS = 60_000


@suite(
    axes={"step": ["matmul", "elementwise", "python"]},
    implementations=["step"],
    presets={"small": Preset(), "paper": Preset({"step": list(_ON_GPU)})},
)
def noise(_implementation: str, device: str, *, step: str) -> Callable[[], Any]:
    """One step of a kind of work; there is one implementation, and both sides are it."""
    if step == "python":
        return _python if device == "cpu" else skip("plain Python runs on the CPU alone")
    import torch

    on_gpu = device.startswith("cuda")
    if step == "matmul":
        size, dtype = (4096, torch.bfloat16) if on_gpu else (512, torch.float32)
        left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        product = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=product)
    source = torch.randn(2**27 if on_gpu else 2**23, device=device)  # 512 MiB and 32 MiB: more than the caches hold
    doubled = torch.empty_like(source)
    return lambda: torch.add(source, source, out=doubled)


def _python() -> int:
    total = 0
    for number in range(_PYTHON_LOOPS):
        total = (total * 31 + number) % 65_521
    return total
