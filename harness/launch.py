"""Who starts the processes of a session: new interpreters, or copies of one zygote a side, renewed every round.

The rounds are what statistics take for independent, and the copies of one zygote share its memory layout, its hash seed and
whatever else an import draws by lot. So a zygote serves one round: the round's cases, and the checks before the first. The next
is not imported while a round measures, which it would disturb, but between two.

The sides of a round are always started alike. Where a side cannot be forked, the whole session goes on with new interpreters,
and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from frostline.harness.forks import Refused, Stale, Zygote
from frostline.harness.isolation import Process
from frostline.harness.plan import Plan
from frostline.harness.side import Side
from frostline.harness.zygote import TASKS


def process_of(side: Side, plan: Plan, round_index: int, **how: Any) -> Process:
    """A fresh process of `side` for one round: all sides of it get the same seed and thread count. `how`: as of `Process`."""
    return Process(
        path=side.source.path,
        targets=side.source.targets,
        device=plan.device,
        seed=plan.seed + round_index + 1,
        threads=plan.threads,
        timeout_s=plan.timeout_s,
        python=plan.python,
        memory_limit=plan.memory_limit,
        **how,
    )


class Launcher:
    """Starts the processes of one plan. A context manager, so that no zygote outlives its session.

    say: tells the user one line.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._say = say
        self._zygotes: dict[int, tuple[int, Zygote]] = {}  # by the side's position: the round that it is for, and the zygote
        self._refusal = ""
        if plan.isolation == "fork" and not TASKS.is_dir():
            self._fall_back(f"this system does not tell a process' threads ({TASKS})")

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        while self._zygotes:
            self._zygotes.popitem()[1][1].close()

    def start(self, sides: Sequence[Side], round_index: int) -> list[Process]:
        """A fresh process of each side for one round: all get the same seed and thread count, and are started the same way."""
        if self.plan.isolation == "fork" and not self._refusal:
            try:
                return self._fork_all(sides, round_index)
            except Refused as refusal:
                self._fall_back(str(refusal))
        return self._start_all(sides, lambda side: process_of(side, self.plan, round_index, spawned_because=self._refusal))

    def _fork_all(self, sides: Sequence[Side], round_index: int) -> list[Process]:
        serves = max(round_index, 0)  # the checks come before round 0 and share its zygotes
        for side in sides:  # all of them first: they import side by side
            if side.position in self._zygotes and self._zygotes[side.position][0] != serves:
                self._zygotes.pop(side.position)[1].close()
            if side.position not in self._zygotes:
                self._renew(side, serves)
        return self._start_all(sides, lambda side: self._fork(side, round_index))

    def _fork(self, side: Side, round_index: int) -> Process:
        for _ in range(2):
            serves, zygote = self._zygotes[side.position]
            try:
                return process_of(side, self.plan, round_index, launch=zygote.fork, said_before=zygote.said())
            except Stale as stale:
                reason = str(stale)
                self._zygotes.pop(side.position)[1].close()
                self._renew(side, serves)
        raise Refused(f"the process to fork from does not last: {reason}")

    def _renew(self, side: Side, serves: int) -> None:
        zygote = Zygote(
            suite=self.plan.suite,
            path=side.source.path,
            targets=side.source.targets,
            hash_seed=self.plan.seed + serves + 1,
            timeout_s=self.plan.timeout_s,
            python=self.plan.python,
        )
        self._zygotes[side.position] = serves, zygote

    def _start_all(self, sides: Sequence[Side], start: Callable[[Side], Process]) -> list[Process]:
        """All or none of them."""
        processes: list[Process] = []
        try:
            for side in sides:
                processes.append(start(side))
        except BaseException:
            for process in processes:
                process.close()
            raise
        return processes

    def _fall_back(self, reason: str) -> None:
        self._refusal = reason  # copies that were made before go on, so the zygotes stay
        self._say(f"--isolation fork: {reason}; every process is started anew instead (spawn)")
