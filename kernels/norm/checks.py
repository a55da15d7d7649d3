"""What a user of the norms can get wrong, said in one line: the argument, what was given and what was wanted."""

from __future__ import annotations

from torch import Tensor

from frostline.kernels.arguments import check_floating


def check(x: Tensor, parameters: tuple[tuple[str, Tensor | None], ...], name: str) -> None:
    """Check what is normalised and the [D] parameters, each with its name.

    Raises:
        TypeError: a dtype that cannot be, or a DTensor.
        ValueError: a shape or device that does not fit.
        RuntimeError: a parameter that holds no values here (ZeRO-3, FSDP before its gather).
    """
    check_floating(x, name)
    if x.ndim < 1 or x.shape[-1] < 1:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}, wanted [..., D] with D at least 1")
    for parameter_name, parameter in parameters:
        if parameter is not None:
            _check_parameter(parameter, parameter_name, x, name)


def _check_parameter(parameter: Tensor, name: str, x: Tensor, x_name: str) -> None:
    check_floating(parameter, name)
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
