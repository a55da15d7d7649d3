"""What the gate compares with: what was typed, or what the policy names.

Times that were not taken side by side are not compared. So a base is always code, which is measured again beside the head, in
the same job: of a stored session that is what the session had as its head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline.harness.checkout import MAIN_BRANCHES, merge_base, resolve, try_git
from frostline.harness.sources import Asked
from frostline.results.gate import ExitCode, decide
from frostline.results.policy import LAST_GREEN, MERGE_BASE, STORED_SESSION, Policy
from frostline.results.record import Session, SideRecord, UsageError
from frostline.results.store import Store

GATED = "gate"  # in a session's detail: which run of the gate it belongs to, and what that decided by


@dataclass(frozen=True)
class Base:
    """What is compared with, and in words what that is and why; `notes` are lines that everybody should read."""

    asked: Asked
    words: str
    notes: Sequence[str] = ()


def choose_base(policy: Policy, typed: str | None, root: Path, store: Store | None, key: str) -> Base:
    """The base of a gate.

    Args:
        policy: names one.
        typed: what was typed instead, if anything.
        root: the repository.
        store: where earlier gates are; None where there is no database yet.
        key: what the user would call the policy's key, with its line.

    Raises:
        UsageError: no such revision or session, or one whose code is in no commit.
    """
    if typed is not None:
        return Base(Asked(typed, "--base"), f"{typed}, as typed")
    argument = f"gate: {key}"
    if policy.base == MERGE_BASE:
        commit = merge_base(root)
        words = f"{commit.label} ({commit.subject}), where HEAD left the main branch, or its parent"
        return Base(Asked(commit.label, argument), words)
    if policy.base == LAST_GREEN:
        return _last_green(root, store, argument)
    if policy.base.startswith(STORED_SESSION):
        return _of_session(policy.base.removeprefix(STORED_SESSION), root, store, argument)
    return Base(Asked(policy.base, argument), f"{policy.base}, as the policy says")


def _of_session(ref: str, root: Path, store: Store | None, argument: str) -> Base:
    if store is None:
        raise UsageError(f"{argument}: there is no database yet, so no session {ref}; name one with --db")
    try:
        session = store.session(ref)
    except UsageError as problem:
        raise UsageError(f"{argument}: {str(problem).removeprefix('SESSION: ')}") from None
    head = store.sides(session.id)[-1]
    commit = head.detail.get("commit")
    if commit is None or head.detail.get("dirty"):
        what = "had changes that no commit has" if commit else f"measured {head.source}, which is no commit"
        raise UsageError(f"{argument}: session {session.id} {what}, so it cannot be measured again; name a session of a commit")
    resolve(commit, root, argument)
    return Base(Asked(commit, argument), f"{commit[:12]}, which session {session.id} of {session.created_at} measured")


def _last_green(root: Path, store: Store | None, argument: str) -> Base:
    found = next(_green_commits(root, store), None) if store is not None else None
    if found is not None:
        commit, session = found
        words = f"{commit[:12]}, the last on the main branch that passed a gate (session {session.id} of {session.created_at})"
        return Base(Asked(commit, argument), words)
    left = merge_base(root)
    where = f" in {store.path}" if store is not None else ""
    why = f"no stored gate{where} passed on an ancestor of HEAD on the main branch"
    note = f"{why}; compared with {left.label}, the merge base"
    return Base(Asked(left.label, argument), f"{left.label} ({left.subject}), the merge base: {why}", (note,))


def _green_commits(root: Path, store: Store) -> Iterator[tuple[str, Session]]:
    """The commits on the main branch before HEAD of which a stored gate passed, by the newest gate first."""
    runs: dict[str, list[Session]] = {}
    for session in store.sessions():
        if mark := session.detail.get(GATED):
            runs.setdefault(mark["run"], []).append(session)
    for sessions in sorted(runs.values(), key=lambda one: one[-1].created_at, reverse=True):
        heads = [store.sides(session.id)[-1] for session in sessions]
        commit = _only_commit(heads)
        if commit and _passed(sessions, store) and _on_main_before_head(commit, root):
            yield commit, sessions[-1]


def _only_commit(heads: Sequence[SideRecord]) -> str | None:
    """The one commit that all sessions of a gate had as their head, as it was committed."""
    commits = {None if head.detail.get("dirty") else head.detail.get("commit") for head in heads}
    return commits.pop() if len(commits) == 1 else None


def _passed(sessions: Sequence[Session], store: Store) -> bool:
    """Whether a run of the gate was finished and passed, by what it decided by then."""
    mark: Mapping[str, Any] = sessions[0].detail[GATED]
    if len(sessions) != mark["suites"] or not all(store.judged_since_measured(session.id) for session in sessions):
        return False
    cases = [case for session in sessions for case in store.cases(session.id)]
    verdicts = [verdict for session in sessions for verdict in store.verdicts(session.id)]
    policy = Policy.of_judging(mark["judging"], list(dict.fromkeys(case.suite for case in cases)))
    return decide(verdicts, policy, cases).exit_code is ExitCode.PASS


def _on_main_before_head(commit: str, root: Path) -> bool:
    if commit == resolve("HEAD", root).sha or try_git(root, "merge-base", "--is-ancestor", commit, "HEAD").returncode:
        return False
    return any(try_git(root, "merge-base", "--is-ancestor", commit, branch).returncode == 0 for branch in MAIN_BRANCHES)
