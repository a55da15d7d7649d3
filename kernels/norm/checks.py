"""What a user of the norms can get wrong, said in one line: the argument, what was given and what was wanted."""

from __future__ import annotations

import torch
from torch import Tensor

_FLOATING = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def check(x: Tensor, parameters: tuple[tuple[str, Tensor | None], ...], name: str) -> None:
    """Check what is normalised and the [D] parameters, each with its name.

    Raises:
        TypeError: a dtype that cannot be, or a DTensor.
        ValueError: a shape or device that does not fit.
        RuntimeError: a parameter that holds no values here (ZeRO-3, FSDP before its gather).
    """
    if x.dtype not in _FLOATING:
        raise TypeError(f"{name}: got {x.dtype}, wanted a floating dtype")
    if x.ndim < 1 or x.shape[-1] < 1:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}, wanted [..., D] with D at least 1")
    refuse_distributed(x, name)
    for parameter_name, parameter in parameters:
        if parameter is not None:
            _check_parameter(parameter, parameter_name, x, name)


def refuse_distributed(tensor: Tensor, name: str) -> None:
    """Raise TypeError for a DTensor: which of its rows or columns are here decides what a norm of it is."""
    if type(tensor) is not Tensor and any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__):
        raise TypeError(f"{name}: got a DTensor, wanted a plain tensor: pass {name}.to_local(), or {name}.full_tensor()")


def _check_parameter(parameter: Tensor, name: str, x: Tensor, x_name: str) -> None:
    refuse_distributed(parameter, name)
    if parameter.dtype not in _FLOATING:
        raise TypeError(f"{name}: got {parameter.dtype}, wanted a floating dtype")
    if parameter.numel() == 0:
        raise RuntimeError(
            f"{name}: got shape {tuple(parameter.shape)} without values, as ZeRO-3 and FSDP leave between uses; wanted the"
            " whole parameter: gather it first"
        )
    if parameter.shape != x.shape[-1:]:
        raise ValueError(
            f"{name}: got shape {tuple(parameter.shape)} with {x_name} {tuple(x.shape)}, wanted ({x.shape[-1]},), the last"
            f" dimension of {x_name}"
        )
    if parameter.device != x.device:
        raise ValueError(f"{name}: got device {parameter.device}, wanted {x.device}, that of {x_name}")
