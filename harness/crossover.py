"""The sessions that a crossover chart shows: found in the store, or predicted and measured where they are not there yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from frostline.harness import session as sessions
from frostline.harness.commands import TARGET, measure, predict
from frostline.harness.describe import Request, declared, plan_run
from frostline.harness.meters.telemetry import query_gpu
from frostline.harness.plan import Plan
from frostline.harness.predictors import CAPABILITY
from frostline.harness.progress import Progress
from frostline.results.crossover import load_panels, narrowed, usual_reference
from frostline.results.evidence import Evidence
from frostline.results.record import PEAK_ALLOCATED, Role, Session, SideRecord, UsageError
from frostline.results.store import Store

LENGTH = "seq_len"
CLOSER = 8  # halvings of a crossing's range: from a factor of 2 to one of 1.003 at most


@dataclass(frozen=True)
class Wanted:
    """A plan whose figures a chart shows, in which role, and the request that led to it."""

    role: Role
    request: Request
    plan: Plan


def plans_to_draw(request: Request, metrics: Collection[str], against: str | None, *, predicted: bool = False) -> list[Wanted]:
    """The cost model's plan at full size, where memory is drawn, and that of this machine's own measurements.

    Args:
        request: the suite, and if typed preset, settings and implementations. Without a preset the cost model takes
            `crossover`; measured is the same with a GPU, `crossover_small` without.
        metrics: what will be drawn; times are not predicted.
        against: the side that the others will be compared with; None: `torch` where it is one, else the baseline.
        predicted: the cost model's alone: nothing is measured.

    Raises:
        UsageError: something that the suite does not have, or nothing to draw that is predicted.
    """
    if predicted and PEAK_ALLOCATED.name not in metrics:
        raise UsageError(f"--predicted: the cost model has no {', '.join(metrics)}; leave --metric out, or name peak_allocated")
    device = "cuda" if query_gpu(["name"]) else "cpu"
    measured = (Role.MEASURE, "crossover" if device == "cuda" else "crossover_small", device)
    targets = [] if predicted else [measured]
    if PEAK_ALLOCATED.name in metrics:
        targets.insert(0, (Role.PREDICT, "crossover", TARGET))
    wanted = []
    for role, preset, where in targets:
        asked = replace(request, preset=request.preset or preset, device=where)
        plan = plan_run(asked)
        names = [side.implementation for side in plan.sides]
        if against is not None and against not in names:
            raise UsageError(f"--against: no side {against!r}; drawn are {', '.join(names)}")
        wanted.append(Wanted(role, asked, plan))
    return wanted


def sessions_to_draw(
    wanted: Sequence[Wanted], against: str | None, store: Store, progress: Progress, command: str, *, fill: bool
) -> list[tuple[Evidence, Role]]:
    """The sessions of these plans: what the store holds of the code that is installed; the rest is predicted or measured.

    Args:
        wanted: from `plans_to_draw`.
        against: the side whose line the others' crossings are looked for.
        fill: False refuses to measure anything.

    Returns:
        The sessions as if they had the wanted sides and cases alone, each with the role of the figures to draw.

    Raises:
        UsageError: nothing stored and `fill` is False.
        NothingMeasured: no process was ok.
    """
    shown = []
    for one in wanted:
        session = _stored(one.plan, one.role, store)
        if session is None and not fill:
            suite, preset = one.request.suite, one.request.preset
            command_for = f"frostline {'cost' if one.role is Role.PREDICT else 'run'} {suite} --preset {preset}"
            raise UsageError(f"--no-fill: nothing stored for the preset {preset}; {command_for}, or name a --session")
        if session is None:
            session = (predict if one.role is Role.PREDICT else measure)(one.plan, store, progress, command).session
        if one.role is Role.PREDICT and fill:
            _close_in(one, against, session, store, progress)
        shown.append((_part(one.plan, session, store), one.role))
    return shown


def stored_sessions(refs: Sequence[str], request: Request, store: Store) -> list[tuple[Evidence, Role]]:
    """Sessions by their ids, of whatever machine and code, as if they had what was asked for alone.

    Args:
        refs: ids, or parts of them as `Store.session` takes them.
        request: the sides and axes to keep. Its suite, if it has one, is that of every session; without, all are of one suite.
        store: where the sessions are.

    Raises:
        UsageError: no such session or suite, a session of another suite, or one without such an implementation, axis or case.
    """
    suite = declared(Request(request.suite)).suite if request.suite else ""
    axes = dict(setting.split("=", 1) for setting in request.settings if "=" in setting)
    if len(axes) < len(request.settings):
        raise UsageError(f"--set: expected AXIS=VALUE[,VALUE...] once for each axis, got {', '.join(request.settings)}")
    values = {axis: texts.split(",") for axis, texts in axes.items()}
    shown = []
    for ref in refs:
        evidence = Evidence.load(store, store.session(ref).id)
        suite = suite or evidence.cases[0].suite
        if any(case.suite != suite for case in evidence.cases):
            raise UsageError(f"--session: {evidence.session.id} is of {evidence.cases[0].suite}, expected one of {suite}")
        role = Role.PREDICT if evidence.session.detail.get("predicted") else Role.MEASURE
        shown.append((narrowed(evidence, request.implementations, values), role))
    return shown


def last_session_of(suite: str, store: Store) -> str:
    """The id of the last session that measured cases of a suite.

    Raises:
        UsageError: there is none.
    """
    for session in reversed(store.sessions()):
        measured = not session.detail.get("predicted") and not session.origin
        if measured and any(case.suite == suite for case in store.cases(session.id)):
            return session.id
    raise UsageError(f"--session: {store.path} has no session of {suite}; measure one with frostline run {suite}")


def _stored(plan: Plan, role: Role, store: Store) -> Session | None:
    """The latest session that has every case and side of the plan on the same code, in the role. It may have more."""
    cases, sides = {case.id for case in plan.cases}, {_identity(side.record()) for side in plan.sides}
    for session in reversed(store.sessions()):
        if session.origin or session.plan["selection"].get(CAPABILITY) != plan.selection.get(CAPABILITY):
            continue
        if session.device == plan.device and sides <= {_identity(side) for side in store.sides(session.id)}:
            found = {item.case_id for item in store.processes(session.id, role=role) if item.counted}
            if cases <= found:
                return session
    return None


def _identity(side: SideRecord) -> tuple[str, str, str]:
    """What a side runs, wherever it stands in its session."""
    return side.implementation, side.source_kind, side.source_id


def _part(plan: Plan, session: Session, store: Store) -> Evidence:
    """What a session has of a plan: its sides, and its cases at any length."""
    axes = {axis for case in plan.cases for axis in case.params} - {LENGTH}
    values = {axis: {case.params[axis] for case in plan.cases if axis in case.params} for axis in axes}
    return narrowed(Evidence.load(store, session.id), [side.implementation for side in plan.sides], values)


def _close_in(wanted: Wanted, against: str | None, session: Session, store: Store, progress: Progress) -> None:
    """Predict more lengths around each crossing until it is known to 5 %: a straight line between far points may mislead."""
    sides = Plan.from_json(session.plan).sides  # all of them: it may have more than the plan, at other positions
    for _ in range(CLOSER):
        evidence = _part(wanted.plan, session, store)
        panels = load_panels(evidence, role=Role.PREDICT, against=against or usual_reference(evidence))
        found = [crossing for panel in panels for one in panel.comparisons for crossing in one.crossings]
        between = sorted({round((one.low * one.high) ** 0.5) for one in found if not one.is_narrow})
        if not between:
            return
        settings = [*wanted.request.settings, f"{LENGTH}={','.join(map(str, between))}"]
        closer = plan_run(replace(wanted.request, settings=settings))
        store.add_cases(session.id, closer.cases)
        sessions.predict(replace(closer, sides=sides), store, session, progress)
