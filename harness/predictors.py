"""The processes that predict. What one of them costs is its start, so they are few: nothing that could disturb others runs.

Each source has processes of its own, and in these all of its implementations, case after case: a process stays with one of
them while there is work of it, since what an implementation imports may take longer than its cases. One that failed is
replaced, so that what it did to its process reaches no other case. `planned_early` has them at work while the command plans.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from frostline.harness.describe import Request, plan_run
from frostline.harness.device import usable_cores
from frostline.harness.forks import Refused, Stale, Zygote
from frostline.harness.isolation import Ended, Launch, Process, spawn
from frostline.harness.launch import process_of
from frostline.harness.plan import Plan
from frostline.harness.rounds import Run
from frostline.harness.side import Side, Source
from frostline.harness.zygote import TASKS
from frostline.results.devices import find_device
from frostline.results.record import Case, Status, UsageError

CAPABILITY = "capability"  # in a plan's selection: the generation of the GPU that is predicted, where one was named
PREPARE_TIMEOUT_S = 300.0
MOST = 4  # processes of a source: each takes half a GiB


@dataclass
class _Work:
    """A prediction to be made."""

    side: Side
    case: Case
    done: Future[Run] = field(default_factory=Future)


@dataclass
class _Team:
    """The processes of a source, idle ones with the position that they served last, and the work that waits, by position."""

    pool: ThreadPoolExecutor
    idle: list[tuple[Process, int]] = field(default_factory=list)
    started: list[Process] = field(default_factory=list)
    waiting: dict[int, deque[_Work]] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)

    def take(self, last: int) -> _Work:
        """What a process does next: of the implementation that it has imported, else of one that none has, else of the rest."""
        left = [position for position, works in self.waiting.items() if works]
        untouched = [position for position in left if position not in self.begun]
        position = last if last in left else (untouched or left)[0]
        self.begun.add(position)
        return self.waiting[position].popleft()


@contextmanager
def planned_early(request: Request, device: str | None = None) -> Iterator[tuple[Plan, list[Process]]]:
    """The plan of a request, and as many processes of the installed source as will predict.

    Where that can be, they are copies of one that has imported the suite and what predicting needs. Else each is told to import
    that, and the replies stand out: `Predictors` takes them.

    Args:
        request: what was asked for.
        device: the name of a GPU whose generation's branches are taken, where a suite can tell generations apart.

    Raises:
        UsageError: as `plan_run`, or no such device.
    """
    capability = None if device is None else find_device(device).capability
    with _ready(request) as processes:
        plan = plan_run(request, processes[0])
        if capability is not None:
            plan = replace(plan, selection={**plan.selection, CAPABILITY: list(capability)})
        processes[0].tell(_prepare(request))
        yield plan, processes


@contextmanager
def _ready(request: Request) -> Iterator[list[Process]]:
    """The processes, all but the first told to prepare."""
    cores, processes = usable_cores(), list[Process]()
    given: dict[str, Any] = {"path": None, "targets": (), "timeout_s": PREPARE_TIMEOUT_S, "python": request.python}
    with ExitStack() as stack:
        stack.callback(lambda: close_processes(processes))
        launch: Launch = spawn
        if TASKS.is_dir():
            zygote = Zygote(suite=request.suite, hash_seed=0, predicting=True, **given)
            stack.callback(zygote.close)
            launch = zygote.fork
        for _ in range(min(MOST, cores)):
            start = partial(Process, device="cpu", seed=0, threads=cores, **given)
            try:
                processes.append(start(launch=launch))
            except (Refused, Stale):  # also where the suite cannot be loaded: a new interpreter says why
                launch = spawn
                processes.append(start())
        for process in processes[1:]:
            process.tell(_prepare(request))
        yield processes


def _prepare(request: Request) -> dict[str, object]:
    return {"do": "prepare", "suite": request.suite}


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
        self._early, self._unanswered = early, set(early)
        self._teams = {
            identity: _Team(ThreadPoolExecutor(threads), [] if source.path else [(one, -1) for one in early][:threads])
            for identity, source in sources.items()
        }

    def __enter__(self) -> Predictors:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for team in self._teams.values():
            team.pool.shutdown(wait=False, cancel_futures=True)
        if kind is not None:  # whoever interrupts does not wait for what is being predicted
            for process in (*self._early, *(one for team in self._teams.values() for one in team.started)):
                process.kill()
        for team in self._teams.values():
            team.pool.shutdown()
        close_processes([process for team in self._teams.values() for process in team.started])

    def predict_all(self) -> Iterator[tuple[Case, list[Run]]]:
        """Every case with a run for each of its sides, in the plan's order. Never raises for what the measured code does."""
        asked = [(case, self._plan.sides_of(case)) for case in self._plan.cases]
        runs = self.submit([(side, case) for case, sides in asked for side in sides])
        for case, sides in asked:
            yield case, [next(runs).result() for _ in sides]

    def submit(self, asked: Sequence[tuple[Side, Case]]) -> Iterator[Future[Run]]:
        """Predictions to come, in the order asked for. They never raise for what the measured code does."""
        works = [_Work(side, case) for side, case in asked]
        with self._lock:
            for work in works:
                self._teams[work.side.source.identity].waiting.setdefault(work.side.position, deque()).append(work)
        for work in works:
            team = self._teams[work.side.source.identity]
            team.pool.submit(self._serve, team)
        return iter([work.done for work in works])

    def _serve(self, team: _Team) -> None:
        """Do one piece of a team's work: which one depends on the process that is idle."""
        with self._lock:
            process, last = team.idle.pop() if team.idle else (None, -1)
            work = team.take(last)
        try:
            process = self._answering(process) or self._start(team, work.side)
            work.done.set_result(self._predict(process, team, work))
        except BaseException as error:
            work.done.set_exception(error)

    def _predict(self, process: Process, team: _Team, work: _Work) -> Run:
        run = Run(work.side, process)
        run.attempt("predict", **_request(work.side.source, self._plan, work.case, work.side.implementation))
        run.prove()
        if run.live or run.status is Status.SKIPPED:
            with self._lock:
                team.idle.append((process, work.side.position))
        else:
            process.close()
        return run

    def _answering(self, process: Process | None) -> Process | None:
        """A process, once it has prepared itself; None where it could not: another one tells why, with a case to its name."""
        if process in self._unanswered and process is not None:
            self._unanswered.discard(process)
            try:
                process.answer()
            except (Ended, UsageError):
                return None
        return process

    def _start(self, team: _Team, side: Side) -> Process:
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
