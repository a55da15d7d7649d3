"""What each command does, in the words of the other rooms' files: plan, measure, conclude. No parsing and no drawing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from frostline.harness import session as sessions
from frostline.harness.checkout import find_project, installed_source, state_of
from frostline.harness.describe import LOOKS, Request, plan_compare
from frostline.harness.interpreters import find_again
from frostline.harness.isolation import Process
from frostline.harness.meters.telemetry import query_gpu
from frostline.harness.plan import Plan
from frostline.harness.progress import Progress
from frostline.harness.selection import bundled_names
from frostline.harness.side import Source
from frostline.harness.sources import Asked, check, make, restore
from frostline.results.flags import OUT_OF_TIME
from frostline.results.noise import DETAIL as SELF_COMPARISON
from frostline.results.record import Interrupted, NothingMeasured, Role, Session, Status, UsageError, Verdict
from frostline.results.store import Store
from frostline.results.verdict import LEAST_ROUNDS

NOISE_SUITE = "noise"  # bundled: what `frostline doctor --noise` compares with itself
NO_DETAIL: Mapping[str, Any] = MappingProxyType({})
TARGET = "cuda"  # what is predicted where nothing else is said: a laptop asks what a GPU would need


@dataclass(frozen=True)
class Measured:
    """A finished session and what was concluded of it."""

    session: Session
    plan: Plan
    verdicts: Sequence[Verdict]


def measure(
    plan: Plan,
    store: Store,
    progress: Progress,
    command: str,
    *,
    among_others: bool = False,
    detail: Mapping[str, Any] = NO_DETAIL,
) -> Measured:
    """Measure a plan as a new session. One that is `among_others` may run out of time before anything is measured.

    `detail`: what the session is to know of itself besides.

    Raises:
        NothingMeasured: no process of it was ok, or the time was used up before one could be.
    """
    session = sessions.open_session(plan, store, command, state_of(Path()) | dict(detail))
    return _finish(plan, session, store, progress, among_others=among_others)


def comparison(request: Request, base: Asked, head: Asked, repo: Path, progress: Progress) -> Plan:
    """A plan that varies the source. Without a text `base` is HEAD and `head` the working tree.

    Raises:
        UsageError: neither was named and the working tree is HEAD, or what was named is not there.
        NothingMeasured: a source cannot be built or downloaded.
    """
    against = replace(base, text="HEAD" if base.text is None else base.text)
    for asked in (against, head):
        check(asked, repo)
        if request.suite in bundled_names() and asked.of_git and not (find_project(repo).root / "kernels").is_dir():
            raise UsageError(
                f"--suite: {request.suite} measures frostline's own kernels, which {find_project(repo).root} does not have; "
                "name a suite file"
            )

    def sources(targets: Sequence[str]) -> list[Source]:
        progress.note(f"preparing {against.text} and {head.text or 'the working tree'}")
        first, second = (make(asked, repo, targets, request.python) for asked in (against, head))
        if base.text is None and first.identity == second.identity:
            raise UsageError(
                "BASE HEAD: none was named and the working tree is HEAD, so there is nothing to compare; "
                "change something, or name two revisions (frostline compare main my-branch)"
            )
        return [first, second]

    return plan_compare(request, sources, say=progress.note)


def self_comparison(device: str | None, threads: int | None, rounds: int | None) -> Plan:
    """A plan that compares the installed code with itself.

    Raises:
        UsageError: a device, threads or rounds that cannot be, or too few rounds to tell anything.
    """
    least = -(-LEAST_ROUNDS // LOOKS)
    if rounds is not None and 1 <= rounds < least:
        raise UsageError(
            f"--rounds: got {rounds}, wanted {least} or more: an A/A of {LOOKS} looks needs {LEAST_ROUNDS} rounds in all"
        )
    where = device or ("cuda" if query_gpu(["name"]) else "cpu")  # the suite has no torch to ask before a step is built
    preset = "small" if where == "cpu" else "paper"
    request = Request(NOISE_SUITE, preset, rounds=rounds, device=where, threads=threads)
    return plan_compare(request, lambda targets: [installed_source(targets)] * 2)


def measure_noise(plan: Plan, store: Store, progress: Progress, command: str) -> Measured:
    """Measure a plan of `self_comparison`, and store that as one of this machine.

    Raises:
        NothingMeasured: no process of it was ok.
    """
    session = sessions.open_session(plan, store, command, {SELF_COMPARISON: True} | state_of(Path()))
    return _finish(plan, session, store, progress)


def resume(session_ref: str, store: Store, progress: Progress, budget_s: float | None = None) -> Measured:
    """Finish a session that was interrupted or ran out of time, by its stored plan but in as much time as is given now."""
    session = store.session(session_ref)
    if session.origin:
        raise UsageError(f"--resume: session {session.id} was imported ({session.origin}); wanted one that was measured here")
    if session.detail.get("predicted"):
        raise UsageError(f"--resume: session {session.id} predicted and measured nothing; ask again with frostline cost")
    plan = _stored_plan(session)
    python = find_again(plan.python, plan.suite)
    restored = [replace(side, source=restore(side.source, python)) for side in plan.sides]
    return _finish(replace(plan, sides=restored, budget_s=budget_s, python=python), session, store, progress)


def verdicts_of(session: Session, store: Store) -> Sequence[Verdict]:
    """A session's verdicts; of one that was interrupted, at first or when it was taken up again, what its rounds so far say."""
    if session.origin:
        return []
    if store.judged_since_measured(session.id):
        return store.verdicts(session.id)
    return sessions.judge(_stored_plan(session), store, session)


def _stored_plan(session: Session) -> Plan:
    """A session's plan without its bars: reports read those from the session, and a broken one must not be in the way."""
    return Plan.from_json({**session.plan, "bars": []})


def predict(
    plan: Plan,
    store: Store,
    progress: Progress,
    command: str,
    early: Sequence[Process] = (),
    detail: Mapping[str, Any] = NO_DETAIL,
) -> Measured:
    """The cost model's figures for a plan, stored as a session of their own, by processes from `planned_early` if there are.

    `detail`: as of `measure`.
    """
    session = sessions.open_session(plan, store, command, {"predicted": True} | state_of(Path()) | dict(detail))
    verdicts = sessions.predict(plan, store, session, progress, early)
    _something_measured(store, session, plan, Role.PREDICT)
    return Measured(session, plan, verdicts)


def measure_beside(plan: Plan, session: Session, store: Store, progress: Progress) -> None:
    """Measure the peaks and counts of what a session predicted, on this machine, into the same session.

    Raises:
        UsageError: the plan is for a GPU and there is none.
        NothingMeasured: no process was ok.
    """
    if plan.device.startswith("cuda") and not query_gpu(["name"]):
        raise UsageError("--measure: there is no GPU here; add --target cpu to predict and measure the branches of the CPU")
    sessions.measure_figures(plan, store, session, progress)
    _something_measured(store, session, plan, Role.MEASURE)


def _finish(plan: Plan, session: Session, store: Store, progress: Progress, *, among_others: bool = False) -> Measured:
    if plan.looks.most < LEAST_ROUNDS:
        few = f"{plan.looks.most} round{'s' * (plan.looks.most > 1)}: fewer than {LEAST_ROUNDS} tell nothing of times"
        progress.note(f"at most {few}, and all will be inconclusive; more are asked for with --rounds or --max-rounds")
    try:
        verdicts = sessions.measure(plan, store, session, progress)
    except KeyboardInterrupt:
        go_on = shlex.join(["frostline", "run", "--resume", session.id, "--db", str(store.path)])
        raise Interrupted(f"everything measured so far is kept, and {go_on} finishes the rest") from None
    out_of_time = any(OUT_OF_TIME in one.flags for one in verdicts)
    if not (out_of_time and among_others):
        _something_measured(
            store, session, plan, Role.MEASURE, "the time was used up before the first round" if out_of_time else ""
        )
    return Measured(session, plan, verdicts)


def _something_measured(store: Store, session: Session, plan: Plan, role: Role, why: str = "") -> None:
    """A session in which no process was ok is no success, whatever its rows say."""
    records = store.processes(session.id)
    if any(item.status is Status.OK and item.role is role for item in records):
        return
    failed = [item for item in records if item.status is not Status.OK]
    reasons = dict.fromkeys(f"{item.status}: {item.reason}" for item in failed)
    said = "; ".join(list(reasons)[:3]) or why or "no process ran"
    last = "\n  ".join(next((item.stderr.strip().splitlines()[-8:] for item in failed if item.stderr.strip()), []))
    done = "predicted" if role is Role.PREDICT else "measured"
    raise NothingMeasured(f"nothing could be {done}{plan.python.place} ({said})" + (f"\n  {last}" if last else ""))
