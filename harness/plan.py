"""What one session will measure: cases, sides, rounds and their order. Data only; it can be stored, and finished later."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frostline.harness.interpreters import OWN, Interpreter
from frostline.harness.side import Side
from frostline.results.evidence import varying_axes
from frostline.results.looks import Looks
from frostline.results.record import HOST_TIME, STEP_TIME, Bar, Case

BLOCK_STEPS, BLOCK_NS, BLOCK_NS_AT_MOST = 10, 20e6, 200e6
FORTH_NS = 600e6  # a cycle goes forth in this much at most, as far as steps allow: what drifts meanwhile does not cancel
READING_NS = 100e3  # shorter steps are read several at a time: the clock itself costs tens of ns
HOST_CALLS = 50  # that a reading of the host's time covers, so that a block of ten has 500 back to back
CYCLES_AT_LEAST, CYCLES_AT_MOST = 4, 10
ROUND_NS = 2e9  # a round aims at this much measuring, within the bounds on its cycles


@dataclass(frozen=True)
class Plan:
    """One suite's cases on some sides.

    Attributes:
        suite: how the suite was named (`grpo`, `bench.py::softmax`).
        cases: in the order of the axes.
        sides: by position; exactly one is the baseline.
        rounds: of a look.
        max_rounds: of a case in all: looks follow each other up to here while they are inconclusive. None: one look.
        budget_s: seconds that measuring may take; then what is there is judged. None: no limit.
        device: `cpu`, `cuda` or `cuda:N`.
        delta, byte_tolerance: the smallest change worth a word, by metric: a fraction, or bytes.
        threads, seed, timeout_s: given to every process; the seed moves on with the round.
        selection: what the user asked for, for the record.
        fewer_rounds: by case id and implementation, of a side that does not take part in all rounds of a look; 0: not at all.
        isolation: how processes are started: `spawn` or `fork`.
        python: the interpreter that measures.
        memory_limit: bytes of the GPU's memory that a process may allocate, as if the card had no more; None: all it has.
        bars: what the suite asks of the figures, where the implementation varies.
    """

    suite: str
    cases: Sequence[Case]
    sides: Sequence[Side]
    rounds: int
    device: str
    threads: int
    delta: Mapping[str, float] = field(default_factory=dict)
    byte_tolerance: Mapping[str, float] = field(default_factory=dict)
    max_rounds: int | None = None
    budget_s: float | None = None
    seed: int = 0
    timeout_s: float = 600.0
    selection: Mapping[str, Any] = field(default_factory=dict)
    fewer_rounds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    bars: Sequence[Bar] = ()
    isolation: str = "spawn"
    python: Interpreter = OWN
    memory_limit: int | None = None

    @property
    def looks(self) -> Looks:
        """After how many rounds a verdict is tried."""
        return Looks(self.rounds, self.max_rounds or self.rounds)

    @property
    def baseline(self) -> Side:
        """The side that the others are judged against."""
        return next(side for side in self.sides if side.baseline)

    def sides_of(self, case: Case, round_index: int = 0) -> list[Side]:
        """The sides that take part in a round of a case; those of round 0 are all that are measured in it at all."""
        fewer = self.fewer_rounds.get(case.id, {})
        return [side for side in self.sides if round_index % self.rounds < fewer.get(side.implementation, self.rounds)]

    def name_of(self, case: Case) -> str:
        """What tells a case from the plan's others; all of its axes where it is the only one."""
        axes = varying_axes(self.cases) or list(case.params)
        return " ".join(f"{axis}={case.params[axis]}" for axis in axes if axis in case.params) or case.suite

    def pending(self, look: int, done: Collection[tuple[str, int]], case_ids: Collection[str]) -> Iterator[tuple[Case, int]]:
        """What is left of a look: every case once, then every case again, so that an interruption leaves all of them equal.

        `look` counts from 0. `done` holds (case id, round) that are stored already; only cases in `case_ids` are measured.
        """
        ends = (0, *self.looks.ends)
        for round_index in range(ends[look], ends[look + 1]):
            for case in self.cases:
                if case.id in case_ids and (case.id, round_index) not in done:
                    yield case, round_index

    def to_json(self) -> dict[str, Any]:
        """As the session's row keeps it."""
        apart = ("cases", "sides", "bars", "python")
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in apart}
        cases = [{"suite": case.suite, "suite_version": case.suite_version, "params": dict(case.params)} for case in self.cases]
        sides, bars = [side.to_json() for side in self.sides], [vars(bar) for bar in self.bars]
        return plain | {"cases": cases, "sides": sides, "bars": bars, "python": self.python.to_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Plan:
        """The plan of a stored session."""
        fields = dict(stored)
        fields["max_rounds"] = Looks.of_plan(stored).most
        fields.pop("looks", None)  # of a plan of before the most rounds could be asked for
        fields["cases"] = [Case(**case) for case in stored["cases"]]
        fields["sides"] = [Side.from_json(side) for side in stored["sides"]]
        fields["bars"] = tuple(Bar(**bar) for bar in stored.get("bars", ()))
        fields["python"] = Interpreter.from_json(stored.get("python", {}))
        return cls(**fields)


def loops(step_ns: float) -> int:
    """How many runs one reading covers: one, or for steps below 0.1 ms as many as fill that."""
    return max(1, math.ceil(READING_NS / step_ns))


def block_steps(step_ns: float, sides: int = 1) -> int:
    """Readings of `step_ns` each in a block: ten or 20 ms, whichever is more, but at most 200 ms, and at least one.

    Where more than three sides share a round, at most a side's part of 600 ms.
    """
    wanted = max(BLOCK_STEPS, math.ceil(BLOCK_NS / step_ns))
    return max(1, min(wanted, int(min(BLOCK_NS_AT_MOST, FORTH_NS / sides) // step_ns)))


def host_calls(call_ns: float, sides: int = 1) -> int:
    """How many calls one reading of the host's time covers: 50 or more; fewer of long ones, so that ten fit in a block."""
    longest = min(BLOCK_NS_AT_MOST, FORTH_NS / sides) / BLOCK_STEPS
    return max(1, min(max(HOST_CALLS, loops(call_ns)), int(longest // call_ns)))


@dataclass(frozen=True)
class Block:
    """What one block of a metric asks for: `steps` readings of `loops` runs each. It lasts about `ns`."""

    metric: str
    steps: int
    loops: int
    ns: float

    @property
    def request(self) -> dict[str, Any]:
        """As a worker reads it."""
        return {"metric": self.metric, "steps": self.steps, "loops": self.loops}


def block_of(metric: str, value_ns: float, reading_ns: float, sides: int) -> Block:
    """The block of a metric whose readings are about `value_ns`, one of which (of one run) takes `reading_ns` to get.

    Every side's blocks last about as long, whatever its step takes.
    """
    if metric == STEP_TIME.name:
        runs, each = loops(value_ns), value_ns * loops(value_ns)
    elif metric == HOST_TIME.name:
        runs = host_calls(value_ns, sides)
        each = value_ns * runs
    else:
        runs, each = 1, max(value_ns, reading_ns)
    steps = block_steps(each, sides)
    return Block(metric, steps, runs, steps * each)


def cycles(block_ns: Sequence[float]) -> int:
    """Cycles of a round whose sides take `block_ns` a block: each goes forth and back, so twice a cycle."""
    wanted = math.ceil(ROUND_NS / (2 * sum(block_ns)))
    return min(max(wanted, CYCLES_AT_LEAST), CYCLES_AT_MOST)
