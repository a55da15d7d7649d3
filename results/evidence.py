"""What a session has to show: everything that verdicts, reports and charts read of it, loaded once from the store.

Plain data, so that verdicts and reports can be tested (and used) without a database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from frostline.results.looks import Looks
from frostline.results.noise import SelfComparison, latest_self_comparison
from frostline.results.record import (
    IMPORTED,
    METRICS,
    Case,
    Machine,
    Metric,
    ProcessRecord,
    Role,
    RoundRatio,
    Session,
    SideRecord,
    Status,
    UsageError,
    Verification,
)

if TYPE_CHECKING:
    from frostline.results.store import Store


@dataclass(frozen=True)
class Standing:
    """Where a side stands on a case: `status` over all its processes, with the reason of the one that decided.

    `status` is None when no process of it was stored. `verification` is the worst output that was checked, if any was;
    `verified` is False where a check was tried and could not be finished.
    """

    status: Status | None
    reason: str = ""
    verification: Verification | None = None
    verified: bool = True


@dataclass(frozen=True)
class Evidence:
    """A session with its machine, sides, cases, processes (without samples) and rounds' ratios.

    `noise` is the newest self-comparison of the machine that decided anything, whenever it was: it may be newer.
    """

    session: Session
    machine: Machine
    sides: Sequence[SideRecord]
    cases: Sequence[Case]
    processes: Sequence[ProcessRecord]
    ratios: Sequence[RoundRatio] = ()
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    noise: SelfComparison | None = None

    @classmethod
    def load(cls, store: Store, ref: str = "last") -> Evidence:
        """Read a session by `Store.session`'s rules. Raises UsageError where there is none."""
        session = store.session(ref)
        return cls(
            session=session,
            machine=store.machine(session.machine_id),
            sides=store.sides(session.id),
            cases=store.cases(session.id),
            processes=store.processes(session.id),
            ratios=store.ratios(session.id),
            metrics=store.metrics(),
            noise=latest_self_comparison(store, session.machine_id, session.device),
        )

    @property
    def only_predicted(self) -> bool:
        """Whether the cost model was asked and nothing else; not so of a session that ended before anything was measured."""
        asked = bool(self.processes) or bool(self.session.detail.get("predicted"))
        return asked and all(record.role is Role.PREDICT for record in self.processes)

    @property
    def looks(self) -> Looks:
        """After how many rounds the session's plan has a verdict tried."""
        return Looks.of_plan(self.session.plan)

    @property
    def noise_mark(self) -> str:
        """The line to print beside figures of a machine that is noisy; empty where it is not, or where nothing ran."""
        ran = any(record.role is Role.MEASURE for record in self.processes)
        return self.noise.mark if ran and self.noise is not None else ""

    @property
    def baseline(self) -> SideRecord:
        """The side that the others are judged against: the one marked so, else the first."""
        if not self.sides:
            raise UsageError(f"session {self.session.id} has no sides")
        return next((side for side in self.sides if side.baseline), self.sides[0])

    @cached_property
    def varying_axes(self) -> Sequence[str]:
        """The axes that tell the session's cases apart."""
        return varying_axes(self.cases)

    @property
    def others(self) -> list[SideRecord]:
        """Every side but the baseline, by position."""
        return [side for side in self.sides if side.position != self.baseline.position]

    @cached_property
    def _by_place(self) -> Mapping[tuple[str, int], Sequence[ProcessRecord]]:
        places: dict[tuple[str, int], list[ProcessRecord]] = {}
        for record in self.processes:
            if record.counted:
                places.setdefault((record.case_id, record.position), []).append(record)
        return places

    @cached_property
    def _ratios_by_place(self) -> Mapping[tuple[str, str, int], Sequence[RoundRatio]]:
        places: dict[tuple[str, str, int], list[RoundRatio]] = {}
        for ratio in sorted(self.ratios, key=lambda one: one.round):
            places.setdefault((ratio.case_id, ratio.metric, ratio.position), []).append(ratio)
        return places

    def takes_part(self, case_id: str, position: int) -> bool:
        """Whether the session's plan measures a side in a case: a preset may leave it out of some."""
        return self.planned_rounds(case_id, position) != 0

    def planned_rounds(self, case_id: str, position: int) -> int | None:
        """The rounds that the plan gave a side in a case where it gave it fewer than the others, 0 for none; else None."""
        (implementation,) = (side.implementation for side in self.sides if side.position == position)
        fewer: Mapping[str, Mapping[str, int]] = self.session.plan.get("fewer_rounds", {})
        return fewer.get(case_id, {}).get(implementation)

    def records(self, case_id: str, position: int, role: Role) -> list[ProcessRecord]:
        """The counted processes of one role of a side on a case, in the order they were stored."""
        return [record for record in self._by_place.get((case_id, position), ()) if record.role is role]

    def values(self, case_id: str, position: int, metric: str, role: Role = Role.MEASURE) -> list[float]:
        """A metric's value in each counted `ok` process of a side on a case."""
        found = [record for record in self.records(case_id, position, role) if record.status is Status.OK]
        return [record.measurements[metric] for record in found if metric in record.measurements]

    def round_ratios(self, case_id: str, metric: str, position: int) -> Sequence[RoundRatio]:
        """A side's ratios to the baseline on a case, by round."""
        return self._ratios_by_place.get((case_id, metric, position), ())

    def verifications(self, case_id: str, position: int) -> list[Verification]:
        """The outputs of a side that were checked against the reference on a case."""
        return [one for record in self.records(case_id, position, Role.VERIFY) for one in record.verifications]

    def standing(self, case_id: str, position: int, role: Role = Role.MEASURE) -> Standing:
        """Where a side stands on a case, over its counted processes of `role` and (for measured ones) its verification.

        An output that is wrong outweighs all else; then any process that failed. A check that could not be finished (a
        reference too large for the device) makes no side fail that could be measured: it stands unverified.
        """
        measured = self.records(case_id, position, role)
        checks = self.records(case_id, position, Role.VERIFY) if role is Role.MEASURE else []
        outputs = self.verifications(case_id, position) if checks else []
        worst = max(outputs, key=_excess, default=None)
        wrong = next((record for record in (*checks, *measured) if record.status is Status.WRONG), None)
        if wrong is not None or (worst is not None and not worst.ok):
            return Standing(Status.WRONG, wrong.reason if wrong else "", worst)
        unfinished = next((record for record in checks if record.status is not Status.OK), None)
        failed = next((record for record in measured if record.status is not Status.OK), None)
        decisive = failed or (None if measured else unfinished)
        if decisive is not None:
            return Standing(decisive.status, decisive.reason, worst, verified=unfinished is None)
        return Standing(Status.OK if measured else None, "", worst, verified=unfinished is None)


def varying_axes(cases: Sequence[Case]) -> list[str]:
    """The axes that not all cases have the same value for, in the suite's order; the rest belongs in the notes."""
    axes = dict.fromkeys(axis for case in cases for axis in case.params)
    return [axis for axis in axes if len({repr(case.params.get(axis)) for case in cases}) > 1]


def side_names(sides: Sequence[SideRecord]) -> dict[int, str]:
    """The shortest names that tell the sides apart, by position: implementations, sources, both, or both with the position."""
    ways: list[Callable[[SideRecord], str]] = [
        lambda s: s.implementation,
        lambda s: s.source,
        lambda s: s.label,
        lambda s: f"{s.label} #{s.position}",
    ]
    if any(side.source_kind == IMPORTED for side in sides):
        ways = ways[2:]  # of what was imported the name must say so
    for named in ways:
        names = {side.position: named(side) for side in sides}
        if len(set(names.values())) == len(sides):
            break
    return names


def _excess(one: Verification) -> float:
    """By how much an output misses what is allowed: above 1 is wrong. NaN counts as endlessly wrong."""
    if one.ok:
        return one.relative / one.allowed if one.allowed else 0.0
    return one.relative / one.allowed if one.allowed and one.relative == one.relative else float("inf")
