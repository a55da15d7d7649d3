"""Whole sessions with forked processes: the record of new interpreters, renewed zygotes, and a way back that is said aloud."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from frostline.harness import session as sessions
from frostline.harness.describe import Request, plan_compare, plan_run
from frostline.harness.forks import Zygote
from frostline.harness.plan import Plan
from frostline.harness.progress import Progress
from frostline.harness.side import Source
from frostline.results.record import Role, Status, UsageError
from frostline.results.store import Store

SUITE = """
import os, time
from frostline.harness import suite, Step

@suite(axes={"n": [1]}, implementations=["one", "two"])
def toy(implementation, device, *, n):
    here = {"parent": os.getppid(), "hash": hash("frost")}
    return Step(run=lambda: time.sleep(0.001), outputs=lambda: {"x": 1.0}, reference=lambda: {"x": 1.0}, detail=here)
"""
CASES = SUITE.replace('n": [1]', 'n": [1, 2]').replace("import os, time", "import os, time\nLOT = os.urandom(8).hex()")
CASES = CASES.replace('"hash": hash("frost")', '"hash": hash("frost"), "lot": LOT')
TORCH_SUITE = """
import torch
from frostline.harness import suite, Step

@suite(axes={"n": [64]}, implementations=["one", "two"])
def toy(implementation, device, *, n):
    x = torch.rand(n, n, requires_grad=True)
    return Step(
        run=lambda: (x @ x).sum().backward(),
        outputs=lambda: {"x": x.detach() @ x.detach()},
        reference=lambda: {"x": x.detach().double() @ x.detach().double()},
        detail={"first": 0.0 if x.is_meta else float(x.detach()[0, 0])} if type(x) is torch.Tensor else {},
    )
"""


class Measured:
    """A session of a suite in a database of its own."""

    def __init__(self, folder: Path, suite: str, rounds: int, predict: bool = False, **fields) -> None:
        file = folder / "bench.py"
        file.write_text(suite)
        folder.mkdir(exist_ok=True)
        self.plan = plan_run(Request(str(file), rounds=rounds, threads=1, **fields))
        self.go(folder, predict)

    def go(self, folder, predict):
        self.said = io.StringIO()
        progress = Progress(Console(file=self.said, width=300))
        with Store.open(folder / f"{self.plan.isolation}.db") as store:
            session = sessions.open_session(self.plan, store, "test", {})
            (sessions.predict if predict else sessions.measure)(self.plan, store, session, progress)
            self.records = store.processes(session.id)
            self.samples = {item.id: store.samples(item.id) for item in self.records}

    def of(self, role=Role.MEASURE, position=0):
        return [item for item in self.records if item.role is role and item.position == position]

    def details(self, name):
        return [item.environment["detail"][name] for item in self.of()]


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setattr("frostline.harness.plan.ROUND_NS", 1e7)
    return lambda suite=SUITE, rounds=1, **fields: Measured(tmp_path, suite, rounds, **fields)


def without_clocks(item):
    """What must not depend on the time at which a process ran, nor on which process it was.

    Nor does the hash seed, which is the zygote's, nor triton's version, which stands there when a meter has imported it.
    """
    differ = ("pid", "hash_seed", "triton")
    environment = {name: value for name, value in item.environment.items() if name not in differ}
    figures = {name: value for name, value in item.measurements.items() if name != "step_time"}
    checks = [vars(check) for check in item.verifications]
    return item.role, item.round, item.position, item.status, item.reason, figures, checks, item.stderr, environment


def test_both_ways_give_the_same_record(measured):
    spawned, forked = (measured(TORCH_SUITE, isolation=way) for way in ("spawn", "fork"))
    assert [without_clocks(item) for item in forked.records] == [without_clocks(item) for item in spawned.records]
    assert {item.status for item in forked.records} == {Status.OK}
    assert [{item.isolation for item in one.records} for one in (spawned, forked)] == [{"spawn"}, {"fork"}]
    names = [[{sample.metric for sample in samples} for samples in one.samples.values()] for one in (spawned, forked)]
    assert names[0] == names[1]


def test_a_prediction_is_the_same_whatever_the_isolation(measured):
    """Nothing is run in its processes, which are few: they are new interpreters either way."""
    spawned, forked = (measured(TORCH_SUITE, predict=True, implementations=["one"], isolation=way) for way in ("spawn", "fork"))
    assert [without_clocks(item) for item in forked.records] == [without_clocks(item) for item in spawned.records]
    assert forked.of(Role.PREDICT)[0].measurements["flops"] > 0
    assert {item.isolation for item in forked.records} == {"spawn"}


def test_each_round_has_zygotes_of_its_own_and_so_its_own_hashing_and_what_an_import_draws_by_lot(measured):
    """Rounds that share a zygote share its memory layout, and the interval would take them for independent."""
    done = measured(CASES, rounds=3, isolation="fork")
    places = sorted((item.round, item.case_id, item.position) for item in done.records if item.role is Role.MEASURE)
    assert len(places) == 3 * 2 * 2
    drawn = {}
    for item in done.records:
        found = drawn.setdefault((max(item.round, 0), item.position), set())
        found.add(tuple(item.environment["detail"][name] for name in ("parent", "hash", "lot")))
    assert {len(found) for found in drawn.values()} == {1}  # the cases of a round, and the checks before the first, share one
    for at, all_differ in enumerate((6, 3, 6)):  # sides have zygotes of their own, and are hashed alike
        assert len({next(iter(found))[at] for found in drawn.values()}) == all_differ
    assert [item.environment["seed"] for item in done.of() if item.case_id == places[0][1]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import threading; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "started 1 thread"),
        ("import os; os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK') and os.abort()", "killed by SIGABRT"),
    ],
)
def test_what_cannot_be_forked_is_started_anew_and_says_so_once(measured, line, reason):
    done = measured(f"import time\n{line}\n{SUITE}", rounds=2, isolation="fork")
    assert {item.status for item in done.records} == {Status.OK}
    assert {item.isolation for item in done.records} == {"spawn"}
    said = [row for row in done.said.getvalue().splitlines() if "isolation" in row]
    assert len(said) == 1 and "--isolation fork:" in said[0] and reason in said[0] and "(spawn)" in said[0]
    assert all(reason in item.environment["spawned_because"] for item in done.records)


def test_a_zygote_that_dies_is_replaced(measured, monkeypatch):
    fork, forks = Zygote.fork, []

    def killing(zygote, *arguments):
        forks.append(zygote)
        if len(forks) == 4:
            os.kill(zygote.pid, signal.SIGKILL)
            while zygote._process.poll() is None:
                time.sleep(0.01)
        return fork(zygote, *arguments)

    monkeypatch.setattr(Zygote, "fork", killing)
    done = measured(rounds=2, isolation="fork")
    assert {(item.status, item.isolation) for item in done.records} == {(Status.OK, "fork")}
    assert len(set(forks)) == 5  # a side's for either round, and the one that was replaced


def test_code_that_changes_during_a_session_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("frostline.harness.plan.ROUND_NS", 1e6)
    for side in ("old", "new"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "thing.py").write_text(f"SIDE = {side!r}\n")
    file = tmp_path / "bench.py"
    file.write_text("import thing\n" + SUITE.replace('axes={"n": [1]}', 'axes={"n": [1]}, targets=["thing"]'))
    file.write_text(file.read_text().replace("import thing", "try:\n    import thing\nexcept ImportError:\n    pass"))
    sources = [Source(side, "git", side, tmp_path / side, ("thing",)) for side in ("old", "new")]
    request = Request(str(file), rounds=8, threads=1, isolation="fork", implementations=["one"])
    plan = plan_compare(request, lambda _: sources, looks=1)
    real, calls = sessions.measure_round, []

    def edited(*arguments):
        calls.append(1)
        if len(calls) == 2:
            (tmp_path / "new" / "thing.py").write_text("SIDE = 'newer'\n")
        return real(*arguments)

    monkeypatch.setattr(sessions, "measure_round", edited)
    with Store.open(tmp_path / "test.db") as store:
        session = sessions.open_session(plan, store, "test", {})
        sessions.measure(plan, store, session, Progress(Console(file=io.StringIO())))
        records = store.processes(session.id, role=Role.MEASURE)
    assert {item.isolation for item in records} == {"fork"}
    assert {item.status for item in records if item.position == 0} == {Status.OK}
    failed = [item.reason for item in records if item.position == 1 and item.status is Status.ERROR]
    assert failed and set(failed) == {"the code of the target packages changed during the session"}


def test_a_session_leaves_no_process_and_no_descriptor(measured):
    measured(isolation="fork")
    before = sorted(Path("/proc/self/fd").iterdir())
    measured(isolation="fork")
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert workers_of(os.getpid()) == []


def workers_of(pid):
    """The descendants of a process that are of the harness."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [row.split(maxsplit=2) for row in listed.splitlines()]
    found, new = [], {str(pid)}
    while new:
        children = [row for row in rows if row[1] in new]
        new = {row[0] for row in children}
        found += [int(row[0]) for row in children if "frostline.harness" in row[2]]
    return found


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_no_process(tmp_path):
    (tmp_path / "bench.py").write_text(SUITE)
    command = [sys.executable, "-P", "-m", "frostline.harness.cli", "run", str(tmp_path / "bench.py"), "--isolation", "fork"]
    command += ["--rounds", "500", "--db", str(tmp_path / "test.db")]  # too many to end by themselves meanwhile
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in running.stderr:
            if re.search(r"\[ *1/500\] round 1", line):
                break
        workers: list[int] = []
        while len(workers) < 2:  # the zygotes, and perhaps what they forked: they are others every round
            workers = workers_of(running.pid)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
    finally:
        running.kill()
        running.stderr.close()
    listed = subprocess.run(["ps", "-eo", "pid="], capture_output=True, text=True, check=True).stdout.split()
    assert not {str(pid) for pid in workers} & set(listed)


def test_a_stored_plan_keeps_how_it_is_started(tmp_path):
    (tmp_path / "bench.py").write_text(SUITE)
    plan = plan_run(Request(str(tmp_path / "bench.py"), isolation="fork"))
    assert Plan.from_json(plan.to_json()).isolation == "fork"
    before = {name: value for name, value in plan.to_json().items() if name != "isolation"}
    assert Plan.from_json(before).isolation == "spawn"


def test_another_isolation_is_a_mistake():
    with pytest.raises(UsageError, match="--isolation: expected spawn or fork, got 'thread'"):
        Request("bench.py", isolation="thread")
