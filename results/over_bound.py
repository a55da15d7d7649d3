"""How much of the bandwidth bound each side reaches, shape by shape: the points of a bound chart.

A side called `bound` moves the bytes that a case cannot do without and does nothing else. What a side reaches of it is the
bound's time over its own: the geometric mean over the rounds that both were in, else the ratio of their medians. The time is
that of the kernels alone where it was measured, else that of a step as it is called.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frostline.results.evidence import Evidence, side_names, varying_axes
from frostline.results.notes import plain
from frostline.results.record import KERNEL_TIME, STEP_TIME, Case, SideRecord, Status, UsageError
from frostline.results.statistics import summarise

BOUND = "bound"  # the implementation that moves what must be moved
SHAPE = ("rows", "columns")  # the axes that a shape is made of


@dataclass(frozen=True)
class BoundPanel:
    """The cases that differ in their shape alone.

    Attributes:
        place: the values of the other axes that vary in the session, by axis.
        shares: by side and shape what the side reaches of the bound, 1 being all of it.
        shapes: in the order in which they are drawn, the smallest first.
    """

    place: Mapping[str, object]
    shares: Mapping[str, Mapping[tuple[int, int], float]]
    shapes: Sequence[tuple[int, int]]

    @property
    def title(self) -> str:
        """The panel in words."""
        return ", ".join(plain(value).replace("_", " ") for value in self.place.values())

    @property
    def sentences(self) -> list[str]:
        """What each side reaches, from its least to its most."""
        told = []
        for side, shares in self.shares.items():
            low, high = (f"{100 * share:.0f}" for share in (min(shares.values()), max(shares.values())))
            told.append(f"{self.title}: {side} reaches {low if low == high else f'{low} to {high}'} % of the bound")
        return told


def time_of(evidence: Evidence) -> str:
    """The metric that shares are told in."""
    measured = {name for record in evidence.processes for name in record.measurements}
    return KERNEL_TIME.name if KERNEL_TIME.name in measured else STEP_TIME.name


def load_bound_panels(evidence: Evidence) -> list[BoundPanel]:
    """A panel for each combination of what varies beside the shape, in the order of the cases.

    Raises:
        UsageError: no side called `bound`, cases without rows and columns, or none in which a side was measured beside it.
    """
    bound = next((side for side in evidence.sides if side.implementation == BOUND), None)
    if bound is None:
        raise UsageError(f"chart: session {evidence.session.id} has no side {BOUND!r}; measure one with frostline run norms")
    metric, names = time_of(evidence), side_names(evidence.sides)
    axes = [axis for axis in varying_axes(evidence.cases) if axis not in SHAPE] or ["op"]
    found: dict[tuple[object, ...], dict[str, dict[tuple[int, int], float]]] = {}
    for case in evidence.cases:
        if not all(axis in case.params for axis in (*SHAPE, *axes)):
            raise UsageError(f"chart: no axes rows, columns and op in the cases; they have {', '.join(case.params)}")
        shape = (int(case.params["rows"]), int(case.params["columns"]))
        for side in (side for side in evidence.sides if side is not bound):
            share = _share(evidence, case, side, bound, metric)
            if not math.isnan(share):
                sides = found.setdefault(tuple(case.params[axis] for axis in axes), {})
                sides.setdefault(names[side.position], {})[shape] = share
    if not found:
        raise UsageError(f"chart: session {evidence.session.id} has no case in which a side was measured beside {BOUND}")
    return [_panel(dict(zip(axes, place, strict=True)), sides) for place, sides in found.items()]


def _panel(place: Mapping[str, object], sides: Mapping[str, Mapping[tuple[int, int], float]]) -> BoundPanel:
    shapes = {shape for shares in sides.values() for shape in shares}
    return BoundPanel(place, sides, sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape[1])))


def _share(evidence: Evidence, case: Case, side: SideRecord, bound: SideRecord, metric: str) -> float:
    """The bound's time over the side's; NaN where either was not measured."""
    if any(evidence.standing(case.id, one.position).status is not Status.OK for one in (side, bound)):
        return math.nan
    ours, theirs = (_log_ratios(evidence, case, metric, one) for one in (side, bound))
    if common := sorted(ours.keys() & theirs.keys()):
        return math.exp(float(np.mean([theirs[one] - ours[one] for one in common])))
    own, least = (summarise(evidence.values(case.id, one.position, metric)).median for one in (side, bound))
    return least / own


def _log_ratios(evidence: Evidence, case: Case, metric: str, side: SideRecord) -> Mapping[int, float]:
    """A side's log ratios to the baseline by round; of the baseline itself nothing but zeros, in the rounds of the others."""
    if side.position != evidence.baseline.position:
        return {one.round: one.log_ratio for one in evidence.round_ratios(case.id, metric, side.position)}
    rounds = {one.round for other in evidence.others for one in evidence.round_ratios(case.id, metric, other.position)}
    return dict.fromkeys(rounds, 0.0)
