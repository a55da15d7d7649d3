"""A database as large as wanted, made up: what a page or a report costs must not grow with what was kept.

    python tests/shared/big_database.py big.db 1 312 8 200

makes one session of 312 cases with 8 rounds of two sides and 200 samples a process: 988,800 samples in 4,992 processes.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from frostline.results.evidence import Evidence
from frostline.results.judge import judge_session
from frostline.results.record import (
    FLOPS,
    PEAK_ALLOCATED,
    STEP_TIME,
    Case,
    Interleave,
    Machine,
    Module,
    ProcessRecord,
    Role,
    RoundRatio,
    Sample,
    Session,
    SideRecord,
    Status,
    Verification,
    new_id,
)
from frostline.results.store import Store

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
MACHINE = Machine({"cpu": "made up", "cores": 2, "memory_gib": 24, "os": "Linux"})
SIDES = [SideRecord(0, "pruned", "main", "git", "a" * 16, True), SideRecord(1, "pruned", "my-branch", "git", "b" * 16)]
MODULES = [[Module(f"mine.part{at}", f"/src/{side}/part{at}.py", f"{side}{at:063}") for at in range(20)] for side in (0, 1)]
PLAN = {"suite": "big", "rounds": 8, "max_rounds": 8, "seed": 0, "isolation": "spawn", "threads": 2}


def fill(path: Path, sessions: int, cases: int, rounds: int, samples: int, *, suite: str = "big") -> None:
    """Write the database; every eighth case is 20 % slower on the second side, and every fiftieth cannot run there."""
    chance = random.Random(0)
    planned = [Case(suite, "1", {"vocab": 1000 * (1 + at // 4), "head": f"{suite}{at % 4}"}) for at in range(cases)]
    with Store.open(path) as store:
        for number in range(sessions):
            begun = BEGUN + timedelta(days=number)
            sources = [_source(side) for side in SIDES]
            plan = {**PLAN, "cases": [vars(case) for case in planned], "sides": sources, "rounds": rounds}
            session = Session(new_id(), "frostline compare main my-branch", begun.isoformat(), MACHINE.id, "cpu", plan)
            store.add_session(session, MACHINE, SIDES, planned)
            for at, case in enumerate(planned):
                records = list(_processes(session, case, at, begun, rounds, samples, chance))
                pairs = [
                    pair for pair in zip(records[::2], records[1::2], strict=True) if all(one.measurements for one in pair)
                ]
                store.add_processes(records, [_ratio(session, case, *pair) for pair in pairs])
            store.add_verdicts(judge_session(Evidence.load(store, session.id)))


def _source(side: SideRecord) -> dict[str, object]:
    source = {"label": side.source, "kind": "git", "identity": side.source_id, "path": None, "targets": [], "detail": {}}
    return {"position": side.position, "implementation": side.implementation, "source": source, "baseline": side.baseline}


def _processes(
    session: Session, case: Case, at: int, begun: datetime, rounds: int, samples: int, chance: random.Random
) -> Iterator[ProcessRecord]:
    for number in range(rounds):
        for side in (0, 1):
            fails = side == 1 and at % 50 == 49
            time = 1e6 * (1.2 if side and at % 8 == 7 else 1.0) * chance.gauss(1, 0.01)
            values = [] if fails else [time * chance.gauss(1, 0.01) for _ in range(samples)]
            yield ProcessRecord(
                new_id(),
                session.id,
                side,
                case.id,
                Role.MEASURE,
                number,
                Status.ERROR if fails else Status.OK,
                reason="RuntimeError: no kernel" if fails else "",
                started_at=(begun + timedelta(seconds=10 * at + number)).isoformat(),
                seconds=1.0,
                stderr=f"Traceback of process {number}\n" * 40 if fails else "",
                measurements={} if fails else {STEP_TIME.name: time, PEAK_ALLOCATED.name: 2.0**30, FLOPS.name: 1e12},
                samples=[Sample(STEP_TIME.name, k // 10, k * 10**6, value) for k, value in enumerate(values)],
                verifications=() if fails else (Verification("loss", 1e-6, 1e-6, 1e-3),),
                modules=MODULES[side],
                telemetry={"before": {"clock_mhz": 2000.0, "load_1min": 0.5}, "after": {"clock_mhz": 2000.0, "load_1min": 0.9}},
                environment={"threads": 2, "python": "3.11.7", "pid": number, "seed": number, "affinity": [0, 1]},
            )


def _ratio(session: Session, case: Case, base: ProcessRecord, side: ProcessRecord) -> RoundRatio:
    times = [one.measurements[STEP_TIME.name] for one in (side, base)]
    return RoundRatio(
        session.id, case.id, base.round, STEP_TIME.name, 1, 0, math.log(times[0] / times[1]), 10, Interleave.BLOCK
    )


if __name__ == "__main__":
    file, *counts = sys.argv[1:]
    fill(Path(file), *map(int, counts))
