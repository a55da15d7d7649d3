"""A worker that prints, floods, dies, hangs or lies must end as a status with a reason, never as a lost session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from frostline.harness.isolation import GRACE_S, STDERR_KEPT, Ended, Process, Start
from frostline.harness.worker import Worker
from frostline.results.record import Status, UsageError

SUITE = """
import os, signal, sys, time
from frostline.harness import suite, skip, Step

@suite(axes={"how": ["plain", "skip", "raise", "memory", "segv", "exit", "hang", "flood", "close", "child", "daemon"]})
def bad(implementation, device, *, how):
    if how == "skip":
        skip("needs a moon")
    if how == "raise":
        raise ValueError("no such thing\\nsecond line")
    if how == "memory":
        raise MemoryError("want 1 TiB")
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "exit":
        os._exit(3)
    if how == "hang":
        print("hang", flush=True)
        time.sleep(60)
    if how == "flood":
        for _ in range(200):
            print("x" * 5000)
        print("the end", file=sys.stderr)
    if how == "close":
        for fd in (0, 1, 2):
            os.close(fd)
    if how == "child":
        import subprocess
        print("child", subprocess.Popen(["sleep", "60"]).pid)
    if how == "daemon":
        import subprocess
        print("child", subprocess.Popen(["sleep", "60"], start_new_session=True).pid, flush=True)
    return lambda: None
"""


@pytest.fixture
def suite_file(tmp_path: Path) -> str:
    file = tmp_path / "bench.py"
    file.write_text(SUITE)
    return str(file)


def process(timeout_s=30.0, **fields):
    start = {"path": None, "targets": (), "device": "cpu", "seed": 7, "threads": 1} | fields
    return Process(timeout_s=timeout_s, **start)


def is_running(pid):
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return not state.strip().startswith("Z") and bool(state.strip())


def build(worker, suite_file, how):
    return worker.ask("build", suite=suite_file, implementation="default", params={"how": how})


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("skip", Status.SKIPPED, "needs a moon"),
        ("raise", Status.ERROR, "ValueError: no such thing"),
        ("memory", Status.OOM, "MemoryError: want 1 TiB"),
        ("segv", Status.CRASH, "killed by SIGSEGV"),
        ("exit", Status.CRASH, "left with exit code 3 without an answer"),
    ],
)
def test_a_failure_is_a_status_with_one_line_of_reason(suite_file, how, status, reason):
    with process() as worker, pytest.raises(Ended) as end:
        build(worker, suite_file, how)
    assert (end.value.status, end.value.reason) == (status, reason)


def test_a_failure_leaves_its_traceback(suite_file):
    with process() as worker, pytest.raises(Ended):
        build(worker, suite_file, "raise")
    assert "second line" in worker.stderr() and "bench.py" in worker.stderr()


def test_a_hang_is_a_timeout_and_its_process_is_gone(suite_file):
    with process(timeout_s=2.0) as worker, pytest.raises(Ended, match="no answer within 2 s") as end:
        build(worker, suite_file, "hang")
    assert end.value.status is Status.TIMEOUT


def test_a_flood_of_output_breaks_nothing_and_keeps_its_end(suite_file):
    with process() as worker:
        assert build(worker, suite_file, "flood")["step_ns"] > 0
    assert worker.stderr().rstrip().endswith("the end") and len(worker.stderr()) <= STDERR_KEPT


def test_a_suite_that_closes_the_standard_streams_is_measured(suite_file):
    with process() as worker:
        assert build(worker, suite_file, "close")["step_ns"] > 0


def test_children_go_with_their_worker(suite_file):
    began = time.monotonic()
    with process() as worker:
        build(worker, suite_file, "child")
    assert time.monotonic() - began < 10
    assert not is_running(int(worker.stderr().split()[1]))


def test_a_child_that_made_itself_independent_holds_nobody_up(suite_file):
    """It holds the worker's output open for as long as it lives."""
    descriptors = sorted(Path("/proc/self/fd").iterdir())
    with process() as worker:
        build(worker, suite_file, "daemon")
        began = time.monotonic()
    assert time.monotonic() - began < GRACE_S / 2
    said = worker.stderr().split()
    os.kill(int(said[1]), signal.SIGKILL)
    assert said[0] == "child" and sorted(Path("/proc/self/fd").iterdir()) == descriptors


def test_a_worker_ends_with_the_command_that_started_it_whatever_its_step_does(suite_file):
    program = (
        "import os, signal, time\n"
        "from frostline.harness.isolation import Process\n"
        "worker = Process(path=None, targets=(), device='cpu', seed=1, threads=1, timeout_s=60.0)\n"
        "ask = {'suite': %r, 'implementation': 'default', 'params': {'how': 'hang'}}\n"
        "worker.tell({'do': 'build'} | ask)\n"
        "while 'hang' not in worker.stderr():\n    time.sleep(0.01)\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program % suite_file], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    for _ in range(50):
        if not is_running(int(done.stdout)):
            return
        time.sleep(0.1)
    os.kill(int(done.stdout), signal.SIGKILL)
    pytest.fail("it goes on for nobody")


def test_a_mistake_of_the_users_is_a_usage_error():
    with process() as worker, pytest.raises(UsageError, match="no suite 'grpp'"):
        worker.ask("describe", suite="grpp")


def test_blocks_are_timed_on_request(suite_file):
    with process() as worker:
        build(worker, suite_file, "plain")
        reply = worker.ask("block", steps=5)
    assert reply["metric"] == "step_time" and len(reply["readings"]) == 5
    starts = [start for start, _ in reply["readings"]]
    assert starts == sorted(starts) and all(value >= 0 for _, value in reply["readings"])


def test_all_sides_get_the_same_environment(suite_file):
    with process(threads=2, seed=11) as worker:
        build(worker, suite_file, "plain")
        environment = worker.ask("finish")["environment"]
    assert environment["hash_seed"] == "11" and environment["seed"] == 11 and environment["affinity"]


def test_a_suite_without_torch_never_imports_it(suite_file):
    with process() as worker:
        build(worker, suite_file, "plain")
        reply = worker.ask("finish")
    assert "torch" not in reply["environment"]
    assert reply["measurements"]["peak_resident"] > 1e6


def test_the_sides_directory_is_in_front_and_the_current_one_is_not_on_the_path(tmp_path, monkeypatch):
    side = tmp_path / "side"
    side.mkdir()
    (side / "thing.py").write_text("WHERE = 'side'\n")
    here = tmp_path / "here"
    here.mkdir()
    (here / "thing.py").write_text("WHERE = 'here'\n")
    (here / "other.py").write_text("")
    (tmp_path / "bench.py").write_text(
        "from frostline.harness import suite\nimport thing\n"
        "assert thing.WHERE == 'side'\n"
        "try:\n    import other\nexcept ImportError:\n    pass\nelse:\n    raise AssertionError('cwd')\n"
        "@suite()\ndef s(implementation, device):\n    return lambda: None\n"
    )
    monkeypatch.chdir(here)
    with process(path=side, targets=("thing",)) as worker:
        reply = worker.ask("build", suite=str(tmp_path / "bench.py"), implementation="default", params={})
    assert [(module.name, Path(module.file).parent) for module in reply["modules"]] == [("thing", side)]
    assert len(reply["modules"][0].sha256) == 64


def test_modules_are_known_at_every_reply_and_told_when_they_change(tmp_path):
    (tmp_path / "side").mkdir()
    (tmp_path / "side" / "thing.py").write_text("")
    (tmp_path / "side" / "later.py").write_text("")
    (tmp_path / "bench.py").write_text(
        "from frostline.harness import suite\nimport thing\n"
        "def step():\n    if step.runs == 30:\n        import later\n    step.runs += 1\n"
        "@suite()\ndef s(implementation, device):\n    step.runs = 0\n    return step\n"
    )
    with process(path=tmp_path / "side", targets=("thing", "later")) as worker:
        replies = [worker.ask("build", suite=str(tmp_path / "bench.py"), implementation="default", params={})]
        replies += [worker.ask("block", steps=1) for _ in range(2)]
        replies.append(worker.ask("block", steps=40))
        worker.tell({"do": "block", "steps": 1})
        assert "modules" not in worker._line()
    names = [[module.name for module in reply["modules"]] for reply in replies]
    assert names == [["thing"], ["thing"], ["thing"], ["later", "thing"]]


@pytest.mark.parametrize("asked, fraction", [(80 * 10**9, 0.5), (400 * 10**9, 1.0)])
def test_a_limit_of_memory_is_a_fraction_of_the_card(monkeypatch, asked, fraction):
    import torch

    given = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=160 * 10**9))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *how: given.append(how))
    start = Start(None, (), "cuda:1", 0, 1, memory_limit=asked)
    Worker(start.message())._limit_memory()
    Worker(Start(None, (), "cuda:1", 0, 1).message())._limit_memory()
    assert given == [(fraction, "cuda:1")]
