"""What each command does, in the words of the other rooms' files: plan, measure, conclude. No parsing and no drawing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frostline.harness import session as sessions
from frostline.harness.checkout import find_project, installed_source, merge_base, state_of
from frostline.harness.describe import LOOKS, Request, plan_compare
from frostline.harness.interpreters import OWN, Interpreter, find_again
from frostline.harness.isolation import Process
from frostline.harness.meters.telemetry import query_gpu
from frostline.harness.plan import Plan
from frostline.harness.progress import Progress
from frostline.harness.selection import bundled_names
from frostline.harness.side import Source
from frostline.harness.sources import Asked, check, make, restore
from frostline.results.flags import OUT_OF_TIME
from frostline.results.noise import DETAIL as SELF_COMPARISON
from frostline.results.policy import MERGE_BASE, Limits, Policy, SuitePolicy
from frostline.results.record import Interrupted, NothingMeasured, Role, Session, Status, UsageError, Verdict
from frostline.results.store import Store
from frostline.results.verdict import LEAST_ROUNDS

NOISE_SUITE = "noise"  # bundled: what `frostline doctor --noise` compares with itself
NO_LIMITS = Limits()
TARGET = "cuda"  # what is predicted where nothing else is said: a laptop asks what a GPU would need


@dataclass(frozen=True)
class Measured:
    """A finished session and what was concluded of it."""

    session: Session
    plan: Plan
    verdicts: Sequence[Verdict]


def measure(plan: Plan, store: Store, progress: Progress, command: str, *, among_others: bool = False) -> Measured:
    """Measure a plan as a new session. One that is `among_others` may run out of time before anything is measured.

    Raises:
        NothingMeasured: no process of it was ok, or the time was used up before one could be.
    """
    session = sessions.open_session(plan, store, command, state_of(Path()))
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


def predict(plan: Plan, store: Store, progress: Progress, command: str, early: Sequence[Process] = ()) -> Measured:
    """The cost model's figures for a plan, stored as a session of their own, by processes from `planned_early` if there are."""
    session = sessions.open_session(plan, store, command, {"predicted": True} | state_of(Path()))
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


def gate(
    policy: Policy,
    base: str | None,
    head: str | None,
    repo: Path,
    store: Store,
    progress: Progress,
    command: str,
    limits: Limits = NO_LIMITS,
    python: Interpreter = OWN,
) -> tuple[Policy, list[Measured]]:
    """Compare under a policy: a session for each of its suites, predicted or measured.

    `base` defaults to the policy's (the merge base with the main branch, else the parent of HEAD), `head` to the working tree.
    Of a budget every suite gets an equal part, and what an earlier one left of its own. `python` measures, and builds.

    Returns:
        The policy with its suites by the names that their cases have (a file's suite is known once it is loaded), and the
        sessions.
    """
    root = find_project(repo).root
    against = base
    if against is None:
        against = merge_base(root).label if policy.base == MERGE_BASE else policy.base
    predicted = policy.predicted if policy.predicted != "auto" else not query_gpu(["name"])

    def sources(targets: Sequence[str]) -> list[Source]:
        return [make(asked, repo, targets, python) for asked in (Asked(against, "--base"), Asked(head, "--head"))]

    if predicted and limits.given:
        raise UsageError(
            f"{', '.join(limits.given)}: here the cost model decides, and nothing is measured; leave that out, "
            "or set predicted = false in the policy"
        )
    policy = policy.limited(limits)
    done: list[Measured] = []
    named: list[SuitePolicy] = []
    left = policy.budget_s
    for at, suite in enumerate(policy.suites):
        part = None if left is None else max(0.0, left) / (len(policy.suites) - at)
        device = TARGET if predicted else None
        request = _gated(suite, root)
        how: dict[str, Any] = {"isolation": policy.isolation, "python": python.serving(request.suite)}
        request = replace(request, device=device, budget_s=part, **how)
        plan = plan_compare(request, sources)
        named.append(replace(suite, name=plan.cases[0].suite))
        thresholds = policy.thresholds({suite.name: plan.delta})
        plan = replace(plan, delta=thresholds.delta[suite.name], byte_tolerance=thresholds.byte_tolerance)
        begun = time.monotonic()
        if predicted:
            done.append(predict(plan, store, progress, command))
        else:  # a suite without time must not silence what another one found
            done.append(measure(plan, store, progress, command, among_others=True))
        left = None if left is None else left - (time.monotonic() - begun)
    return replace(policy, suites=named), done


def _gated(suite: SuitePolicy, root: Path) -> Request:
    """What the policy asks of a suite; a suite's file is named from the root of the repository."""
    settings = [f"{axis}={','.join(map(str, values))}" for axis, values in suite.axes.items()]
    spec = str(root / suite.name) if suite.name.partition("::")[0].endswith(".py") else suite.name
    return Request(spec, suite.preset, settings, rounds=suite.rounds, max_rounds=suite.max_rounds)


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
