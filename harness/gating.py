"""What `frostline gate` does: a session for each suite of the policy, predicted or measured.

All are planned first: a mistake in the last suite's selection is found before minutes went into the first. A suite of which
nothing could be measured does not silence what another one found.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frostline.harness.base import GATED, Base
from frostline.harness.checkout import find_project
from frostline.harness.commands import TARGET, Measured, measure, predict
from frostline.harness.describe import Request, plan_compare
from frostline.harness.interpreters import OWN, Interpreter
from frostline.harness.meters.telemetry import query_gpu
from frostline.harness.plan import Plan
from frostline.harness.progress import Progress
from frostline.harness.side import Source
from frostline.harness.sources import Asked, check, make
from frostline.results.policy import Limits, Policy, SuitePolicy
from frostline.results.policy_file import GATE, PolicyFile, PolicyMistake
from frostline.results.record import NothingMeasured, UsageError, new_id
from frostline.results.store import Store

NO_LIMITS = Limits()


@dataclass(frozen=True)
class Gated:
    """What a gate measured.

    Attributes:
        policy: with its suites by the names that their cases have (a file's suite is known once it is loaded).
        sessions: of the suites of which something was measured.
        failed: by suite why nothing of it was.
    """

    policy: Policy
    sessions: Sequence[Measured]
    failed: Mapping[str, str]


def is_predicted(policy: Policy) -> bool:
    """Whether the cost model's figures decide on this machine."""
    return bool(policy.predicted) if policy.predicted != "auto" else not query_gpu(["name"])


def gate(
    policy: Policy,
    file: PolicyFile,
    base: Base,
    head: str | None,
    repo: Path,
    store: Store,
    progress: Progress,
    command: str,
    limits: Limits = NO_LIMITS,
    python: Interpreter = OWN,
) -> Gated:
    """Compare under a policy. `head` defaults to the working tree. `python` measures, and builds.

    Of a budget every suite gets an equal part, and what an earlier one left of its own.

    Raises:
        UsageError: a mistake in the policy or in what was typed; nothing was measured then.
        NothingMeasured: a source cannot be built, or nothing of any suite could be measured.
    """
    predicted = is_predicted(policy)
    if predicted and limits.given:
        raise UsageError(
            f"{', '.join(limits.given)}: here the cost model decides, and nothing is measured; leave that out, "
            "or set predicted = false in the policy"
        )
    policy = policy.limited(limits)
    asked = base.asked, Asked(head, "--head")
    for one in asked:
        check(one, repo)
    root = find_project(repo).root

    def sources(targets: Sequence[str]) -> list[Source]:
        return [make(one, repo, targets, python) for one in asked]

    plans = [_planned(suite, policy, file, root, sources, TARGET if predicted else None, python) for suite in policy.suites]
    mark = {GATED: {"run": new_id(), "suites": len(plans), "judging": policy.judging()}}
    done: list[Measured] = []
    failed: dict[str, NothingMeasured] = {}
    left = policy.budget_s
    for at, plan in enumerate(plans):
        part = None if left is None else max(0.0, left) / (len(plans) - at)
        begun = time.monotonic()
        try:
            if predicted:
                done.append(predict(plan, store, progress, command, detail=mark))
            else:  # a suite without time must not silence what another one found
                done.append(measure(replace(plan, budget_s=part), store, progress, command, among_others=True, detail=mark))
        except NothingMeasured as reason:
            failed[plan.cases[0].suite] = reason
        left = None if left is None else left - (time.monotonic() - begun)
    if failed and not done:
        raise next(iter(failed.values()))
    named = [replace(suite, name=plan.cases[0].suite) for suite, plan in zip(policy.suites, plans, strict=True)]
    return Gated(replace(policy, suites=named), done, {name: str(reason) for name, reason in failed.items()})


def _planned(
    suite: SuitePolicy, policy: Policy, file: PolicyFile, root: Path, sources: Any, device: str | None, python: Interpreter
) -> Plan:
    """The plan of a suite, with the policy's thresholds. A mistake that the suite finds is named by the policy's key."""
    settings = [f"{axis}={','.join(map(str, values))}" for axis, values in suite.axes.items()]
    spec = str(root / suite.name) if suite.name.partition("::")[0].endswith(".py") else suite.name
    try:
        request = Request(spec, suite.preset, settings, rounds=suite.rounds, max_rounds=suite.max_rounds, device=device)
        how: dict[str, Any] = {"isolation": policy.isolation, "python": python.serving(request.suite)}
        plan = plan_compare(replace(request, **how), sources)
    except PolicyMistake:
        raise
    except UsageError as problem:
        raise _by_key(problem, suite, file) from None
    thresholds = policy.thresholds({suite.name: plan.delta})
    return replace(plan, delta=thresholds.delta[suite.name], byte_tolerance=thresholds.byte_tolerance)


def _by_key(problem: UsageError, suite: SuitePolicy, file: PolicyFile) -> UsageError:
    """A mistake that the suite found under the name of an option, under that of the policy's key."""
    option, _, said = str(problem).partition(": ")
    keys: dict[str, tuple[str, ...]] = {
        "SUITE": (),
        "--preset": ("preset",),
        "--set": ("axes", *_axis_of(said, suite)),
        "--rounds": ("rounds",),
        "--max-rounds": ("max_rounds",),
    }
    if option not in keys:
        return problem
    return file.mistake((*GATE, "suites", suite.name, *keys[option]), said)


def _axis_of(said: str, suite: SuitePolicy) -> tuple[str, ...]:
    """The axis that a message of `selection.py` is about, where it is about one."""
    found = re.match(r"(\S+) takes |\S+ has no axis (?P<quote>['\"])(.*?)(?P=quote)", said)
    axis = (found[1] or found[3]) if found else None
    return (axis,) if axis is not None and axis in suite.axes else ()
