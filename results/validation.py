"""Predictions beside measurements of the same steps: how far the cost model is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frostline.results.devices import gemm_workspace
from frostline.results.evidence import Evidence, side_names, varying_axes
from frostline.results.record import FLOPS, PEAK_ABOVE_INPUTS, PEAK_ALLOCATED, Case, ProcessRecord, Role, Status, UsageError
from frostline.results.table import Cell, Column, Table
from frostline.results.units import format_value

BAR = 0.02  # of the measured peak: what a prediction may be off by


@dataclass(frozen=True)
class Checked:
    """A step that was predicted and measured. Bytes, and FLOPs.

    Attributes:
        case, side: which.
        tensors: the predicted peak of live tensors. workspaces: what the libraries of matrix products hold besides.
        measured: the measured peak. above, measured_above: predicted and measured above what was there before the step.
        flops, measured_flops: predicted and counted of the real step.
    """

    case: Case
    side: str
    tensors: float
    workspaces: float
    measured: float
    above: float
    measured_above: float
    flops: float
    measured_flops: float

    @property
    def predicted(self) -> float:
        """The predicted peak of the whole."""
        return self.tensors + self.workspaces

    @property
    def error(self) -> float:
        """By how much the prediction is off, as a fraction of what was measured; above 0 it is too much."""
        return self.predicted / self.measured - 1

    @property
    def error_above(self) -> float:
        """The same above the inputs."""
        return self.above / self.measured_above - 1 if self.measured_above else 0.0

    @property
    def holds(self) -> bool:
        """Whether the peak is within the bar, and the FLOPs are the same."""
        return abs(self.error) <= BAR and self.flops == self.measured_flops


def load_checked(evidence: Evidence) -> list[Checked]:
    """Every case and side of a session that has both.

    Raises:
        UsageError: there is none.
    """
    names, found = side_names(evidence.sides), []
    for case in evidence.cases:
        for side in evidence.sides:
            pair = [_good(evidence.records(case.id, side.position, role)) for role in (Role.PREDICT, Role.MEASURE)]
            if pair[0] is not None and pair[1] is not None:
                found.append(_checked(case, names[side.position], pair[0], pair[1]))
    if not found:
        raise UsageError(
            f"--session: {evidence.session.id} has nothing that was both predicted and measured; frostline cost SUITE --measure"
        )
    return found


def validation_table(evidence: Evidence) -> Table:
    """A row for each case and side: peaks predicted and measured, how far they differ, and whether that is within the bar."""
    checked, axes = load_checked(evidence), varying_axes(evidence.cases)
    columns = [*(Column(axis) for axis in axes), Column("side")]
    headers = ("predicted", "measured", "off by", "above inputs", "measured", "off by")
    columns += [Column(header, figures=True) for header in headers]
    columns += [Column("FLOPs", figures=True), Column("bar")]
    worst = max(checked, key=lambda one: abs(one.error))
    above = max(checked, key=lambda one: abs(one.error_above))
    equal = sum(one.flops == one.measured_flops for one in checked)
    notes = [
        f"peaks are off by {abs(worst.error):.2%} at most, above the inputs by {abs(above.error_above):.2%}; bar: {BAR:.0%}",
        f"FLOPs are equal in {equal} of {len(checked)}",
    ]
    held = max(one.workspaces for one in checked)
    if held:
        notes.append(f"predicted includes {format_value(held, 'B')} at most that libraries of products hold besides tensors")
    title = f"{evidence.cases[0].suite}: predictions and measurements on {evidence.machine.label}"
    return Table(title, columns, [_row(one, axes) for one in checked], notes)


def _row(one: Checked, axes: Sequence[str]) -> list[Cell]:
    equal = one.flops == one.measured_flops
    return [
        *((str(one.case.params.get(axis)),) for axis in axes),
        (one.side,),
        (format_value(one.predicted, "B"),),
        (format_value(one.measured, "B"),),
        (f"{one.error:+.2%}",),
        (format_value(one.above, "B"),),
        (format_value(one.measured_above, "B"),),
        (f"{one.error_above:+.2%}",),
        ("equal" if equal else f"{one.flops / one.measured_flops - 1:+.2%}" if one.measured_flops else "not counted",),
        ("holds" if one.holds else "missed",),
    ]


def _good(records: Sequence[ProcessRecord]) -> ProcessRecord | None:
    return next((one for one in reversed(records) if one.status is Status.OK and PEAK_ALLOCATED.name in one.measurements), None)


def _checked(case: Case, side: str, predicted: ProcessRecord, measured: ProcessRecord) -> Checked:
    capability = measured.environment.get("capability")
    each = 0 if capability is None else gemm_workspace(tuple(capability))
    return Checked(
        case,
        side,
        tensors=predicted.measurements[PEAK_ALLOCATED.name],
        workspaces=each * len(predicted.cost.get("products_in", ())),
        measured=measured.measurements[PEAK_ALLOCATED.name],
        above=predicted.measurements[PEAK_ABOVE_INPUTS.name],
        measured_above=measured.measurements[PEAK_ABOVE_INPUTS.name],
        flops=predicted.measurements[FLOPS.name],
        measured_flops=measured.measurements.get(FLOPS.name, 0.0),
    )
