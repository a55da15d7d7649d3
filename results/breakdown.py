"""What predicted figures are made of: the tensors alive at the peak and the operators' work, as its record has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frostline.results.devices import Device
from frostline.results.record import ProcessRecord


@dataclass(frozen=True)
class LiveTensor:
    """A tensor alive at the peak.

    Attributes:
        shape, dtype, bytes: of the tensor that first had the storage, and of the storage.
        operator: what made it; empty where it was made out of sight. node: the node of autograd that called the operator.
        where: the line of the measured code that asked for it, and that line's callers.
        count: how many there are of these, alike in all of that.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    operator: str
    node: str
    where: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True)
class Work:
    """What calls of an operator do in all.

    Attributes:
        operator, dtype: which, and of what it computes on.
        calls, flops, bytes: how many, the FLOPs of their products, bytes read and written.
        declared: whether the bytes are what the kernel's author declares, rather than the least that an operator can do with.
        seconds: the sum of the least times of the calls on a device; 0 without one.
    """

    operator: str
    dtype: str
    calls: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    declared: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Breakdown:
    """A prediction's peak and work.

    Attributes:
        peak_bytes: alive at the peak. operator, node, where: what ran when it was reached.
        at, operators: how many operators of the step had been dispatched then, of how many.
        alive: the largest tensors alive then, alike ones together.
        calls: as the cost model counted them (`harness/meters/counts.py`): operator, dtype, flops, bytes, declared, calls.
        launches: of Triton kernels by hand, by name: what they compute and move is in no call.
    """

    peak_bytes: int
    operator: str
    node: str
    where: tuple[str, ...]
    at: int
    operators: int
    alive: Sequence[LiveTensor]
    calls: Sequence[Mapping[str, Any]]
    launches: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(record: ProcessRecord) -> Breakdown | None:
        """That of a prediction; None of a record that has none, as one of an older version."""
        if not record.cost:
            return None
        peak = dict(record.cost["peak"])
        alive, where = _alike(peak.pop("alive")), tuple(peak.pop("where"))
        rest = {"calls": record.cost["calls"], "launches": record.cost.get("launches", {})}
        return Breakdown(peak.pop("bytes"), where=where, alive=alive, **rest, **peak)

    def work(self, device: Device | None = None) -> list[Work]:
        """The operators' work, the heaviest first: in time on a device, else in FLOPs and then bytes."""
        summed: dict[tuple[str, str], Work] = {}
        for call in self.calls:
            key = call["operator"], call["dtype"]
            before = summed.get(key, Work(*key))
            times = call["calls"]
            least = 0.0 if device is None else device.seconds(call["flops"], call["bytes"], call["dtype"])
            summed[key] = Work(
                *key,
                before.calls + times,
                before.flops + times * call["flops"],
                before.bytes + times * call["bytes"],
                call["declared"],
                before.seconds + times * least,
            )
        return sorted(summed.values(), key=lambda one: (-one.seconds, -one.flops, -one.bytes))


def total(work: Iterable[Work]) -> Work:
    """All of it; `declared` has no meaning there."""
    listed = list(work)
    return Work(
        "",
        "",
        sum(one.calls for one in listed),
        sum(one.flops for one in listed),
        sum(one.bytes for one in listed),
        seconds=sum(one.seconds for one in listed),
    )


def _alike(tensors: Sequence[Mapping[str, Any]]) -> list[LiveTensor]:
    """Tensors of one kind from one line as one, the largest first."""
    counts: dict[LiveTensor, int] = {}
    for one in tensors:
        key = LiveTensor(tuple(one["shape"]), one["dtype"], one["bytes"], one["operator"], one["node"], tuple(one["where"]))
        counts[key] = counts.get(key, 0) + 1
    grouped = [LiveTensor(**{**vars(tensor), "count": count}) for tensor, count in counts.items()]
    return sorted(grouped, key=lambda one: -one.bytes * one.count)
