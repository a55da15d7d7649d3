"""What the bytes that an op moves are declared in: the sizes of its tensors.

Each op of `torch.ops.frostline` stands beside a formula of what its CUDA kernels read from memory and write to it, called with
the op's arguments (`TRAFFIC` in the file that registers the op). A cost model has no other way to know: what a kernel leaves in
registers and caches is not in its schema. An operand that a product reads again and again is counted once, since its tiles are
walked in an order that keeps them in the L2 cache.
"""

from __future__ import annotations

from torch import Tensor


def size_of(*tensors: Tensor | None) -> int:
    """Bytes of the elements of some tensors, those that are expanded from one counted once; None has none."""
    return sum(_elements(tensor) * tensor.element_size() for tensor in tensors if tensor is not None)


def _elements(tensor: Tensor) -> int:
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count
