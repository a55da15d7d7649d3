"""Whole sessions of small suites without torch: order, statuses, what counts, and what an interruption leaves."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from rich.console import Console

from frostline.harness import session as sessions
from frostline.harness.describe import Request, plan_run
from frostline.harness.device import hold_session
from frostline.harness.plan import Plan
from frostline.harness.progress import Progress
from frostline.results.record import Interleave, Outcome, Role, Status, UsageError
from frostline.results.store import Store

SUITE = """
import os, signal, time
from pathlib import Path
from frostline.harness import suite, skip, Step

HERE = Path(__file__).parent
HOWS = ["plain", "skip", "raise", "die", "crowded", "once", "third time", "too big", "wrong"]

@suite(axes={"how": HOWS}, implementations=["one", "two", "three"])
def toy(implementation, device, *, how):
    def step():
        time.sleep(0.001)
    if implementation == "two":
        if how == "skip":
            skip("no moon")
        if how == "raise":
            raise ValueError("broken by design")
        if how == "die":
            def step():
                os.kill(os.getpid(), signal.SIGKILL)
        if how == "crowded":
            for _ in range(15):  # time enough for the other to come, if it comes
                if (HERE / "alive-one").exists():
                    raise MemoryError("the device is full")
                time.sleep(0.1)
        if how == "once" and not (HERE / "was-here").exists():
            (HERE / "was-here").touch()
            raise ValueError("only the first time")
        if how == "third time":
            (HERE / f"build-{time.time_ns()}").touch()
            if len(list(HERE.glob("build-*"))) == 3:  # verified, round 1, then this
                os.kill(os.getpid(), signal.SIGKILL)
        if how == "too big":
            raise MemoryError("always")
    if implementation == "one" and how == "crowded":
        (HERE / "alive-one").touch()
        import atexit
        atexit.register((HERE / "alive-one").unlink)
    answer = 2.0 if (implementation, how) == ("two", "wrong") else 1.0
    return Step(run=step, outputs=lambda: {"x": answer}, reference=lambda: {"x": 1.0})
"""


class Measured:
    """One session of the suite above in a database of its own."""

    def __init__(self, folder: Path, how: str = "plain", implementations: str = "one,two", rounds: int = 6) -> None:
        self.file = folder / "bench.py"
        self.file.write_text(SUITE)
        self.store = Store.open(folder / "test.db")
        names = implementations.split(",")
        self.plan = plan_run(Request(str(self.file), settings=[f"how={how}"], implementations=names, rounds=rounds))
        self.session = sessions.open_session(self.plan, self.store, "test", {})
        self.said = io.StringIO()

    def go(self):
        self.verdicts = sessions.measure(self.plan, self.store, self.session, Progress(Console(file=self.said, width=200)))
        return self

    def records(self, role: Role = Role.MEASURE, position: int | None = None):
        found = self.store.processes(self.session.id, role=role)
        return [item for item in found if position in (None, item.position)]


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setattr("frostline.harness.plan.ROUND_NS", 1e8)  # short rounds
    return lambda how="plain", **fields: Measured(tmp_path, how, **fields)


def test_blocks_go_forth_and_back_and_never_overlap(measured):
    done = measured(implementations="one,two,three", rounds=1).go()
    blocks = []
    for item in done.records():
        samples = done.store.samples(item.id)
        for block, members in itertools.groupby(samples, key=lambda sample: sample.block):
            times = list(members)
            blocks.append((times[0].t_ns, times[-1].t_ns + times[-1].value, item.position, block))
    blocks.sort()
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(blocks))
    assert [position for _, _, position, _ in blocks[:12]] == [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]
    assert len(blocks) == 4 * 2 * 3


def test_there_is_one_counted_ok_process_for_each_case_side_and_round(measured):
    done = measured().go()
    keys = [(item.case_id, item.position, item.round) for item in done.records()]
    assert sorted(keys) == sorted((done.plan.cases[0].id, position, r) for position in (0, 1) for r in range(6))
    assert {item.status for item in done.records()} == {Status.OK}
    assert len(done.store.ratios(done.session.id)) == 6
    assert all(item.measurements["step_time"] >= 1e6 for item in done.records())
    (time,) = [verdict for verdict in done.verdicts if verdict.metric == "step_time"]
    assert time.rounds == 6 and time.outcome in (Outcome.SAME, Outcome.INCONCLUSIVE)


def test_each_side_is_verified_in_a_process_of_its_own_first(measured):
    done = measured(rounds=1).go()
    checks = done.records(Role.VERIFY)
    assert [check.verifications[0].ok for check in checks] == [True, True]
    assert max(check.started_at for check in checks) < min(item.started_at for item in done.records())


def test_a_wrong_side_is_never_timed(measured):
    done = measured("wrong", rounds=2).go()
    check = done.records(Role.VERIFY, position=1)[0]
    assert (check.status, check.reason) == (Status.WRONG, "x is off by 1 of its norm, allowed 1e-05")
    assert done.records(position=1) == [] and len(done.records(position=0)) == 2
    assert {verdict.outcome for verdict in done.verdicts} == {Outcome.BROKEN}


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("raise", Status.ERROR, "ValueError: broken by design"),
        ("die", Status.CRASH, "killed by SIGKILL, perhaps by the kernel for want of memory"),
    ],
)
def test_a_failing_side_is_tried_once_more_alone_and_then_left_out(measured, how, status, reason):
    done = measured(how, implementations="one,two,three", rounds=3).go()
    failed = done.records(position=1)
    assert [(item.round, item.attempt, item.counted, item.status, item.reason) for item in failed] == [
        (0, 0, True, status, reason),
        (0, 1, False, status, reason),
    ]
    assert [len(done.records(position=at)) for at in (0, 2)] == [3, 3]
    assert {ratio.position for ratio in done.store.ratios(done.session.id)} == {2}


def test_a_failure_that_does_not_repeat_keeps_the_side(measured):
    done = measured("once", rounds=2)
    done.go()
    checks = done.records(Role.VERIFY, position=1)
    assert checks[0].status is Status.ERROR
    assert [(item.round, item.status) for item in done.records(position=1)] == [(0, Status.OK), (1, Status.OK)]


def test_a_second_try_that_succeeds_stands_for_its_round(measured):
    done = measured("third time", rounds=7).go()
    found = [(item.round, item.attempt, item.counted, item.status) for item in done.records(position=1) if item.round == 1]
    assert found == [(1, 0, False, Status.CRASH), (1, 1, True, Status.OK)]
    assert len([item for item in done.records(position=1) if item.counted]) == 7
    assert [ratio.round for ratio in done.store.ratios(done.session.id)] == [0, 2, 3, 4, 5, 6]
    assert Outcome.BROKEN not in {verdict.outcome for verdict in done.verdicts}


def test_a_suite_that_changes_under_a_session_is_an_error(measured):
    one = measured(rounds=1)
    one.file.write_text(SUITE + "\n# another version\n")
    one.go()
    reasons = {item.reason for item in one.records() if item.counted}
    assert len(reasons) == 1 and "ValueError: the suite is version" in reasons.pop()


def test_a_session_is_not_measured_by_two_commands_at_once(measured):
    one = measured(rounds=1)
    with hold_session(one.session.id), pytest.raises(UsageError, match="is still being measured by another command"):
        one.go()


def test_a_skipped_case_says_why_and_the_others_go_on(measured):
    done = measured("skip", rounds=2).go()
    assert done.records(Role.VERIFY, position=1)[0].reason == "no moon"
    assert done.records(position=1) == [] and len(done.records(position=0)) == 2


def test_memory_that_runs_out_beside_others_is_tried_in_turn(measured):
    done = measured("crowded", rounds=2).go()
    counted = [(item.status, item.interleave) for item in done.records(position=1) if item.counted]
    assert counted == [(Status.OK, Interleave.PROCESS)] * 2
    assert [item.status for item in done.records(position=1) if not item.counted] == [Status.OOM]
    assert len(done.store.ratios(done.session.id)) == 2


def test_memory_that_always_runs_out_is_a_result(measured):
    done = measured("too big", rounds=2).go()
    counted = [item for item in done.records(position=1) if item.counted]
    assert [(item.status, item.interleave) for item in counted] == [(Status.OOM, Interleave.PROCESS)]
    assert len([item for item in done.records(position=0) if item.counted]) == 2


def test_an_interrupted_session_keeps_what_it_has_and_is_finished_later(measured, monkeypatch):
    one = measured(rounds=4)
    real, calls = sessions.measure_round, itertools.count()

    def interrupted(*arguments):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(sessions, "measure_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.go()
    assert len(one.records()) == 4
    before = {item.id for item in one.records()}
    monkeypatch.setattr(sessions, "measure_round", real)
    one.go()
    assert before < {item.id for item in one.records()}
    assert sorted(item.round for item in one.records(position=0)) == [0, 1, 2, 3]
    assert len(one.records(Role.VERIFY)) == 2


SHARED = """
import time
from frostline.harness import Preset, Share, suite

@suite(
    axes={"n": [1, 2]},
    implementations=["one", "two", "slow"],
    presets={"small": Preset(rounds=3, shares={"two": Share(2), "slow": Share(1, {"n": [1]})})},
)
def shared(implementation, device, *, n):
    return lambda: time.sleep(0.001)
"""


OMITTING = """
import time
from frostline.harness import Step, suite

@suite(axes={"metric": ["peak_resident", "peak"]}, implementations=["all", "some"])
def omitting(implementation, device, *, metric):
    return Step(run=lambda: time.sleep(0.001), omit=[metric] if implementation == "some" else [])
"""


def test_a_metric_that_no_meter_can_read_is_left_out(measured):
    one = measured()
    one.file.write_text(OMITTING)
    one.plan = plan_run(Request(str(one.file), settings=["metric=peak_resident"], rounds=1))
    one.session = sessions.open_session(one.plan, one.store, "test", {})
    one.go()
    assert [set(item.measurements) for item in one.records()] == [{"step_time", "peak_resident"}, {"step_time"}]
    one.plan = plan_run(Request(str(one.file), settings=["metric=peak"], rounds=1))
    one.session = sessions.open_session(one.plan, one.store, "test", {})
    with pytest.raises(UsageError, match="Step: omit: got 'peak', wanted some of peak_allocated, "):
        one.go()


def test_a_gpu_that_is_not_there_is_a_mistake_of_one_line(measured):
    one = measured()
    one.file.write_text(
        "import torch\nfrom frostline.harness import suite\n\n@suite()\n"
        "def adding(implementation, device):\n    x = torch.ones(4, device=device)\n    return lambda: x + x\n"
    )
    one.plan = plan_run(Request(str(one.file), rounds=1, device="cuda:99"))
    one.session = sessions.open_session(one.plan, one.store, "test", {})
    with pytest.raises(UsageError, match=r"--device: cuda:99, and torch \S+ finds (no|\d) GPU here; wanted one that is there"):
        one.go()


TIMED = """
import time
from frostline.harness import Step, suite

@suite(axes={"how": ["all", "kernels"]}, implementations=["some", "other"])
def timed(implementation, device, *, how):
    times = ["host_time", "kernel_time", "step_time"] if how == "all" else ["kernel_time"]
    return Step(run=lambda: time.sleep(0.001), times=times)
"""


def test_each_time_that_a_step_asks_for_has_blocks_and_ratios_of_its_own(measured):
    one = measured()
    one.file.write_text(TIMED)
    one.plan = plan_run(Request(str(one.file), settings=["how=all"], rounds=1))
    one.session = sessions.open_session(one.plan, one.store, "test", {})
    one.go()
    for item in one.records():
        assert {"step_time", "host_time"} < set(item.measurements) and item.measurements["host_time"] >= 1e6
        assert item.environment["clocks"] == {"kernel_time": "not read: needs a GPU, and this is cpu"}
    assert {ratio.metric for ratio in one.store.ratios(one.session.id)} == {"step_time", "host_time"}
    taken = [(s.t_ns, s.metric, s.block, r.position) for r in one.records() for s in one.store.samples(r.id)]
    order = [key for key, _ in itertools.groupby(sorted(taken), key=lambda one: one[1:])]
    a_cycle = [("host_time", 0, 0), ("host_time", 0, 1), ("host_time", 1, 1), ("host_time", 1, 0)]
    assert order[:4] == a_cycle and order[4:8] == [("step_time", *rest) for _, *rest in a_cycle]
    assert {metric for metric, *_ in order[8:12]} == {"host_time"}


def test_a_step_whose_times_cannot_be_read_here_is_skipped(measured):
    one = measured()
    one.file.write_text(TIMED)
    one.plan = plan_run(Request(str(one.file), settings=["how=kernels"], rounds=1))
    one.session = sessions.open_session(one.plan, one.store, "test", {})
    one.go()
    assert {(item.status, item.reason) for item in one.records()} == {
        (Status.SKIPPED, "kernel_time cannot be read on cpu: a GPU is needed")
    }


class Shared(Measured):
    """One session of a suite whose sides take part in different shares of it."""

    def __init__(self, folder, **fields):
        super().__init__(folder)
        self.file.write_text(SHARED)
        self.plan = plan_run(Request(str(self.file), **fields))
        self.session = sessions.open_session(self.plan, self.store, "test", {})

    def counted(self):
        """How many rounds of each side, by case."""
        sides = range(len(self.plan.sides))
        return [
            [len([item for item in self.records(position=at) if item.case_id == case.id]) for at in sides]
            for case in self.plan.cases
        ]


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setattr("frostline.harness.plan.ROUND_NS", 1e8)
    return lambda **fields: Shared(tmp_path, **fields)


def test_a_side_takes_part_in_its_share_and_is_missed_nowhere_else(shared):
    done = shared().go()
    assert done.counted() == [[3, 2, 1], [3, 2, 0]]
    assert {item.status for item in done.records()} == {Status.OK}
    assert [len(done.records(Role.VERIFY, position=at)) for at in range(3)] == [2, 2, 1]
    judged = {(verdict.case_id, verdict.position) for verdict in done.verdicts}
    first, second = done.plan.cases
    assert judged == {(first.id, 1), (first.id, 2), (second.id, 1)}


@pytest.mark.parametrize(
    ("typed", "fewer"),
    [
        ({}, [{"two": 2, "slow": 1}, {"two": 2, "slow": 0}]),
        ({"rounds": 2}, [{}, {"slow": 0}]),
        ({"settings": ["n=1,3"]}, [{"two": 2, "slow": 1}] * 2),
        ({"implementations": ["one", "slow"]}, [{"slow": 1}] * 2),
    ],
    ids=["nothing", "rounds", "an axis", "implementations"],
)
def test_what_is_typed_is_meant(shared, typed, fewer):
    plan = shared(**typed).plan
    assert [plan.fewer_rounds[case.id] for case in plan.cases] == fewer


def test_a_share_is_finished_after_an_interruption(shared, monkeypatch):
    one = shared()
    real, calls = sessions.measure_round, itertools.count()

    def interrupted(*arguments):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(sessions, "measure_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.go()
    assert one.counted() == [[2, 2, 1], [1, 1, 0]]
    monkeypatch.setattr(sessions, "measure_round", real)
    one.plan = Plan.from_json(one.store.session(one.session.id).plan)
    assert one.go().counted() == [[3, 2, 1], [3, 2, 0]]
    rounds = next(calls)
    one.go()
    assert next(calls) == rounds + 1, "nothing is left to be measured"


def test_progress_tells_the_time_left(measured):
    assert "[2/2] round 2 of how=plain  (done)" in measured(rounds=2).go().said.getvalue()
