"""Which stored sessions make a suite's history, and in which order the repository has their commits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frostline.harness.checkout import commits_in_order
from frostline.harness.describe import Request
from frostline.harness.selection import split_setting
from frostline.results.crossover import narrowed
from frostline.results.evidence import Evidence
from frostline.results.history import Line, lines_of
from frostline.results.record import PEAK_ALLOCATED, STEP_TIME, UsageError
from frostline.results.store import Store

USUAL = (STEP_TIME.name, PEAK_ALLOCATED.name)


def history_of(request: Request, metrics: Sequence[str], repo: Path, store: Store) -> list[Line]:
    """The lines of the stored sessions of a suite that was named as in the database.

    Args:
        request: the suite; the sides and values of axes to keep.
        metrics: their names; none: step time and peak.
        repo: a folder of the repository whose commits they are.
        store: where the sessions are.

    Raises:
        UsageError: nothing stored of the suite with a commit, a metric that there is not, or sides or axes that no session has.
    """
    stored = [Evidence.load(store, session.id) for session in store.sessions() if not session.origin]
    suites = dict.fromkeys(evidence.cases[0].suite for evidence in stored if evidence.cases)
    if request.suite not in suites:
        raise UsageError(
            f"SUITE: nothing stored of {request.suite!r}; there is {', '.join(suites) or 'nothing'} in {store.path}"
        )
    known = {name for evidence in stored for name in evidence.metrics}
    for name in metrics:
        if name not in known:
            raise UsageError(f"--metric: no {name!r}; stored are {', '.join(sorted(known))}")
    axes = {axis: texts.split(",") for axis, texts in map(split_setting, request.settings)}
    chosen, refused = [], ""
    for evidence in stored:
        if evidence.cases and evidence.cases[0].suite == request.suite:
            try:
                chosen.append(narrowed(evidence, request.implementations, axes))
            except UsageError as none:  # another session may have it
                refused = str(none)
    if not chosen:
        raise UsageError(refused)
    lines = lines_of(chosen, metrics or USUAL, commits_in_order(repo))
    if not lines:
        raise UsageError(
            f"SUITE: no session of {request.suite} knows its commit: nothing to put in order; measure in a repository"
        )
    return lines
