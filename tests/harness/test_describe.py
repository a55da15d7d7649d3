"""What is checked before any side is built, and what cannot be. The worker that is asked is made up."""

from __future__ import annotations

import pytest

from frostline.harness import commands, describe
from frostline.harness.describe import Request, plan_compare
from frostline.harness.isolation import Ended
from frostline.harness.side import Source
from frostline.harness.sources import Asked
from frostline.results.record import Status, UsageError

DECLARED = {
    "suite": "toy", "version": "v1", "baseline": "one", "compared": "one", "all_implementations": ["one"],
    "implementations": ["one"], "targets": ["thing"], "delta": {}, "bars": [], "rounds": 8, "axes": ["n"],
    "rounds_of": [{"one": 8}], "cases": [{"n": 1}], "device": "cpu", "modules": [],
}  # fmt: skip
SOURCE = Source("HEAD", "git", "some code")


@pytest.fixture
def worker(monkeypatch):
    """Say what the worker's replies are, one after the other: a declaration, a reason of failure, or a mistake."""
    replies = []

    class Worker:
        def __init__(self, **_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def ask(self, *_, **__):
            reply = replies.pop(0)
            if isinstance(reply, str):
                raise Ended(Status.ERROR, reply)
            if isinstance(reply, Exception):
                raise reply
            return dict(reply)

    monkeypatch.setattr(describe, "Process", Worker)
    return replies


@pytest.mark.parametrize("setting", ["n", "n=", "=1", "n 1"])
def test_a_setting_of_a_wrong_form_is_refused_before_anything_is_asked(setting):
    with pytest.raises(UsageError) as told:
        Request("bench.py", settings=[setting])
    assert str(told.value) == f"--set: expected AXIS=VALUE[,VALUE...], got {setting!r}"


@pytest.mark.parametrize("reply", ["SyntaxError: invalid syntax (bench.py, line 3)", UsageError("--set: toy has no axis 'm'")])
def test_what_no_side_can_mend_is_told_before_any_is_built(worker, reply):
    worker.append(reply)
    built, said = [], []
    with pytest.raises(UsageError, match=r"SyntaxError|no axis"):
        plan_compare(Request("bench.py", settings=["m=1"]), lambda targets: built.append(targets) or [], say=said.append)
    assert not built and not said


@pytest.mark.parametrize(
    ("asked", "late"),
    [
        ({}, ""),
        ({"settings": ["n=1"]}, "--set"),
        ({"preset": "small", "implementations": ["one"]}, "--preset, --implementation"),
        ({"suite": "bench.py::toy"}, "the suite's name"),
    ],
)
def test_what_only_a_built_side_can_tell_is_said_to_be_checked_late(worker, asked, late):
    worker += ["ModuleNotFoundError: No module named 'thing'", DECLARED]
    built, said = [], []
    plan = plan_compare(
        Request(**{"suite": "bench.py"} | asked), lambda targets: built.append(targets) or [SOURCE, SOURCE], say=said.append
    )
    assert built == [()] and [case.params for case in plan.cases] == [{"n": 1}]
    reason = "(ModuleNotFoundError: No module named 'thing')"
    assert said == (
        [f"bench.py needs what a side provides {reason}: both are built before {late} can be checked"] if late else []
    )


def test_nothing_is_said_to_be_prepared_before_the_suite_is_known(worker, scratch_repo):
    repo = scratch_repo({"thing.py": ""})
    said = []

    class Progress:
        note = staticmethod(said.append)

    base, head = Asked("HEAD", "BASE"), Asked("main", "HEAD")
    worker.append(UsageError("SUITE: no file 'bench.py'"))
    with pytest.raises(UsageError, match="no file"):
        commands.comparison(Request("bench.py"), base, head, repo.path, Progress)
    assert said == []
