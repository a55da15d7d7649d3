"""The processes that predict. What one of them costs is its start, so they are few: nothing that could disturb others runs.

Each source has processes of its own, and in these all of its implementations, case after case. One that failed is replaced, so
that what it did to its process reaches no other case. `planned_early` has them at work while the command is still planning.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from frostline.harness.describe import Request, plan_run
from frostline.harness.device import usable_cores
from frostline.harness.isolation import Ended, Process
from frostline.harness.launch import process_of
from frostline.harness.plan import Plan
from frostline.harness.rounds import Run
from frostline.harness.side import Side, Source
from frostline.results.devices import find_device
from frostline.results.record import Case, Status, UsageError

CAPABILITY = "capability"  # in a plan's selection: the generation of the GPU that is predicted, where one was named
PREPARE_TIMEOUT_S = 300.0
MOST = 4  # processes of a source: each takes half a GiB


@dataclass
class _Team:
    """The processes of a source. A thread asks one of them at a time."""

    pool: ThreadPoolExecutor
    idle: list[Process] = field(default_factory=list)
    started: list[Process] = field(default_factory=list)


@contextmanager
def planned_early(request: Request, device: str | None = None) -> Iterator[tuple[Plan, list[Process]]]:
    """The plan of a request, and as many processes of the installed source as will predict.

    One of them is asked for the plan, and all are told to load what predicting needs; the replies to that stand out, and
    `Predictors` takes them.

    Args:
        request: what was asked for.
        device: the name of a GPU whose generation's branches are taken, where a suite can tell generations apart.

    Raises:
        UsageError: as `plan_run`, or no such device.
    """
    capability = None if device is None else find_device(device).capability
    cores = usable_cores()
    processes = [
        Process(path=None, targets=(), device="cpu", seed=0, threads=cores, timeout_s=PREPARE_TIMEOUT_S, python=request.python)
        for _ in range(min(MOST, cores))
    ]
    try:
        prepare: dict[str, object] = {"do": "prepare", "suite": request.suite}
        for process in processes[1:]:
            process.tell(prepare)
        plan = plan_run(request, processes[0])
        if capability is not None:
            plan = replace(plan, selection={**plan.selection, CAPABILITY: list(capability)})
        processes[0].tell(prepare)
        yield plan, processes
    finally:
        close_processes(processes)


def close_processes(processes: Sequence[Process]) -> None:
    """End processes: all are told before any is waited for."""
    for process in processes:
        process.dismiss()
    for process in processes:
        process.close()


class Predictors:
    """The processes of a plan's sources, as a context that ends those which it started.

    Args:
        plan: what will be predicted.
        early: processes of the installed source from `planned_early`.
    """

    def __init__(self, plan: Plan, early: Sequence[Process] = ()) -> None:
        self._plan, self._lock = plan, threading.Lock()
        sources = {side.source.identity: side.source for side in plan.sides}
        threads = max(1, min(MOST, usable_cores()) // len(sources))
        self._unanswered = set(early)
        self._teams = {
            identity: _Team(ThreadPoolExecutor(threads), [] if source.path else list(early)[:threads])
            for identity, source in sources.items()
        }

    def __enter__(self) -> Predictors:
        return self

    def __exit__(self, *_: object) -> None:
        for team in self._teams.values():
            team.pool.shutdown(cancel_futures=True)
        close_processes([process for team in self._teams.values() for process in team.started])

    def predict_all(self) -> Iterator[tuple[Case, list[Run]]]:
        """Every case with a run for each of its sides, in the plan's order. Never raises for what the measured code does."""
        asked = [(case, [self._submit(side, case) for side in self._plan.sides_of(case)]) for case in self._plan.cases]
        for case, futures in asked:
            yield case, [future.result() for future in futures]

    def _submit(self, side: Side, case: Case) -> Future[Run]:
        return self._teams[side.source.identity].pool.submit(self._predict, side, case)

    def _predict(self, side: Side, case: Case) -> Run:
        process = self._process(side)
        run = Run(side, process)
        run.attempt("predict", **_request(side.source, self._plan, case, side.implementation))
        run.prove()
        if run.live or run.status is Status.SKIPPED:
            self._teams[side.source.identity].idle.append(process)
        else:
            process.close()
        return run

    def _process(self, side: Side) -> Process:
        """An idle one, or a new one: there are as many threads as may be at work."""
        team = self._teams[side.source.identity]
        with self._lock:
            process = team.idle.pop() if team.idle else None
        if process in self._unanswered:
            self._unanswered.discard(process)
            try:
                process.answer()
            except (Ended, UsageError):  # another process will tell why, with a case to its name
                process = None
        if process is None:
            process = process_of(side, self._plan, 0)
            team.started.append(process)
        return process


def _request(source: Source, plan: Plan, case: Case, implementation: str) -> dict[str, object]:
    return {
        "suite": plan.suite,
        "version": case.suite_version,
        "implementation": implementation,
        "params": dict(case.params),
        "device": plan.device,
        "targets": list(source.targets),
        "capability": plan.selection.get(CAPABILITY),
    }
