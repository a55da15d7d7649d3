"""Carry a plan out: verify each side, measure round after round, store every process, conclude.

Nothing that the measured code does ends a session; the time that it may take does, between two rounds. A side that fails in a
case is tried once more alone, then left out of that case's later rounds; the others go on. Every finished process is stored
before the next begins, so an interrupted session keeps what it measured and `--resume` finishes the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from frostline.harness.budget import Budget, longest_rounds
from frostline.harness.device import hold_device, hold_session, this_machine
from frostline.harness.isolation import Process
from frostline.harness.launch import Launcher
from frostline.harness.plan import Plan
from frostline.harness.predictors import Predictors
from frostline.harness.progress import Progress
from frostline.harness.rounds import Run, measure_round, ratios, record, run_alone, run_beside
from frostline.harness.side import Side
from frostline.results.evidence import Evidence
from frostline.results.flags import OUT_OF_TIME
from frostline.results.judge import Thresholds, judge_session
from frostline.results.record import (
    Case,
    Interleave,
    ProcessRecord,
    Role,
    Session,
    Status,
    Verdict,
    Verification,
    new_id,
)
from frostline.results.store import Store
from frostline.results.verdict import needs_second_look

LEFT_OUT = (Status.SKIPPED, Status.WRONG)  # at once: trying again would tell nothing new


def open_session(plan: Plan, store: Store, command: str, detail: dict[str, Any]) -> Session:
    """Store a new session with its plan, before anything is measured."""
    machine = this_machine(plan.device)
    session = Session(
        id=new_id(),
        command=command,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine_id=machine.id,
        device=plan.device,
        plan=plan.to_json(),
        detail={"frostline": _own_version()} | detail,
    )
    store.add_session(session, machine, [side.record() for side in plan.sides], plan.cases)
    return session


def measure(plan: Plan, store: Store, session: Session, progress: Progress) -> list[Verdict]:
    """Do what is pending of the plan, as far as its budget goes, and conclude. Also finishes a session that was interrupted."""
    earlier = store.processes(session.id)
    state = _State.of(earlier)
    keeper = _Keeper(plan, store, session)
    with hold_session(session.id), hold_device(plan.device), progress, Launcher(plan, progress.note) as launcher:
        budget = Budget(plan.budget_s, longest_rounds(earlier))
        _verify(launcher, state, keeper, progress, budget)
        cases: Collection[str] = {case.id for case in plan.cases}
        ends = plan.looks.ends
        for look, end in enumerate(ends):
            _measure_look(launcher, state, keeper, progress, look, cases, budget)
            begun = {case_id for case_id, round_index in state.done if round_index >= end}
            cases = begun | set(needs_second_look(judge(plan, store, session)))
            if not cases or end == ends[-1]:
                break
            if not budget.cut:
                some = f"{len(cases)} of {len(plan.cases)} cases"
                progress.note(f"inconclusive after {end} rounds in {some}: on to {ends[look + 1]}")
        if budget.cut:
            progress.note(f"the time is used up: {len(budget.cut)} of {len(plan.cases)} cases have fewer rounds than planned")
    return _conclude(plan, store, session, budget.cut)


def predict(plan: Plan, store: Store, session: Session, progress: Progress, early: Sequence[Process] = ()) -> list[Verdict]:
    """The cost model's figures of every case on every side. A few processes a source serve all cases: nothing is run in them.

    `early` are processes from `planned_early`.
    """
    keeper = _Keeper(plan, store, session)
    with Predictors(plan, early) as predictors, progress:
        progress.begin(len(plan.cases), "predicting")
        for case, runs in predictors.predict_all():
            keeper.keep(case, -1, runs, role=Role.PREDICT)
            progress.step(plan.name_of(case))
    return _conclude(plan, store, session)


def measure_figures(plan: Plan, store: Store, session: Session, progress: Progress) -> None:
    """Peaks and counts of every case on every side, without times: each in a process of its own, one after the other."""
    keeper = _Keeper(plan, store, session)
    with hold_session(session.id), hold_device(plan.device), progress, Launcher(plan, progress.note) as launcher:
        work = [(case, side) for case in plan.cases for side in plan.sides_of(case)]
        progress.begin(len(work), "measuring peaks")
        for case, side in work:
            run = run_alone(launcher, case, side, "figures")
            keeper.keep(case, 0, [run], role=Role.MEASURE)
            progress.step(f"{side.implementation}, {plan.name_of(case)}")


@dataclass
class _State:
    """What a session knows of its cases from the records so far; rebuilt from the store on resume."""

    out: set[tuple[str, int]] = field(default_factory=set)  # (case id, position) left out
    in_turn: set[str] = field(default_factory=set)  # cases whose sides do not fit together
    verified: set[tuple[str, int]] = field(default_factory=set)
    done: set[tuple[str, int]] = field(default_factory=set)  # (case id, round)

    @classmethod
    def of(cls, records: Sequence[ProcessRecord]) -> _State:
        state = cls()
        for item in records:
            state.learn(item)
        return state

    def learn(self, item: ProcessRecord) -> None:
        key = (item.case_id, item.position)
        if item.role is Role.VERIFY and item.counted:
            self.verified.add(key)
        if item.role is Role.MEASURE and item.counted:
            self.done.add((item.case_id, item.round))
        if item.interleave is Interleave.PROCESS:
            self.in_turn.add(item.case_id)
        if item.status in LEFT_OUT or (item.attempt > 0 and item.status is not Status.OK):
            self.out.add(key)

    def sides(self, plan: Plan, case: Case, round_index: int) -> list[Side]:
        return [side for side in plan.sides_of(case, round_index) if (case.id, side.position) not in self.out]

    def unverified(self, plan: Plan, case: Case) -> list[Side]:
        return [side for side in plan.sides_of(case) if (case.id, side.position) not in self.verified]

    def interleave(self, case: Case) -> Interleave:
        return Interleave.PROCESS if case.id in self.in_turn else Interleave.BLOCK


@dataclass
class _Keeper:
    """Turns runs into records and stores them in one transaction."""

    plan: Plan
    store: Store
    session: Session
    codes: dict[tuple[Role, str, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item in self.store.processes(self.session.id):
            if item.status is Status.OK:
                self.codes.setdefault((item.role, item.case_id, item.position), item.code_id)

    def keep(self, case: Case, round_index: int, runs: Sequence[Run], **fields: Any) -> list[ProcessRecord]:
        records = [self._of_one_code(record(run, self.plan, self.session.id, case, round_index, **fields)) for run in runs]
        self.store.add_processes(records, ratios(records, self.plan.baseline.position))
        return records

    def _of_one_code(self, item: ProcessRecord) -> ProcessRecord:
        """Code that was edited while it was measured is not one side any more."""
        first = self.codes.setdefault((item.role, item.case_id, item.position), item.code_id)
        if item.status is Status.OK and item.code_id != first:
            return replace(item, status=Status.ERROR, reason="the code of the target packages changed during the session")
        return item


def _verify(launcher: Launcher, state: _State, keeper: _Keeper, progress: Progress, budget: Budget) -> None:
    """Check every side once per case, in a process of its own, before any of its times are taken."""
    plan = launcher.plan
    todo = [case for case in plan.cases if state.unverified(plan, case)]
    progress.begin(len(todo), "checking outputs")
    for case in todo:
        if not budget.allows_check(case.id):
            continue
        runs = run_beside(launcher, case, state.unverified(plan, case), "verify")
        crowded = [run for run in runs if run.status is Status.OOM and len(runs) > 1]
        keeper.keep(case, -1, crowded, role=Role.VERIFY, counted=False)
        runs = [run for run in runs if run not in crowded] + [run_alone(launcher, case, run.side, "verify") for run in crowded]
        for run in runs:
            errors = _judge_outputs(run)
            for item in keeper.keep(case, -1, [run], role=Role.VERIFY, verifications=errors):
                state.learn(item)
        progress.step(f"checked {plan.name_of(case)}")


def _judge_outputs(run: Run) -> list[Verification]:
    """The errors of a verification; one above its bound makes the run `wrong`, with the figure as the reason."""
    errors = [Verification(**error) for error in run.reply.get("verifications", ())]
    for error in errors:
        if run.live and not error.ok:
            run.status = Status.WRONG
            run.reason = f"{error.output} is off by {error.relative:.3g} of its norm, allowed {error.allowed:.3g}"
    return errors


def _measure_look(
    launcher: Launcher,
    state: _State,
    keeper: _Keeper,
    progress: Progress,
    look: int,
    case_ids: Collection[str],
    budget: Budget,
) -> None:
    """The rounds of one look that are not stored yet, and that there is time for."""
    plan = launcher.plan
    pending = list(plan.pending(look, state.done, case_ids))
    work = [len(state.sides(plan, case, round_index)) for case, round_index in pending]  # a round lasts as its sides are many
    progress.begin(len(pending), "measuring", work=sum(work))
    for (case, round_index), expected in zip(pending, work, strict=True):
        sides = state.sides(plan, case, round_index)
        if sides and not budget.allows_round(case.id):
            continue  # a shorter case's may still be in time
        if sides:
            with budget.round(case.id):
                kept = _one_round(launcher, state, keeper, case, round_index, sides)
            for item in kept:
                state.learn(item)
        progress.step(f"round {round_index + 1} of {plan.name_of(case)}", work=expected)


def _one_round(
    launcher: Launcher, state: _State, keeper: _Keeper, case: Case, round_index: int, sides: Sequence[Side]
) -> list[ProcessRecord]:
    """A round, repeated in turn when memory ran out beside others; a side that failed is tried once more alone.

    A second try that succeeds stands for the side in this round (it has no ratio: the baseline was not beside it).
    """
    kept = []
    interleave = state.interleave(case)
    runs = measure_round(launcher, case, sides, round_index, interleave)
    if interleave is Interleave.BLOCK and len(sides) > 1 and any(run.status is Status.OOM for run in runs):
        kept += keeper.keep(case, round_index, runs, role=Role.MEASURE, counted=False, interleave=interleave)
        interleave = Interleave.PROCESS
        runs = measure_round(launcher, case, sides, round_index, interleave)
    failed = [run for run in runs if not run.live and run.status not in LEFT_OUT]
    again = {id(run): measure_round(launcher, case, [run.side], round_index, Interleave.BLOCK) for run in failed}
    passed_over = [run for run in failed if all(second.live for second in again[id(run)])]
    counted = [run for run in runs if run not in passed_over]
    kept += keeper.keep(case, round_index, counted, role=Role.MEASURE, interleave=interleave)
    kept += keeper.keep(case, round_index, passed_over, role=Role.MEASURE, counted=False, interleave=interleave)
    for run in failed:
        stands = run in passed_over
        kept += keeper.keep(case, round_index, again[id(run)], role=Role.MEASURE, counted=stands, attempt=1)
    return kept


def _own_version() -> str:
    try:
        return version("frostline")
    except PackageNotFoundError:  # run from its tree, on a machine where nothing was installed
        return "from the tree"


def judge(plan: Plan, store: Store, session: Session) -> list[Verdict]:
    """What is concluded of everything that the store has of a session, under its plan's thresholds."""
    return judge_session(Evidence.load(store, session.id), Thresholds({"": plan.delta}, plan.byte_tolerance))


def _conclude(plan: Plan, store: Store, session: Session, cut: Collection[str] = ()) -> list[Verdict]:
    """Judge and store; the verdicts of cases that were cut short say so."""
    verdicts = [
        replace(one, flags=(*one.flags, OUT_OF_TIME)) if one.case_id in cut else one for one in judge(plan, store, session)
    ]
    store.add_verdicts(verdicts)
    return verdicts
