"""One round: a fresh process of each side, started and warmed together, then driven in blocks that go forth and back.

At most one process measures at a time (A B B A; with more sides A B C C B A), so that what disturbs the machine falls on
all sides alike and a drift cancels. Where the sides do not fit on the device together, their processes run one after
the other and the records say `interleave=process`. A step may be timed in several ways; each has blocks of its own, and a cycle
goes forth and back with one of them before it turns to the next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

from frostline.harness.isolation import Ended, Process
from frostline.harness.launch import Launcher
from frostline.harness.meters.telemetry import read_telemetry
from frostline.harness.plan import Block, Plan, block_of, cycles
from frostline.harness.provenance import violation
from frostline.harness.side import Side
from frostline.results.record import (
    Case,
    Interleave,
    Module,
    ProcessRecord,
    Role,
    RoundRatio,
    Sample,
    Status,
    new_id,
)
from frostline.results.statistics import round_log_ratio

PROBE_STEPS = 3  # timed alone after all sides are warm: a warm-up beside the others tells no step time


@dataclass
class Run:
    """One side's process while its round lasts, and what it gave."""

    side: Side
    process: Process
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    status: Status = Status.OK
    reason: str = ""
    times: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)
    modules: list[Module] = field(default_factory=list)

    @property
    def live(self) -> bool:
        """Whether it has not failed yet."""
        return self.status is Status.OK

    def attempt(self, do: str, **request: Any) -> None:
        """Ask, and keep the reply or the way it failed."""
        if self.live:
            self.process.tell({"do": do} | request)
            self.collect()

    def take(self, block: Block, number: int) -> None:
        """Ask for a block, and keep its readings as the samples of the side's block `number`."""
        self.attempt("block", **block.request)
        if self.live:
            self.samples += [Sample(block.metric, number, t, value) for t, value in self.reply["readings"]]

    def prove(self) -> None:
        """A module from outside the side, or none of it at all, makes the run an `error` whatever it measured."""
        wrong_code = violation(self.modules, self.side.source.path, self.side.source.targets)
        if wrong_code and self.live:
            self.status, self.reason = Status.ERROR, wrong_code

    def collect(self) -> None:
        """Take the reply to a request that was told before."""
        try:
            self.reply = self.process.answer()
            self.modules = self.reply["modules"]
        except Ended as end:
            self.status, self.reason = end.status, end.reason
            self.modules = end.modules or self.modules


def start_runs(launcher: Launcher, sides: Sequence[Side], round_index: int) -> list[Run]:
    """A fresh process of each side for one round."""
    return [Run(side, process) for side, process in zip(sides, launcher.start(sides, round_index), strict=True)]


def tell_all(runs: Sequence[Run], plan: Plan, case: Case, do: str) -> None:
    """Ask every process for the same thing about a case, side by side, and collect the replies."""
    for run in runs:
        what: dict[str, Any] = {"suite": plan.suite, "version": case.suite_version}
        what |= {"implementation": run.side.implementation, "params": dict(case.params)}
        run.process.tell({"do": do} | what)
    for run in runs:
        run.collect()


def measure_round(launcher: Launcher, case: Case, sides: Sequence[Side], round_index: int, interleave: Interleave) -> list[Run]:
    """Measure one case once on every side. Never raises for what the measured code does."""
    if interleave is Interleave.PROCESS:
        runs = []
        for side in sides:
            runs += _measure_together(launcher, case, [side], round_index)
        return runs
    return _measure_together(launcher, case, sides, round_index)


def run_alone(launcher: Launcher, case: Case, side: Side, do: str, round_index: int = -1) -> Run:
    """One request that builds the case in a process of its own: verification, prediction."""
    return run_beside(launcher, case, [side], do, round_index)[0]


def run_beside(launcher: Launcher, case: Case, sides: Sequence[Side], do: str, round_index: int = -1) -> list[Run]:
    """The same request for several sides at once, a process each."""
    runs = start_runs(launcher, sides, round_index)
    try:
        tell_all(runs, launcher.plan, case, do)
    finally:
        close_all(runs)
    for run in runs:
        run.prove()
    return runs


def close_all(runs: Sequence[Run]) -> None:
    """End the processes of some runs. All are told before any is waited for."""
    for run in runs:
        run.process.dismiss()
    for run in runs:
        run.process.close()


def _measure_together(launcher: Launcher, case: Case, sides: Sequence[Side], round_index: int) -> list[Run]:
    before = read_telemetry(launcher.plan.device)
    runs = start_runs(launcher, sides, round_index)
    try:
        tell_all(runs, launcher.plan, case, "build")
        for run in runs:
            run.times = run.reply["times"] if run.live else []
        _drive(runs, _probe(runs))
        after = read_telemetry(launcher.plan.device)  # while they are there: an idle device lowers its clock
        live = [run for run in runs if run.live]
        for run in live:  # side by side: nothing is timed any more, and each side's peak fitted beside the others' before
            run.process.tell({"do": "finish"})
        for run in live:
            run.collect()
    finally:
        close_all(runs)
    for run in runs:
        run.reply["telemetry"] = {"before": before, "after": after}
        run.prove()
    return runs


def _probe(runs: Sequence[Run]) -> Mapping[int, Mapping[str, Block]]:
    """The blocks of each run by metric, after a look at how long its readings are and how long it takes to get them."""
    live = [run for run in runs if run.live]
    found: dict[int, dict[str, Block]] = {id(run): {} for run in runs}
    for run in live:
        for metric in run.times:
            began = time.perf_counter_ns()
            run.attempt("block", metric=metric, steps=PROBE_STEPS)
            if run.live:
                value = max(1.0, min(value for _, value in run.reply["readings"]))
                each = (time.perf_counter_ns() - began) / PROBE_STEPS
                found[id(run)][metric] = block_of(metric, value, each, len(live))
    return found


def _drive(runs: Sequence[Run], blocks: Mapping[int, Mapping[str, Block]]) -> None:
    """The cycles of a round. A side that fails drops out; the others go on."""
    live = [run for run in runs if run.live]
    metrics = list(dict.fromkeys(metric for run in live for metric in run.times))
    lengths = [sum(block.ns for block in blocks[id(run)].values()) for run in live]
    for cycle in range(cycles(lengths) if live else 0):
        for metric in metrics:
            timed = [run for run in live if run.live and metric in blocks[id(run)]]
            for half, order in enumerate((timed, timed[::-1])):
                for run in order:
                    run.take(blocks[id(run)][metric], 2 * cycle + half)
        live = [run for run in live if run.live]


def record(run: Run, plan: Plan, session_id: str, case: Case, round_index: int, **fields: Any) -> ProcessRecord:
    """What the store keeps of a run."""
    measurements = dict(run.reply.get("measurements", {}))
    for metric in {sample.metric for sample in run.samples}:
        measurements[metric] = median(sample.value for sample in run.samples if sample.metric == metric)
    environment: dict[str, Any] = {"threads": plan.threads}
    if run.process.spawned_because:
        environment["spawned_because"] = run.process.spawned_because
    return ProcessRecord(
        id=new_id(),
        session_id=session_id,
        position=run.side.position,
        case_id=case.id,
        round=round_index,
        status=run.status,
        reason=run.reason,
        started_at=run.started_at,
        seconds=run.process.seconds,
        stderr=run.process.stderr(),
        measurements=measurements,
        samples=run.samples,
        modules=run.modules,
        telemetry=run.reply.get("telemetry", {}),
        isolation=run.process.isolation,
        environment=environment | run.reply.get("environment", {}),
        cost=run.reply.get("cost", {}),
        **fields,
    )


def ratios(records: Sequence[ProcessRecord], baseline_position: int) -> list[RoundRatio]:
    """The log ratios of a counted round: one for each timing metric and each side that is ok, as the baseline is."""
    good = {item.position: item for item in records if item.status is Status.OK and item.counted and item.role is Role.MEASURE}
    base = good.pop(baseline_position, None)
    if base is None:
        return []
    found = []
    for item in good.values():
        for metric in sorted({sample.metric for sample in item.samples}):
            effect = round_log_ratio(_of(item, metric), _of(base, metric))
            if effect is not None:
                place = (item.session_id, item.case_id, item.round, metric, item.position, baseline_position)
                found.append(RoundRatio(*place, effect.log_ratio, effect.cycles, item.interleave))
    return found


def _of(item: ProcessRecord, metric: str) -> list[Sample]:
    return [sample for sample in item.samples if sample.metric == metric]
