"""What a user can get wrong, said in one line: the argument, what was given and what was wanted."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from frostline.kernels.arguments import FLOATING, is_distributed
from frostline.kernels.matmul import device_kind

# How many rows count: a number that the host knows, "ask" for one question to the device, None for nothing of both.
ActiveRows: TypeAlias = "int | Literal['ask'] | None"


def is_readable(tensor: Tensor) -> bool:
    """Whether reading values costs no synchronisation: a real tensor on the CPU, where no other device's branches are taken."""
    return tensor.device.type == "cpu" and device_kind(tensor) == "cpu" and not is_fake(tensor)


def is_fake(tensor: Tensor) -> bool:
    """Whether there are no values to read, whoever asks: the cost model predicts a step on such tensors."""
    return isinstance(tensor, FakeTensor)


def check_head(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, names: Mapping[str, str]) -> None:
    """Check the tensors that define the logits.

    Args:
        hidden: [..., H].
        weight: [V, H].
        bias: [V] or None.
        targets: the shape of `hidden` without its last dimension, integers.
        names: what the caller's user calls `hidden`, `weight`, `bias` and `targets`.

    Raises:
        TypeError: a dtype that cannot be.
        ValueError: a shape or device that does not fit.
        RuntimeError: a weight that holds no values here (ZeRO-3, FSDP before its gather, a DTensor).
    """
    check_weight(weight, names["weight"])
    if hidden.dtype not in FLOATING:
        raise TypeError(f"{names['hidden']}: got {hidden.dtype}, wanted a floating dtype")
    if hidden.ndim < 1 or weight.ndim != 2 or hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"{names['hidden']}: got shape {_shape(hidden)} with {names['weight']} {_shape(weight)}, wanted [..., H] and [V, H]"
        )
    if weight.dtype != hidden.dtype:
        raise TypeError(f"{names['weight']}: got {weight.dtype}, wanted {hidden.dtype}, the dtype of {names['hidden']}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{names['bias']}: got shape {_shape(bias)}, wanted ({weight.shape[0]},), the rows of {names['weight']}"
        )
    if targets.dtype.is_floating_point or targets.dtype.is_complex or targets.dtype == torch.bool:
        raise TypeError(f"{names['targets']}: got {targets.dtype}, wanted an integer dtype")
    check_shape(targets, tuple(hidden.shape[:-1]), names["targets"], f"that of {names['hidden']} without its last dimension")
    for tensor, name in ((weight, names["weight"]), (bias, names["bias"]), (targets, names["targets"])):
        check_device(tensor, hidden, name, names["hidden"])


def check_tensors(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, names: Mapping[str, str]) -> None:
    """Raise TypeError for what is no tensor, or no floating bias: before autocast, which would cast a module in place."""
    if not isinstance(weight, Tensor):
        check_weight(weight, names["weight"])
    for name, given in (("hidden", hidden), ("targets", targets)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{names[name]}: got {type(given).__name__}, wanted a tensor")
    if bias is not None and not (isinstance(bias, Tensor) and bias.is_floating_point()):
        got = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise TypeError(f"{names['bias']}: got {got}, wanted a tensor of a floating dtype, or None")


def check_weight(weight: Tensor, name: str) -> None:
    """Refuse a weight whose values are not here; computing on it would read nothing, or somebody else's memory."""
    if not isinstance(weight, Tensor):
        raise TypeError(f"{name}: got {type(weight).__name__}, wanted a tensor: of a model's head, `head_parameters` gives it")
    if is_distributed(weight):
        raise RuntimeError(f"{name}: got a DTensor, wanted a plain tensor: pass {name}.full_tensor(), or gather it first")
    if weight.numel() == 0 or weight.untyped_storage().nbytes() == 0:
        raise RuntimeError(
            f"{name}: got shape {_shape(weight)} with an empty storage, as ZeRO-3 and FSDP leave between uses; wanted the whole"
            " weight: gather it first (deepspeed.zero.GatheredParameters, FSDP.summon_full_params)"
        )


def check_shape(tensor: Tensor, wanted: tuple[int, ...], name: str, why: str) -> None:
    """Raise ValueError unless `tensor` has exactly the shape `wanted`."""
    if tuple(tensor.shape) != wanted:
        raise ValueError(f"{name}: got shape {_shape(tensor)}, wanted {wanted}, {why}")


def check_device(tensor: Tensor | None, like: Tensor, name: str, like_name: str) -> None:
    """Raise ValueError unless `tensor`, if there is one, lives where `like` does."""
    if tensor is not None and tensor.device != like.device:
        raise ValueError(f"{name}: got device {tensor.device}, wanted {like.device}, that of {like_name}")


def check_active_rows(active_rows: ActiveRows, rows: int) -> None:
    """Raise ValueError for what is no count of `rows` rows, nor the wish that the device be asked."""
    if active_rows is None or active_rows == "ask":
        return
    if not _is_count(active_rows):
        raise ValueError(f"active_rows: got {active_rows!r}, wanted a count, 'ask' or None")
    if not 0 <= active_rows <= rows:
        raise ValueError(f"active_rows: got {active_rows}, wanted a count from 0 to {rows}, the number of rows")


def _is_count(value: object) -> bool:
    """Whether a value is a whole number, numpy's included, and no bool, which is one by accident."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def check_memory_budget(memory_budget: int | None) -> None:
    """Raise ValueError for what is no number of bytes."""
    if memory_budget is not None and (not _is_count(memory_budget) or memory_budget < 1):
        raise ValueError(f"memory_budget: got {memory_budget!r}, wanted a positive number of bytes, or None")
