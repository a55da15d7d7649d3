"""What holds for the tensors that any kernel is given."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATING = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def is_distributed(tensor: Tensor) -> bool:
    """Whether it is a DTensor: which of its values are here decides what a kernel of it is."""
    return type(tensor) is not Tensor and any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)


def refuse_distributed(tensor: Tensor, name: str) -> None:
    """Raise TypeError for a DTensor."""
    if is_distributed(tensor):
        raise TypeError(f"{name}: got a DTensor, wanted a plain tensor: pass {name}.to_local(), or {name}.full_tensor()")


def check_floating(tensor: Tensor, name: str) -> None:
    """Raise TypeError for a DTensor, or a dtype of no floating-point numbers."""
    refuse_distributed(tensor, name)
    if tensor.dtype not in FLOATING:
        raise TypeError(f"{name}: got {tensor.dtype}, wanted a floating dtype")
