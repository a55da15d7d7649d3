"""How far each side is above the least that a step can cost, and what it needs beside its inputs: the points of a floor chart.

The session's baseline is drawn as the floor. A baseline called `floor` does what every side must do and nothing else; then
sides named after it (`floor_unknown`) are floors too. A side's time over it is the geometric mean of its rounds' ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frostline.results.evidence import Evidence, side_names
from frostline.results.record import PEAK_ABOVE_INPUTS, STEP_TIME, Case, SideRecord, Status, UsageError
from frostline.results.statistics import summarise
from frostline.results.units import format_value
from frostline.results.verdict import STATUS_WORDS

FLOOR = "floor"  # the implementation that a suite calls so does nothing but what every side must do
THE_FLOOR = "the floor"


@dataclass(frozen=True)
class FloorPoint:
    """A side: its time over the baseline's, its own time in ns, and its peak above the inputs in bytes.

    `reference` is what the baseline is called in a sentence: `the floor`, or the name of one that is none.
    """

    label: str
    over: float
    time: float
    above: float
    is_floor: bool = False
    reference: str = THE_FLOOR

    @property
    def sentence(self) -> str:
        """The point in words."""
        if self.is_floor:
            return f"{self.label} takes {self.cost}"
        return (
            f"{self.label} takes {format_value(self.time, 'ns')}, {self.over:.3f} x {self.reference},"
            f" and {format_value(self.above, 'B')} above the inputs"
        )

    @property
    def cost(self) -> str:
        """What a baseline costs: its time, and its memory if it is no floor, which needs none of its own."""
        memory = "" if self.reference == THE_FLOOR else f" and {format_value(self.above, 'B')} above the inputs"
        return format_value(self.time, "ns") + memory


@dataclass(frozen=True)
class FloorPanel:
    """The points of one case, over what `reference` names. `remarks` name sides that are not drawn, with the reason."""

    title: str
    case: Case
    points: Sequence[FloorPoint]
    remarks: Sequence[str] = ()
    reference: str = THE_FLOOR


def load_floor_panels(evidence: Evidence, panel: str = "lm_head") -> list[FloorPanel]:
    """A panel for each value of an axis: of its cases the one with the most sides, the first of several.

    Raises:
        UsageError: no such axis, or no case in which a side and the floor were measured.
    """
    best: dict[object, FloorPanel] = {}
    for case in evidence.cases:
        if panel not in case.params:
            raise UsageError(f"chart: no axis {panel!r}; the session's cases have {', '.join(case.params)}")
        value = case.params[panel]
        made = _panel(evidence, case, f"{panel} {value}")
        if made is not None and (value not in best or len(made.points) > len(best[value].points)):
            best[value] = made
    if not best:
        name = side_names(evidence.sides)[evidence.baseline.position]
        raise UsageError(f"chart: session {evidence.session.id} has no case in which a side was measured beside {name}")
    return list(best.values())


def _panel(evidence: Evidence, case: Case, title: str) -> FloorPanel | None:
    names, points, remarks = side_names(evidence.sides), [], []
    for side in (side for side in evidence.sides if evidence.takes_part(case.id, side.position)):
        standing = evidence.standing(case.id, side.position)
        if standing.status is Status.OK:
            points += _point(evidence, case, side, names)
        elif standing.status is not None:
            remarks.append(f"{names[side.position]} {STATUS_WORDS[standing.status]}: not drawn")
    drawn = [point for point in points if not point.is_floor]
    over = _reference(evidence, names)
    return FloorPanel(title, case, points, remarks, over) if drawn and len(points) > len(drawn) else None


def _point(evidence: Evidence, case: Case, side: SideRecord, names: Mapping[int, str]) -> list[FloorPoint]:
    """The side's point; none where a figure is missing."""
    time, floor = (
        summarise(evidence.values(case.id, one.position, STEP_TIME.name)).median for one in (side, evidence.baseline)
    )
    above = summarise(evidence.values(case.id, side.position, PEAK_ABOVE_INPUTS.name)).median
    logs = [one.log_ratio for one in evidence.round_ratios(case.id, STEP_TIME.name, side.position)]
    over = math.exp(float(np.mean(logs))) if logs else time / floor
    drawable = not (math.isnan(over) or math.isnan(above))
    is_floor, reference = _is_floor(side, evidence.baseline), _reference(evidence, names)
    return [FloorPoint(names[side.position], over, time, above, is_floor, reference)] if drawable else []


def _reference(evidence: Evidence, names: Mapping[int, str]) -> str:
    baseline = evidence.baseline
    return THE_FLOOR if baseline.implementation == FLOOR else names[baseline.position]


def _is_floor(side: SideRecord, baseline: SideRecord) -> bool:
    """Whether a side is the baseline, or a variant of a baseline called `floor`. Other names say nothing: `torch_compile`."""
    variant = baseline.implementation == FLOOR and f"{side.implementation}_".startswith(f"{FLOOR}_")
    return side.position == baseline.position or variant
