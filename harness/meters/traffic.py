"""The bytes that an operator cannot do without: what a roofline takes where nobody declares what a kernel moves.

Each tensor argument is read once and each result is written once, whatever an implementation does besides. A view moves
nothing, nor does an allocation; a tensor that is changed in place is read and written, unless it is only written; of a tensor
that an index picks from, only as much as is picked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

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
    packet = getattr(operator, "overloadpacket", operator)
    if packet in _ALLOCATING:
        return 0
    names, changed = _arguments(operator)
    given = [*zip(names, args, strict=False), *kwargs.items()] if names else [("", args), *kwargs.items()]
    read = {key: size for name, value in given if not _only_written(name, packet, changed) for key, size in _extents(value)}
    written = {key: size for name, value in given if name in changed for key, size in _extents(value)}
    returned = dict(_extents(result))
    storages = {storage for storage, _ in read}
    if not changed and any(storage in storages for storage, _ in returned):
        return 0  # a view
    if packet in _AT_PLACES:
        source = next(iter(_extents(args)))[0]
        picked = max(size for key, size in {**read, **returned}.items() if key != source)
        for sizes in (read, written):
            if source in sizes:
                sizes[source] = min(sizes[source], picked)
        returned.pop(source, None)
    return sum(read.values()) + sum({**returned, **written}.values())


@lru_cache(maxsize=4096)
def _arguments(operator: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names of an operator's arguments, and of those that it changes."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return (), frozenset()
    changed = (one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write)
    return tuple(one.name for one in schema.arguments), frozenset(changed)


def _only_written(name: str, packet: Any, changed: frozenset[str]) -> bool:
    return name in changed and (name.startswith("out") or packet in _OVERWRITING)


def _extents(value: Any) -> Iterator[tuple[tuple[int, int], int]]:
    """Which tensors there are (storage and place in it), and the bytes that the elements of each take, repeats not counted."""
    for tensor in tensors_in(value):
        if tensor.layout == torch.strided:
            yield (id(tensor.untyped_storage()), int(tensor.storage_offset())), _bytes(tensor)


def _bytes(tensor: Tensor) -> int:
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()
