"""What each command does, in the words of the other rooms' files: plan, measure, conclude. No parsing and no drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frostline.harness import session as sessions
from frostline.harness.checkout import find_project, git_source, merge_base, restore, worktree_source
from frostline.harness.describe import Request, plan_compare, plan_run
from frostline.harness.plan import Plan
from frostline.harness.progress import Progress
from frostline.harness.side import Source
from frostline.results.record import NothingMeasured, Role, Session, Status, UsageError, Verdict
from frostline.results.store import Store

WORKING_TREE = "working tree"


@dataclass(frozen=True)
class Measured:
    """A finished session and what was concluded of it."""

    session: Session
    plan: Plan
    verdicts: Sequence[Verdict]


def run(request: Request, store: Store, progress: Progress, command: str) -> Measured:
    """Vary the implementation over the installed code."""
    return _measure(plan_run(request), store, progress, command)


def compare(
    request: Request, base: str | None, head: str | None, repo: Path, store: Store, progress: Progress, command: str
) -> Measured:
    """Vary the source. Without `base` HEAD, without `head` the working tree.

    Raises:
        UsageError: neither was named and the working tree is HEAD, or what was named is not there.
        NothingMeasured: a source cannot be built, or nothing on either side could be measured.
    """
    progress.note(f"preparing {base or 'HEAD'} and {head or 'the working tree'}")

    def sources(targets: Sequence[str]) -> list[Source]:
        first = git_source(base or "HEAD", repo, targets, "BASE")
        second = git_source(head, repo, targets, "HEAD") if head else worktree_source(repo, targets)
        if base is None and first.identity == second.identity:
            raise UsageError(
                "BASE HEAD: none was named and the working tree is HEAD, so there is nothing to compare; "
                "change something, or name two revisions (frostline compare main my-branch)"
            )
        return [first, second]

    return _measure(plan_compare(request, sources), store, progress, command)


def resume(session_ref: str, store: Store, progress: Progress) -> Measured:
    """Finish a session that was interrupted, by its stored plan."""
    session = store.session(session_ref)
    plan = Plan.from_json(session.plan)
    restored = [replace(side, source=restore(side.source)) for side in plan.sides]
    return _finish(replace(plan, sides=restored), session, store, progress)


def predict(plan: Plan, store: Store, progress: Progress, command: str) -> Measured:
    """The cost model's figures for a plan, stored as a session of their own."""
    session = sessions.open_session(plan, store, command, {"predicted": True})
    verdicts = sessions.predict(plan, store, session, progress)
    _something_measured(store, session, Role.PREDICT)
    return Measured(session, plan, verdicts)


def gate_sources(base: str | None, head: str | None, repo: Path, targets: Sequence[str]) -> list[Source]:
    """What a gate compares: the merge base with the main branch (or `base`) and the working tree (or `head`)."""
    root = find_project(repo).root
    first = git_source(base or merge_base(root).sha, repo, targets, "--base")
    second = git_source(head, repo, targets, "--head") if head else worktree_source(repo, targets)
    return [first, second]


def _measure(plan: Plan, store: Store, progress: Progress, command: str) -> Measured:
    session = sessions.open_session(plan, store, command, {})
    return _finish(plan, session, store, progress)


def _finish(plan: Plan, session: Session, store: Store, progress: Progress) -> Measured:
    verdicts = sessions.measure(plan, store, session, progress)
    _something_measured(store, session, Role.MEASURE)
    return Measured(session, plan, verdicts)


def _something_measured(store: Store, session: Session, role: Role) -> None:
    """A session in which no process was ok is no success, whatever its rows say."""
    records = store.processes(session.id)
    if not any(item.status is Status.OK and item.role is role for item in records):
        reasons = sorted({f"{item.status}: {item.reason}" for item in records if item.status is not Status.OK})
        raise NothingMeasured(f"nothing could be measured ({'; '.join(reasons[:3]) or 'no process ran'})")
