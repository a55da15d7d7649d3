"""Where the rows of a tensor lie."""

from __future__ import annotations

from torch import Tensor


def row_stride(tensor: Tensor) -> int | None:
    """The distance between rows of a [..., D] tensor in elements, where it is the same between all and rows are dense."""
    sizes, strides = tensor.shape, tensor.stride()
    if strides[-1] != 1 and sizes[-1] > 1:
        return None
    distance = None
    reach = 0
    for size, stride in zip(reversed(sizes[:-1]), reversed(strides[:-1]), strict=True):
        if size == 1:
            continue
        if distance is None:
            distance = stride
        elif stride != reach:
            return None
        reach = stride * size
    return sizes[-1] if distance is None else distance


def laid_out(tensor: Tensor) -> tuple[Tensor, int]:
    """The tensor, copied where its rows are not evenly spaced, and the distance between rows."""
    if tensor.is_contiguous():
        return tensor, tensor.shape[-1]
    stride = row_stride(tensor)
    return (tensor.contiguous(), tensor.shape[-1]) if stride is None else (tensor, stride)
