"""The bytes that an operator cannot do without: what a roofline takes where nobody declares what a kernel moves.

Each tensor argument is read once and each result is written once, whatever an implementation does besides. A view moves
nothing, nor does an allocation; a tensor that is changed in place is read and written, unless it is only written; of a tensor
that an index picks from, only as much as is picked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from frostline.harness.meters.dispatch import tensors_in

_aten = torch.ops.aten


def _named(*names: str) -> frozenset[Any]:
    return frozenset(getattr(_aten, name) for name in names)


_ALLOCATING = _named("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_")
_OVERWRITING = _named("copy_", "fill_", "zero_", "masked_fill_", "normal_", "uniform_", "random_", "_foreach_copy_")
# The first tensor is picked from, or changed at places, as many as the others have elements.
_AT_PLACES = _named(
    "embedding", "gather", "index", "index_add_", "index_copy_", "index_put_", "index_select", "scatter_", "scatter_add_"
)


def least_bytes(operator: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> int:
    """Bytes that one call of an operator reads and writes at least.

    Args:
        operator: the overload, `torch.ops.aten.mm.default`.
        args, kwargs: its arguments.
        result: what it returned.
    """
    known = _known(operator)
    if known.moves_nothing:
        return 0
    read: _Extents = {}
    written: _Extents = {}
    for name, value in (*(zip(known.names, args, strict=False) if known.names else [("", args)]), *kwargs.items()):
        if name in known.changed:
            _add(value, written)
        if name not in known.only_written:
            _add(value, read)
    returned: _Extents = {}
    _add(result, returned)
    if not known.changed:
        storages = {storage for storage, _ in read}
        if any(storage in storages for storage, _ in returned):
            return 0  # a view
    if known.at_places:
        source = _key(tensors_in(args)[0])
        picked = max(size for key, size in {**read, **returned}.items() if key != source)
        for sizes in (read, written):
            if source in sizes:
                sizes[source] = min(sizes[source], picked)
        returned.pop(source, None)
    return sum(read.values()) + sum({**returned, **written}.values())


_Extents: TypeAlias = dict[tuple[int, int], int]  # of tensors, by storage and place in it: the bytes that their elements take


@dataclass(frozen=True)
class _Known:
    """What an operator's schema tells: the names of its arguments, of those that it changes, and of those only written."""

    names: tuple[str, ...]
    changed: frozenset[str]
    only_written: frozenset[str]
    moves_nothing: bool
    at_places: bool


@lru_cache(maxsize=4096)
def _known(operator: Any) -> _Known:
    packet, schema = getattr(operator, "overloadpacket", operator), getattr(operator, "_schema", None)
    arguments = () if schema is None else schema.arguments
    changed = frozenset(one.name for one in arguments if one.alias_info is not None and one.alias_info.is_write)
    return _Known(
        names=tuple(one.name for one in arguments),
        changed=changed,
        only_written=frozenset(name for name in changed if name.startswith("out") or packet in _OVERWRITING),
        moves_nothing=packet in _ALLOCATING or (getattr(operator, "is_view", False) and not changed),
        at_places=packet in _AT_PLACES,
    )


def _add(value: Any, to: _Extents) -> None:
    """Each tensor's bytes, elements that are repeated not counted again."""
    for tensor in tensors_in(value):
        if tensor.layout is torch.strided:
            to[_key(tensor)] = _bytes(tensor)


def _key(tensor: Tensor) -> tuple[int, int]:
    return id(tensor.untyped_storage()), int(tensor.storage_offset())


def _bytes(tensor: Tensor) -> int:
    strides, elements = tensor.stride(), tensor.numel()
    if 0 in strides and elements:
        elements = math.prod(size for size, stride in zip(tensor.shape, strides, strict=True) if stride)
    return elements * tensor.element_size()
