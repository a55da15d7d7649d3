"""The largest size that fits a memory, for each case and side: the answer of `frostline cost SUITE --fits`.

Peaks are all but linear in a size, so a line through two of them nearly always meets the limit at the answer, or one beside it;
what it says is then tried, and so is the next size up. A size is tried unless that would take too long: then the line answers,
and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from frostline.results.evidence import varying_axes
from frostline.results.record import Case
from frostline.results.table import Cell, Column, Table
from frostline.results.units import format_value

MOST_OPERATORS = 30_000  # of a step that is tried: a few seconds
_FURTHER = 4  # so many times the largest size so far, where no line is to be trusted
_STRAIGHT = 1e-3  # by how much slopes may differ for peaks to lie on a line
_ENOUGH = 1 << 40  # a size that no memory has been made for


@dataclass(frozen=True)
class Tried:
    """A size that was predicted: the bytes of its peak, and how many operators its step has."""

    peak: float
    operators: float


@dataclass(frozen=True)
class Largest:
    """The largest size that fits.

    Attributes:
        size: 0 where not even 1 fits. peak: bytes, of it.
        line_up_to: the largest size that was tried, where the answer lies on the line through it and those before; 0 where the
            answer was tried and the next size found too large.
        no_end: whether larger sizes were not tried because the peak does not grow.
        falls: a pair of sizes of which the larger one has the smaller peak: a size between those tried may not fit.
    """

    size: int
    peak: float = 0.0
    line_up_to: int = 0
    no_end: bool = False
    falls: tuple[int, int] | None = None


@dataclass(frozen=True)
class Fit:
    """What fits of a case on a side.

    Attributes:
        case: one of its cases; what it says of the axis has no meaning. side: the name.
        largest: the answer; None where there is none, and `reason` says why.
    """

    case: Case
    side: str
    largest: Largest | None = None
    reason: str = ""


def largest_that_fits(try_size: Callable[[int], Tried], limit: float, first: int) -> Largest:
    """The largest size whose peak is within a limit: it was tried, and so was the next one, which is not.

    Args:
        try_size: predicts a size. limit: bytes. first: where to begin, at least 1.
    """
    known: dict[int, Tried] = {}

    def fits(size: int) -> bool:
        known[size] = known.get(size) or try_size(size)
        return known[size].peak <= limit

    low, high = (first, 0) if fits(first) else (0, first)
    while not high:
        size = _next_above(known, low, limit)
        if size > _ENOUGH:
            return Largest(low, known[low].peak, no_end=True, falls=_falls(known))
        if _operators_at(known, size) > MOST_OPERATORS:
            if (reach := _reach(known)) >= _FURTHER * low:  # and there a step may have no more operators than here
                size = reach
            elif _is_straight(known) or (len(known) > 1 and known[low].operators > MOST_OPERATORS):
                return Largest(size, _on_line(known, size), line_up_to=low, falls=_falls(known))
            else:
                size = min(size, _FURTHER * low)
        low, high = (size, 0) if fits(size) else (low, size)
    width, narrowed = high - low, True
    while width > 1:
        middle = _between(known, low, high, limit) if narrowed and low else (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
        narrowed, width = 2 * (high - low) <= width or not narrowed, high - low
    return Largest(low, known[low].peak if low else 0.0, falls=_falls(known))


def _next_above(known: Mapping[int, Tried], low: int, limit: float) -> int:
    """Where the line through the two largest sizes meets the limit; more than `_ENOUGH` where peaks have stopped to grow."""
    if len(known) < 3:  # as many as show whether they are on a line
        return 2 * low
    slope = _slope(known)
    if slope <= 0:
        return _FURTHER * low if _operators_at(known, _FURTHER * low) <= MOST_OPERATORS else _ENOUGH + 1
    return max(low + 1, low + int((limit - known[low].peak) / slope))


def _between(known: Mapping[int, Tried], low: int, high: int, limit: float) -> int:
    share = (limit - known[low].peak) / (known[high].peak - known[low].peak)
    return min(max(low + 1, low + int(share * (high - low))), high - 1)


def _slope(known: Mapping[int, Tried], last: int = 0) -> float:
    """Bytes for each step of the size, between the two largest ones; with `last` the pair that is so many before them."""
    before, size = sorted(known)[-2 - last :][:2]
    return (known[size].peak - known[before].peak) / (size - before)


def _is_straight(known: Mapping[int, Tried]) -> bool:
    return len(known) > 2 and abs(_slope(known) - _slope(known, 1)) <= _STRAIGHT * abs(_slope(known))


def _on_line(known: Mapping[int, Tried], size: int) -> float:
    last = max(known)
    return known[last].peak + _slope(known) * (size - last)


def _operators_at(known: Mapping[int, Tried], size: int) -> float:
    """About how many operators a step of a size would have: as many for each step of it as the largest one so far, at most."""
    last = max(known)
    return known[last].operators * size / last if size > last else 0.0


def _reach(known: Mapping[int, Tried]) -> int:
    """The largest size of which a step has no more than `MOST_OPERATORS`, whatever it has for each step of its size."""
    last = max(known)
    return int(MOST_OPERATORS * last / known[last].operators)


def _falls(known: Mapping[int, Tried]) -> tuple[int, int] | None:
    sizes = sorted(known)
    return next((pair for pair in pairwise(sizes) if known[pair[1]].peak < known[pair[0]].peak), None)


def fits_table(found: Sequence[Fit], axis: str, limit: float, notes: Sequence[str]) -> Table:
    """A row for each case and side.

    Args:
        found: the answers. axis: whose sizes they are. limit: bytes.
        notes: what else holds for all of them.
    """
    axes = [name for name in varying_axes(list({one.case.id: one.case for one in found}.values())) if name != axis]
    columns = [*(Column(name) for name in axes), Column("side"), Column(f"largest {axis}", figures=True)]
    columns.append(Column("peak then", figures=True))
    rows: list[list[Cell]] = []
    for one in found:
        rows.append([*((str(one.case.params.get(name)),) for name in axes), (one.side,), *_answer(one)])
    remarks = [_remark(one) for one in found]
    if any(remarks):
        columns.append(Column("", prose=True))
        rows = [[*row, (remark,)] for row, remark in zip(rows, remarks, strict=True)]
    always = [f"{name}={value}" for name, value in found[0].case.params.items() if name not in axes and name != axis]
    said = [f"always {', '.join(always)}"] if always else []
    return Table(
        f"{found[0].case.suite}: the largest {axis} that fits {format_value(limit, 'B')}", columns, rows, [*said, *notes]
    )


def _answer(one: Fit) -> list[Cell]:
    if one.largest is None:
        return [("-",), ("-",)]
    return [(f"{one.largest.size:,}",), (format_value(one.largest.peak, "B"),)] if one.largest.size else [("none",), ("-",)]


def _remark(one: Fit) -> str:
    found = one.largest
    if found is None:
        return one.reason
    remarks = []
    if found.line_up_to:
        remarks.append(f"on the line through the peaks up to {found.line_up_to:,}: larger ones take too long to predict")
    if found.no_end:
        remarks.append("the peak grows no further: no larger size was tried")
    if found.falls:
        remarks.append(f"peaks do not always grow: {found.falls[1]:,} takes less than {found.falls[0]:,}")
    return "; ".join(remarks)
