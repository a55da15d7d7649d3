"""How large may it be? For each case and side the largest size of an axis whose predicted peak fits a memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from frostline.harness.isolation import Process
from frostline.harness.plan import Plan
from frostline.harness.predictors import Predictors
from frostline.harness.progress import Progress
from frostline.harness.rounds import Run
from frostline.harness.side import Side
from frostline.results.devices import find_device, gemm_workspace
from frostline.results.fits import Fit, Tried, largest_that_fits
from frostline.results.record import OPERATORS, PEAK_ALLOCATED, Case, Status, UsageError

USUAL = "seq_len"  # the axis that is asked for where none is named


@dataclass(frozen=True)
class Fitting:
    """What is asked.

    Attributes:
        limit: bytes that the peak may have. axis: whose sizes are tried, a whole number in every case; None for `seq_len`.
        workspace: bytes beside all tensors for each thread that multiplies, see `gemm_workspace`.
    """

    limit: int
    axis: str | None = None
    workspace: int = 0

    @staticmethod
    def on(device: str | None, axis: str | None, limit: int) -> Fitting:
        """With the workspaces of a named GPU. Raises UsageError: no such device."""
        return Fitting(limit, axis, 0 if device is None else gemm_workspace(find_device(device).capability))

    @property
    def notes(self) -> list[str]:
        """What the peaks are, for a reader."""
        held = (
            "the workspaces of matrix products included" if self.workspace else "without what libraries hold: name a --device"
        )
        return [f"peaks by the cost model: live tensors, {held}; the driver and the allocator's reserve take more"]


class _NoAnswer(Exception):
    """A size could not be predicted."""


def axis_of(plan: Plan, asked: str | None) -> str:
    """The axis whose largest size is looked for.

    Raises:
        UsageError: the suite has no such axis, or its values are no whole numbers.
    """
    params = plan.cases[0].params
    whole = [name for name, value in params.items() if type(value) is int]
    if (axis := asked or USUAL) not in params:
        said = (
            f"--axis: {plan.cases[0].suite} has no axis {axis!r}" if asked else "--axis: name the axis whose largest size fits"
        )
        raise UsageError(f"{said}; {plan.cases[0].suite} has {', '.join(whole) or 'none of whole numbers'}")
    if axis not in whole:
        raise UsageError(f"--axis: {axis} of {plan.cases[0].suite} is no whole number; {', '.join(whole) or 'none'} are")
    return axis


def largest_sizes(plan: Plan, asked: Fitting, progress: Progress, early: Sequence[Process] = ()) -> list[Fit]:
    """The answers, by case and side. Cases that differ in the axis alone are one: the search begins at the first of them.

    Args:
        plan: the cases and sides. early: processes from `planned_early`.

    Raises:
        UsageError: as `axis_of`.
    """
    axis = axis_of(plan, asked.axis)
    work = [(case, side) for case in _cases(plan, axis) for side in plan.sides_of(case)]
    with Predictors(plan, early) as predictors, progress, ThreadPoolExecutor(len(work)) as pool:
        progress.begin(len(work), "predicting")
        stopped = threading.Event()
        answers = [pool.submit(_search, predictors, asked, axis, case, side, stopped) for case, side in work]
        found = []
        try:
            for (case, side), answer in zip(work, answers, strict=True):
                found.append(answer.result())
                progress.step(f"{side.implementation}, {plan.name_of(case)}")
        except BaseException:  # Ctrl-C above all: the pool waits for its searches, and each would go on to its answer
            stopped.set()
            raise
    return found


def _cases(plan: Plan, axis: str) -> list[Case]:
    first: dict[tuple[tuple[str, object], ...], Case] = {}
    for case in plan.cases:
        first.setdefault(tuple((name, value) for name, value in case.params.items() if name != axis), case)
    return list(first.values())


def _search(predictors: Predictors, asked: Fitting, axis: str, case: Case, side: Side, stopped: threading.Event) -> Fit:
    def try_size(size: int) -> Tried:
        if stopped.is_set():
            raise _NoAnswer("stopped")
        tried = replace(case, params={**case.params, axis: size})
        return _tried(next(predictors.submit([(side, tried)])).result(), asked.workspace)

    first = case.params[axis]
    assert isinstance(first, int)  # `axis_of` lets nothing else through
    try:
        return Fit(case, side.implementation, largest_that_fits(try_size, asked.limit, max(1, first)))
    except _NoAnswer as error:
        return Fit(case, side.implementation, reason=str(error))


def _tried(run: Run, workspace: int) -> Tried:
    if run.status is not Status.OK:
        raise _NoAnswer(run.reason)
    figures = run.reply["measurements"]
    peak = float(figures[PEAK_ALLOCATED.name]) + workspace * len(run.reply["cost"]["products_in"])
    return Tried(peak, float(figures.get(OPERATORS.name, 1)))
