"""A small recorded world: one machine, one suite, sides at positions, and processes made from times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from frostline.results.record import (
    Case,
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
from frostline.results.record import Interleave as _Interleave

MACHINE = Machine({"cpu": "Test CPU", "cores": 2, "memory": 8 * 2**30, "os": "linux"})


@dataclass
class World:
    """A session under construction. `process` and `ratio` make records that belong to it."""

    session: Session
    machine: Machine
    sides: list[SideRecord]
    cases: list[Case]
    processes: list[ProcessRecord] = field(default_factory=list)
    ratios: list[RoundRatio] = field(default_factory=list)

    def process(
        self, position: int, round: int = 0, *, case: int = 0, times: Sequence[float] = (), **given: Any
    ) -> ProcessRecord:
        samples = [Sample("step_time", i // 2, 1000 * i, value) for i, value in enumerate(times)]
        measurements = dict(given.pop("measurements", {}))
        if times:
            measurements.setdefault("step_time", sorted(times)[len(times) // 2])
        record = ProcessRecord(
            id=new_id(),
            session_id=self.session.id,
            position=position,
            case_id=self.cases[case].id,
            role=given.pop("role", Role.MEASURE),
            round=round,
            status=given.pop("status", Status.OK),
            samples=samples,
            measurements=measurements,
            **given,
        )
        self.processes.append(record)
        return record

    def ratio(self, position: int, round: int, log_ratio: float, *, case: int = 0) -> RoundRatio:
        ratio = RoundRatio(
            self.session.id, self.cases[case].id, round, "step_time", position, 0, log_ratio, 4, _Interleave.BLOCK
        )
        self.ratios.append(ratio)
        return ratio

    def verify(self, position: int, relative: float, allowed: float, *, case: int = 0) -> ProcessRecord:
        verification = Verification("loss", relative, relative, allowed)
        status = Status.OK if verification.ok else Status.WRONG
        return self.process(position, -1, case=case, role=Role.VERIFY, status=status, verifications=(verification,))


def _case(vocab: int, version: str = "v1") -> Case:
    return Case("grpo", version, {"vocab": vocab, "lm_head": "frozen", "dtype": "bfloat16"})


@pytest.fixture
def make_world() -> Callable[..., World]:
    """Make a world with the implementations and vocabularies given; the first implementation is the baseline."""

    def make(
        implementations: Sequence[str] = ("unpruned", "pruned"),
        vocabularies: Sequence[int] = (4096,),
        *,
        machine: Machine = MACHINE,
        version: str = "v1",
        source_kind: str = "installed",
        created_at: str = "2026-01-01T00:00:00+00:00",
    ) -> World:
        sides = [
            SideRecord(i, name, "installed", source_kind, f"source{i}", baseline=i == 0)
            for i, name in enumerate(implementations)
        ]
        session = Session(new_id(), "frostline run grpo", created_at, machine.id, "cpu", {"rounds": 8}, {"torch": "2.13.0"})
        return World(session, machine, sides, [_case(vocab, version) for vocab in vocabularies])

    return make


@pytest.fixture
def module() -> Module:
    return Module("frostline.kernels.lm_head", "kernels/lm_head/__init__.py", "ab" * 32)


@pytest.fixture
def method_page() -> str:
    """The page that has the simulated figures."""
    return (Path(__file__).parents[2] / "docs" / "method.md").read_text(encoding="utf-8")
