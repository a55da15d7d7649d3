"""Why a prediction is more than another of the same step: the operator that does more, or what is alive at its peak besides.

Lines of code move from revision to revision, so tensors are matched by what they are and by the functions that made them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

from frostline.results.breakdown import Breakdown, LiveTensor, Work
from frostline.results.record import FLOPS, OPERATORS, PEAK_ABOVE_INPUTS, PEAK_ALLOCATED, ProcessRecord
from frostline.results.units import format_value

_Kind: TypeAlias = tuple[object, ...]


def cause_of_more(metric: str, side: ProcessRecord, baseline: ProcessRecord) -> str:
    """A sentence with the operator to look at; empty where the records do not tell.

    Args:
        metric: the name of what is more. side, baseline: two predictions of a step, by different code.
    """
    ours, theirs = Breakdown.of(side), Breakdown.of(baseline)
    if ours is None or theirs is None:
        return ""
    if metric in (PEAK_ALLOCATED.name, PEAK_ABOVE_INPUTS.name):
        return _alive_besides(ours, theirs)
    if metric == FLOPS.name:
        return _done_besides(ours, theirs, lambda work: work.flops, "FLOP")
    return _done_besides(ours, theirs, lambda work: work.calls, "1") if metric == OPERATORS.name else ""


def _alive_besides(ours: Breakdown, theirs: Breakdown) -> str:
    """The kind of tensor of which there are most bytes more."""
    before = Counter[_Kind]()
    for one in theirs.alive:
        before[_kind(one)] += one.bytes * one.count
    now: Counter[_Kind] = Counter()
    last: dict[_Kind, LiveTensor] = {}
    for one in ours.alive:
        now[_kind(one)] += one.bytes * one.count
        last[_kind(one)] = one
    more = {kind: now[kind] - before[kind] for kind in now}
    kind = max(more, key=more.__getitem__, default=None)
    if kind is None or more[kind] <= 0:
        return ""
    one = last[kind]
    shape = f"[{', '.join(f'{length:,}' for length in one.shape)}]"
    by = f", made by {one.operator}{f' in {one.node}' if one.node else ''}" if one.operator else ""
    at = f" at {one.where[0]}" if one.where else ""
    return f"Alive at its peak and not before: {format_value(more[kind], 'B')} of {shape} {one.dtype}{by}{at}."


def _kind(one: LiveTensor) -> _Kind:
    return one.shape, one.dtype, one.operator, one.node, *(line.rpartition(" ")[2] for line in one.where)


def _done_besides(ours: Breakdown, theirs: Breakdown, amount: Callable[[Work], float], unit: str) -> str:
    """The operator that has most more of an amount."""
    before, now = _amounts(theirs, amount), _amounts(ours, amount)
    more = {name: value - before.get(name, 0.0) for name, value in now.items()}
    name = max(more, key=more.__getitem__, default=None)
    if name is None or more[name] <= 0:
        return ""
    what = format_value(more[name], unit) + (" calls" if unit == "1" else "")
    return f"Most of it is {name}: {what} more."


def _amounts(found: Breakdown, amount: Callable[[Work], float]) -> Mapping[str, float]:
    summed: dict[str, float] = {}
    for work in found.work():
        summed[work.operator] = summed.get(work.operator, 0.0) + amount(work)
    return summed
