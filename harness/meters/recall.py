"""What fake operators returned, by the shapes of their arguments: a step calls the same few of them thousands of times.

torch remembers as well, but reads seventeen properties of each argument, and checks anew each tensor that it makes: that took
longer than all that the meters do. Here a call is remembered where what it returns can be made again from little: a tensor of
its own, a view of an argument, or the argument itself. Everything else is torch's to work out, each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch._library.simple_registry import singleton
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

Key: TypeAlias = tuple[Any, ...]

_OF_TORCH = frozenset({"aten", "prims"})
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class _Made:
    """How a tensor is made anew: of these sizes, on the storage of the argument that `of` names, or that argument itself."""

    of: int | None = None
    same: bool = False
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = _CPU


@dataclass(frozen=True)
class _Several:
    """Of a call that returns a list or a tuple: its type, and what is in it."""

    kind: type
    parts: tuple[_Made | None, ...]


_Returned: TypeAlias = _Made | _Several | None


class _Elsewhere(Exception):
    """A call that is torch's to work out."""


class Recall:
    """The memory of one fake mode. What torch's own operators return is remembered by all of them."""

    _of_torch: ClassVar[dict[Key, _Returned]] = {}

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._of_others: dict[Key, _Returned] = {}  # which may ask what device is predicted: one as long as the mode lasts
        self._attributes: dict[torch.device, dict[str, Any]] = {}  # of a fake tensor of each device, as torch leaves them

    def call(self, operator: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any], work_out: Any) -> Any:
        """What an operator returns: remembered, or by `work_out`, which is handed what a dispatch mode is."""
        tensors: list[FakeTensor] = []
        try:
            key = self._key(operator, args, kwargs, tensors)
        except _Elsewhere:
            return work_out(operator, types, args, kwargs)
        known = self._of_torch if operator.namespace in _OF_TORCH else self._of_others
        if key in known:
            return self._again(known[key], tensors)
        result = work_out(operator, types, args, kwargs)
        try:
            if self._key(operator, args, kwargs, []) == key:  # or it gave an argument another shape
                known[key] = _how(result, tensors, operator.is_view)
        except _Elsewhere:
            pass
        return result

    def _key(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[FakeTensor]) -> Key:
        if not _is_told_by_shapes(operator):
            raise _Elsewhere
        parts = [operator, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        self._describe(args, parts, tensors)
        for name, value in kwargs.items():
            parts.append(name)
            self._describe((value,), parts, tensors)
        if operator.is_view:  # to the others it is the same where in its storage a tensor lies
            for tensor in tensors:
                parts += (tensor.storage_offset(), tensor.untyped_storage().nbytes())
        return tuple(parts)

    def _describe(self, values: Sequence[Any], parts: list[Any], tensors: list[FakeTensor]) -> None:
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.constant is not None or value.fake_mode is not self._mode or not _is_plain(value):
                    raise _Elsewhere
                tensors.append(value)
                parts += (
                    value.dtype,
                    value.shape,
                    value.stride(),
                    value.fake_device,
                    value.requires_grad,
                    value.is_inference(),
                )
            elif kind is list or kind is tuple:
                parts += (kind, len(value))
                self._describe(value, parts, tensors)
            elif isinstance(value, (Tensor, dict)):
                raise _Elsewhere
            else:
                parts += (kind, value)  # 1 and 1.0 are equal, and do not give equal dtypes

    def _again(self, how: _Returned, tensors: Sequence[FakeTensor]) -> Any:
        if isinstance(how, _Several):
            return how.kind(self._make(one, tensors) for one in how.parts)
        return self._make(how, tensors)

    def _make(self, how: _Made | None, tensors: Sequence[FakeTensor]) -> FakeTensor | None:
        if how is None:
            return None
        if how.same and how.of is not None:
            return tensors[how.of]
        made = torch.empty_strided(how.shape, how.stride, dtype=how.dtype, device="meta")
        if how.of is not None:
            made.set_(tensors[how.of].untyped_storage(), how.offset, how.shape, how.stride)
        return self._fake(made, how.device)

    def _fake(self, meta: Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor on a `meta` one, as its constructor makes it of arguments that need no looking at."""
        attributes = self._attributes.get(device)
        if attributes is None:
            like = FakeTensor(self._mode, torch.empty(0, device="meta"), device)
            attributes = self._attributes.setdefault(device, dict(like.__dict__))
        made: FakeTensor = Tensor._make_subclass(FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device)
        made.__dict__.update(attributes)
        torch._C._set_throw_on_mutable_data_ptr(made)
        return made


def _how(result: Any, tensors: Sequence[FakeTensor], is_view: bool) -> _Returned:
    if type(result) in (list, tuple):
        return _Several(type(result), tuple(_how_one(one, tensors, is_view) for one in result))
    return _how_one(result, tensors, is_view)


def _how_one(result: Any, tensors: Sequence[FakeTensor], is_view: bool) -> _Made | None:
    if result is None:
        return None
    if type(result) is not FakeTensor:
        raise _Elsewhere
    for position, tensor in enumerate(tensors):
        if tensor is result:
            return _Made(position, same=True)
    if result.constant is not None or result.requires_grad or not _is_plain(result):
        raise _Elsewhere
    sizes = (tuple(result.shape), result.stride(), int(result.storage_offset()), result.dtype, result.fake_device)
    storage = result.untyped_storage()
    for position, tensor in enumerate(tensors):
        if tensor.untyped_storage()._cdata == storage._cdata:
            if not is_view:
                raise _Elsewhere
            return _Made(position, False, *sizes)
    fresh = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="meta")
    if result.storage_offset() or fresh.untyped_storage().nbytes() != storage.nbytes():
        raise _Elsewhere
    return _Made(None, False, *sizes)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.dtype.is_complex and not tensor.is_neg()


@lru_cache(maxsize=4096)
def _is_told_by_shapes(operator: Any) -> bool:
    """Whether it is torch's, or a library's that has registered what it returns; one that changes a shape is neither."""
    if not isinstance(operator, OpOverload) or torch.Tag.inplace_view in operator.tags:
        return False
    if operator.namespace in _OF_TORCH or torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "Meta"):
        return True
    return singleton.find(operator.name()).fake_impl.kernel is not None
