"""The tables of a prediction: the work of each side, and for each of them what its peak and its work are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from frostline.results.breakdown import Breakdown, LiveTensor, Work, total
from frostline.results.devices import Device, find_device
from frostline.results.evidence import Evidence, side_names, varying_axes
from frostline.results.record import Case, Role, Verdict
from frostline.results.report import bench_table
from frostline.results.table import Cell, Column, Table
from frostline.results.units import MISSING, format_value

ESTIMATE = (
    "an estimate, and the least it can be: for each operator the time of its products at the peak rate or of its bytes at the"
    " full bandwidth, whichever is more; launches, waiting and caches are left out"
)


def cost_tables(evidence: Evidence, verdicts: Sequence[Verdict], name: str | None = None, top: int = 0) -> Iterator[Table]:
    """All that is told of a prediction: figures and verdicts, the work, and with `top` what the figures are made of.

    Args:
        evidence, verdicts: the session and what was concluded of it.
        name: of a device whose time is estimated.
        top: how many tensors and operators are named of each case and side; 0: none.
    """
    device = None if name is None else find_device(name)
    yield bench_table(evidence, verdicts)
    yield work_table(evidence, device)
    if top:
        yield from detail_tables(evidence, top, device)


def work_table(evidence: Evidence, device: Device | None = None) -> Table:
    """A row for each case and side: operators, FLOPs, bytes moved, and the least time on a device where one is named."""
    axes, names = varying_axes(evidence.cases), side_names(evidence.sides)
    columns = [*(Column(axis) for axis in axes), Column("side")]
    columns += [Column(header, figures=True) for header in ("operators", "FLOPs", "bytes moved", "as declared")]
    columns += [Column(f"time at best, {device.title}", figures=True)] if device is not None else []
    rows: list[list[Cell]] = []
    launched: dict[str, set[str]] = {}
    for case, position, found in _breakdowns(evidence):
        if found.launches:
            launched.setdefault(names[position], set()).update(found.launches)
        work = found.work(device)
        whole, declared = total(work), total(one for one in work if one.declared)
        row = [*((str(case.params.get(axis)),) for axis in axes), (names[position],), (f"{found.operators:,}",)]
        row += [(format_value(whole.flops, "FLOP"),), (format_value(whole.bytes, "B"),), (format_value(declared.bytes, "B"),)]
        rows.append([*row, *([(_time(whole.seconds),)] if device is not None else [])])
    notes = [
        "bytes moved: what own kernels declare to read and write; of other operators the least, arguments once and results once"
    ]
    for name, kernels in launched.items():
        notes.append(
            f"{name} launches Triton kernels ({', '.join(sorted(kernels))}): memory is predicted, their work not counted"
        )
    notes += [f"time at best: {ESTIMATE}", f"figures of the {device.title}: {device.source}"] if device is not None else []
    return Table("Work of a step, forward and backward", columns, rows, notes)


def detail_tables(evidence: Evidence, top: int, device: Device | None = None) -> Iterator[Table]:
    """For each case and side, the largest tensors alive at its peak, and its heaviest operators."""
    names = side_names(evidence.sides)
    for case, position, found in _breakdowns(evidence):
        axes = varying_axes(evidence.cases)
        place = ", ".join([names[position], *(f"{axis}={case.params.get(axis)}" for axis in axes)])
        yield _peak_table(place, found, top)
        yield _operator_table(place, found, top, device)


def _breakdowns(evidence: Evidence) -> Iterator[tuple[Case, int, Breakdown]]:
    for case in evidence.cases:
        for side in evidence.sides:
            for record in evidence.records(case.id, side.position, Role.PREDICT)[-1:]:
                found = Breakdown.of(record)
                if found is not None:
                    yield case, side.position, found


def _peak_table(place: str, found: Breakdown, top: int) -> Table:
    """Which tensors are alive at the peak."""
    columns = [Column("bytes", figures=True), Column("share", figures=True), Column("shape"), Column("dtype")]
    columns += [Column("made by"), Column("where")]
    rows = [_tensor_row(one, found.peak_bytes) for one in found.alive[:top]]
    rest = found.peak_bytes - sum(one.bytes * one.count for one in found.alive[:top])
    if rest:
        rows.append([(format_value(rest, "B"),), (_share(rest, found.peak_bytes),), ("the rest",), ("",), ("",), ("",)])
    when = f"reached at operator {found.at:,} of {found.operators:,}"
    by = f", {_called(found.operator, found.node)}, {found.where[0]}" if found.operator else ", before the first"
    return Table(f"{place}: peak {format_value(found.peak_bytes, 'B')}, {when}{by if found.where else ''}", columns, rows)


def _tensor_row(one: LiveTensor, peak: int) -> list[Cell]:
    size = one.bytes * one.count
    shape = f"{one.count} x " if one.count > 1 else ""
    made = _called(one.operator, one.node) if one.operator else "out of sight"
    return [
        (format_value(size, "B"),),
        (_share(size, peak),),
        (shape + f"[{', '.join(f'{length:,}' for length in one.shape)}]",),
        (one.dtype,),
        (made,),
        tuple(f"{'' if i == 0 else 'from '}{line}" for i, line in enumerate(one.where)),
    ]


def _operator_table(place: str, found: Breakdown, top: int, device: Device | None) -> Table:
    """What the operators do."""
    work = found.work(device)
    columns = [Column("operator"), Column("dtype")]
    columns += [Column(header, figures=True) for header in ("calls", "FLOPs", "bytes moved")]
    columns += [Column(f"time at best, {device.title}", figures=True)] if device is not None else []
    rows = [_work_row(one, device) for one in work[:top]]
    if work[top:]:
        left = total(work[top:])
        rows.append(_work_row(Work("the rest", "", left.calls, left.flops, left.bytes, True, left.seconds), device))
    return Table(f"{place}: operators with work", columns, rows)


def _work_row(one: Work, device: Device | None) -> list[Cell]:
    moved = format_value(one.bytes, "B") + ("" if one.declared else " at least")
    row: list[Cell] = [(one.operator,), (one.dtype,), (f"{one.calls:,}",), (format_value(one.flops, "FLOP"),), (moved,)]
    return [*row, *([(_time(one.seconds),)] if device is not None else [])]


def _called(operator: str, node: str) -> str:
    return f"{operator} in {node}" if node else operator


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def _time(seconds: float) -> str:
    return MISSING if math.isnan(seconds) else format_value(1e9 * seconds, "ns")
