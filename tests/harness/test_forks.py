"""A forked worker must give what a spawned one gives, end as one ends, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from frostline.harness.forks import Refused, Stale, Zygote
from frostline.harness.isolation import STDERR_KEPT, Ended, Process, spawn
from frostline.harness.zygote import unfit
from frostline.results.record import Status

SUITE = """
import os, random, signal, subprocess, sys, tempfile, time
from pathlib import Path
from frostline.harness import suite, skip, Step

print("imported", os.getpid())
FOLDER = tempfile.TemporaryDirectory()
HOWS = ["plain", "skip", "raise", "memory", "abort", "status", "exit", "leave", "hang", "flood", "child", "fork", "folder"]

@suite(axes={"how": HOWS})
def bad(implementation, device, *, how):
    detail = {"random": random.random(), "hash": hash("frost"), "omp": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()}
    if how == "skip":
        skip("needs a moon")
    if how == "raise":
        raise ValueError("no such thing\\nsecond line")
    if how == "memory":
        raise MemoryError("want 1 TiB")
    if how == "abort":
        os.abort()
    if how == "status":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(3)
    if how == "leave":
        sys.exit(5)
    if how == "hang":
        time.sleep(60)
    if how == "flood":
        for _ in range(200):
            print("x" * 5000)
        print("the end", file=sys.stderr)
    if how == "child":
        print("child", subprocess.Popen(["sleep", "60"]).pid)
    if how == "fork":
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        print("child", pid, flush=True)
        os._exit(0)
    if how == "folder":
        assert Path(FOLDER.name).is_dir(), "another process has removed it"
    return Step(run=lambda: None, detail=detail)
"""


@pytest.fixture
def suite_file(tmp_path: Path) -> str:
    file = tmp_path / "bench.py"
    file.write_text(SUITE)
    return str(file)


@pytest.fixture
def zygote(suite_file):
    with started(suite_file) as one:
        yield one


@contextmanager
def started(suite, **fields):
    """A zygote whose every descriptor and process is gone in the end."""
    before = open_descriptors()
    one = Zygote(**{"suite": str(suite), "path": None, "targets": (), "hash_seed": 7, "timeout_s": 60.0} | fields)
    try:
        yield one
    finally:
        one.close()
    assert not is_running(one.pid)
    assert open_descriptors() == before


def forked(zygote, timeout_s=30.0, **fields):
    start = {"path": None, "targets": (), "device": "cpu", "seed": 7, "threads": 1} | fields
    return Process(timeout_s=timeout_s, launch=zygote.fork, **start)


def open_descriptors():
    return sorted(Path("/proc/self/fd").iterdir())


def is_running(pid):
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")


def gone_soon(pid):
    for _ in range(50):
        if not is_running(pid):
            return True
        time.sleep(0.1)
    return False


def build(worker, suite_file, how="plain"):
    return worker.ask("build", suite=suite_file, implementation="default", params={"how": how})


def details(zygote, suite_file, **fields):
    with forked(zygote, **fields) as worker:
        build(worker, suite_file)
        environment = worker.ask("finish")["environment"]
    return environment["detail"] | {"environment": environment}


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("skip", Status.SKIPPED, "needs a moon"),
        ("raise", Status.ERROR, "ValueError: no such thing"),
        ("memory", Status.OOM, "MemoryError: want 1 TiB"),
        ("abort", Status.CRASH, "killed by SIGABRT"),
        ("status", Status.CRASH, "killed by SIGKILL, perhaps by the kernel for want of memory"),
        ("exit", Status.CRASH, "left with exit code 3 without an answer"),
        ("leave", Status.CRASH, "left with exit code 5 without an answer"),
        ("fork", Status.CRASH, "left with exit code 0 without an answer"),
    ],
)
def test_a_failure_is_told_as_of_a_new_interpreter_and_the_next_is_well(zygote, suite_file, how, status, reason):
    spawned = Process(path=None, targets=(), device="cpu", seed=7, threads=1, timeout_s=30.0)
    for worker in (forked(zygote), spawned):
        with worker, pytest.raises(Ended) as end:
            build(worker, suite_file, how)
        assert (end.value.status, end.value.reason) == (status, reason), worker.isolation
    with forked(zygote) as worker:
        assert build(worker, suite_file)["step_ns"] > 0


def test_a_failure_leaves_its_traceback_after_what_the_import_said(zygote, suite_file):
    with forked(zygote) as first:
        build(first, suite_file)
    with forked(zygote, said_before=zygote.said()) as worker, pytest.raises(Ended):
        build(worker, suite_file, "raise")
    assert worker.stderr().startswith(f"imported {zygote.pid}\nTraceback") and "second line" in worker.stderr()


def test_a_hang_is_a_timeout_and_its_process_is_gone(zygote, suite_file):
    with forked(zygote, timeout_s=1.0) as worker, pytest.raises(Ended, match="no answer within 1 s") as end:
        build(worker, suite_file, "hang")
    assert end.value.status is Status.TIMEOUT
    assert not is_running(worker.pid)


def test_a_flood_of_output_breaks_nothing_and_keeps_its_end(zygote, suite_file):
    with forked(zygote) as worker:
        assert build(worker, suite_file, "flood")["step_ns"] > 0
    assert worker.stderr().rstrip().endswith("the end") and len(worker.stderr()) <= STDERR_KEPT


@pytest.mark.parametrize("how", ["child", "fork"])
def test_children_go_with_their_worker(zygote, suite_file, how):
    with forked(zygote) as worker:
        try:
            build(worker, suite_file, how)
        except Ended as end:
            assert how == "fork" and end.status is Status.CRASH
    assert gone_soon(int(worker.stderr().rpartition("child ")[2]))


def test_seeds_are_of_the_process_and_hashing_is_of_the_zygote(zygote, suite_file):
    one, two, again = (details(zygote, suite_file, seed=seed) for seed in (1, 2, 1))
    assert one["random"] == again["random"] != two["random"]
    assert one["hash"] == two["hash"] and one["pid"] != two["pid"]
    assert two["environment"]["hash_seed"] == "7" and two["environment"]["seed"] == 2
    with started(suite_file, hash_seed=8) as other:
        assert details(other, suite_file)["hash"] != one["hash"]


def test_what_a_step_starts_itself_gets_the_threads_of_the_plan(zygote, suite_file):
    assert details(zygote, suite_file, threads=3)["omp"] == "3"


def test_what_was_made_at_import_is_still_there_for_the_next(zygote, suite_file):
    for _ in range(2):
        with forked(zygote) as worker:
            build(worker, suite_file, "folder")


def test_workers_live_beside_each_other_and_end_one_by_one(zygote, suite_file):
    with forked(zygote) as one, forked(zygote) as two:
        for worker in (one, two):
            build(worker, suite_file)
        one.close()
        assert not is_running(one.pid) and is_running(two.pid)
        assert two.ask("block", steps=3)["readings"]


def test_torch_and_numpy_get_their_threads_in_the_worker_alone(tmp_path):
    (tmp_path / "bench.py").write_text(
        "import os, torch\nfrom frostline.harness import Step, suite\n"
        "@suite(axes={'how': ['plain']})\n"
        "def s(implementation, device, *, how):\n"
        "    import threadcount\n"
        "    x = torch.ones(300, 300)\n"
        "    return Step(run=lambda: x @ x, detail={'blas': threadcount.blas()})\n"
    )
    (tmp_path / "threadcount.py").write_text(
        "import ctypes, numpy\nfrom frostline.harness.threads import loaded_libraries\n"
        "def blas():\n"
        "    (path,) = [path for path in loaded_libraries() if 'openblas' in path]\n"
        "    return ctypes.CDLL(path).scipy_openblas_get_num_threads64_()\n"
    )
    with started(tmp_path / "bench.py") as zygote:
        found = [details(zygote, str(tmp_path / "bench.py"), threads=threads) for threads in (2, 1)]
    assert [one["environment"]["threads"] for one in found] == [2, 1]
    assert [one["blas"] for one in found] == [2, 1]


OWN_THREADS = """
import os, torch
from frostline.harness import Step, suite
{line}
@suite(axes={{'how': ['plain']}})
def s(implementation, device, *, how):
    return Step(run=lambda: None, detail={{'omp': os.environ['OMP_NUM_THREADS'], 'builtin': repr(torch.set_num_threads)}})
"""


def test_threads_that_a_suite_sets_for_itself_are_those_of_a_new_interpreter(tmp_path):
    """More than one may start threads at once, and is refused then."""
    file = tmp_path / "bench.py"
    file.write_text(OWN_THREADS.format(line="torch.set_num_threads(1)"))
    found = []
    with started(file) as zygote:
        for launch in (zygote.fork, spawn):
            how = {"path": None, "targets": (), "device": "cpu", "seed": 1, "threads": 2, "timeout_s": 60.0}
            with Process(**how, launch=launch) as worker:
                build(worker, str(file))
                environment = worker.ask("finish")["environment"]
                found.append((environment["threads"], environment["detail"]))
    assert found[0] == found[1] and found[0][0] == 1
    assert found[0][1]["builtin"].startswith("<built-in") and found[0][1]["omp"] == "2"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import torch; torch.set_num_threads(2)", "what the suite imports started 1 thread"),
        ("import os; os.environ['OMP_NUM_THREADS'] = '1'", "what the suite imports sets OMP_NUM_THREADS"),
        ("import os; os.environ.update(MKL_NUM_THREADS='2')", "what the suite imports sets MKL_NUM_THREADS"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "started 1 thread"),
        ("import torch; torch.cuda.is_initialized = lambda: True", "initialized CUDA"),
        ("raise RuntimeError('no import today')", "RuntimeError: no import today"),
        ("import os; os._exit(4)", "importing the suite ended the process: left with exit code 4"),
        ("import time; time.sleep(60)", "no answer within 2 s"),
    ],
)
def test_what_makes_copies_unsound_is_refused(tmp_path, line, reason):
    (tmp_path / "bench.py").write_text(f"{line}\n{SUITE}")
    slow = 2.0 if "sleep(60)" in line and "Thread" not in line else 60.0
    with started(tmp_path / "bench.py", timeout_s=slow) as zygote, pytest.raises(Refused, match=reason):
        forked(zygote)


def test_a_parallel_operator_at_import_is_refused_where_it_left_threads(tmp_path):
    (tmp_path / "bench.py").write_text(f"import torch\ntorch.set_num_threads(2)\ntorch.relu(torch.ones(1_000_000))\n{SUITE}")
    with started(tmp_path / "bench.py") as zygote, pytest.raises(Refused, match="what the suite imports started"):
        forked(zygote)


def test_an_open_cuda_device_is_seen(monkeypatch, tmp_path):
    (tmp_path / "tasks" / "1").mkdir(parents=True)  # this process has threads of its own
    monkeypatch.setattr("frostline.harness.zygote.TASKS", tmp_path / "tasks")
    assert unfit() == ""
    monkeypatch.setattr("frostline.harness.zygote.CUDA_MEMORY_DEVICE", str(tmp_path / "nvidia-uvm"))
    with (tmp_path / "nvidia-uvm").open("w"):
        assert unfit() == "what the suite imports initialized CUDA"


def test_code_that_changed_since_it_was_imported_is_not_copied(tmp_path):
    side = tmp_path / "side"
    side.mkdir()
    (side / "thing.py").write_text("WHERE = 'side'\n")
    file = tmp_path / "bench.py"
    file.write_text("import thing\n" + SUITE)
    with started(file, path=side, targets=("thing",)) as zygote:
        with forked(zygote, path=side, targets=("thing",)) as worker:
            (module,) = build(worker, str(file))["modules"]
        assert (module.name, module.file) == ("thing", str(side / "thing.py")) and len(module.sha256) == 64
        (side / "thing.py").write_text("WHERE = 'elsewhere'\n")
        with pytest.raises(Stale, match="changed on disk"):
            forked(zygote, path=side, targets=("thing",))


def test_a_part_of_the_suite_that_changed_is_not_copied(tmp_path):
    (tmp_path / "helper.py").write_text("A = 1\n")
    (tmp_path / "bench.py").write_text("import helper\n" + SUITE)
    with started(tmp_path / "bench.py") as zygote:
        forked(zygote).close()
        (tmp_path / "helper.py").write_text("A = 2\n")
        with pytest.raises(Stale, match="changed on disk"):
            forked(zygote)


def test_code_that_changes_while_it_is_imported_is_not_copied(tmp_path):
    (tmp_path / "bench.py").write_text(f"open(__file__, 'a').write('# edited')\n{SUITE}")
    with started(tmp_path / "bench.py") as zygote, pytest.raises(Stale, match="changed on disk"):
        forked(zygote)


def test_a_worker_ends_with_its_zygote(zygote, suite_file):
    with forked(zygote) as worker:
        build(worker, suite_file)
        os.kill(zygote.pid, signal.SIGKILL)
        with pytest.raises(Ended, match="ended with the process that it was forked from: killed by SIGKILL") as end:
            build(worker, suite_file, "hang")
        assert end.value.status is Status.CRASH
    assert gone_soon(worker.pid)
    with pytest.raises(Stale, match="killed by SIGKILL"):
        forked(zygote)


def test_a_zygote_whose_session_is_gone_takes_its_workers_along(tmp_path, suite_file):
    program = (
        "import os, signal\n"
        "from frostline.harness.forks import Zygote\nfrom frostline.harness.isolation import Process\n"
        f"zygote = Zygote(suite={suite_file!r}, path=None, targets=(), hash_seed=1, timeout_s=60.0)\n"
        "worker = Process(path=None, targets=(), device='cpu', seed=1, threads=1, timeout_s=60.0, launch=zygote.fork)\n"
        f"worker.ask('build', suite={suite_file!r}, implementation='default', params={{'how': 'plain'}})\n"
        "print(zygote.pid, worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert all(gone_soon(int(pid)) for pid in done.stdout.split())
