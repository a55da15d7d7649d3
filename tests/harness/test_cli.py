"""The command line as people meet it: what is printed, and one clear line with the right exit code for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlite_utils

from frostline.harness import cli, commands
from frostline.harness.outputs import why_not_writable
from frostline.results.record import Interrupted, Role, Status
from frostline.results.store import Store

SUITE = """
import time
from frostline.harness import Step, suite

@suite(axes={"n": [1, 2]}, implementations=["slow", "fast"])
def naps(implementation, device, *, n):
    nap = 0.002 * n * (1 if implementation == "fast" else 2)
    return Step(run=lambda: time.sleep(nap), outputs=lambda: {"x": 1.0}, reference=lambda: {"x": 1.0})

@suite(axes={"n": [1]})
def broken(implementation, device, *, n):
    raise RuntimeError("no side of this can be measured")
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    file = tmp_path / "bench.py"
    file.write_text(SUITE)
    return file


def test_run_prints_the_table_and_keeps_every_sample(frostline, bench, tmp_path):
    db, markdown = tmp_path / "naps.db", tmp_path / "naps.md"
    done = frostline("run", f"{bench}::naps", "--rounds", 6, "--set", "n=1", "--db", db, "--markdown", markdown)
    assert done.returncode == 0, done.stderr
    assert "time: faster" in done.stdout and "4." in done.stdout and "naps on" in done.stdout
    assert "[6/6] round 6 of n=1  (done)" in done.stderr
    assert markdown.read_text().startswith("**naps on")
    with Store.open(db, create=False) as store:
        records = store.processes(store.session().id, role=Role.MEASURE)
        keys = [(item.case_id, item.position, item.round) for item in records if item.counted and item.status is Status.OK]
        assert len(keys) == len(set(keys)) == 12
        assert all(len(store.samples(item.id)) >= 8 for item in records)
    again = frostline("report", "--db", db)
    assert again.returncode == 0 and done.stdout.split("Kept in")[0].strip() in again.stdout


def test_nothing_measured_is_never_a_success(frostline, bench, tmp_path):
    done = frostline("run", f"{bench}::broken", "--rounds", 1, "--db", tmp_path / "b.db")
    assert done.returncode == 4
    assert "nothing could be measured (error: RuntimeError: no side of this can be measured)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "SUITE: name one suite"),
        (["run", "grpoo"], "no suite 'grpoo' (did you mean grpo?)"),
        (["run", "nowhere.py"], "no file 'nowhere.py'"),
        (["run", "grpo", "--preset", "huge"], "--preset: grpo has no preset 'huge'; it has paper, small"),
        (["run", "grpo", "--set", "vocabulary=3"], "--set: grpo has no axis 'vocabulary' (did you mean vocab?)"),
        (["run", "grpo", "--set", "lm_head=thawed"], "--set: lm_head takes frozen, trainable, got 'thawed'"),
        (["run", "grpo", "--implementations", "prune"], "--implementations: grpo has no 'prune' (did you mean pruned?)"),
        (["run", "grpo", "--rounds", "0"], "--rounds: expected 1 to 1,000, got 0"),
        (["run", "grpo", "--device", "gpu"], "--device: expected cpu, cuda or cuda:N, got 'gpu'"),
        (["run", "noise", "--device", "cpu", "--memory-limit", "80GB"], "--memory-limit: limits the memory of a GPU, and"),
        (["run", "--resume", "last", "--rounds", "3"], "--resume finishes what was planned: leave out --rounds"),
        (
            ["run", "--resume", "x", "--set", "n=1", "--seed", "0"],
            "--resume finishes what was planned: leave out --set, --seed",
        ),
        (["run", "grpo", "--frobnicate"], "No such option: --frobnicate"),
        (["report", "--db", "nothing.db"], "--db: no database at nothing.db"),
        (["chart"], "crossover"),
        (["chart", "floor", "--db", "nothing.db"], "--db: no database at nothing.db"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_2(frostline, tmp_path, arguments, said):
    done = frostline(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr or said in done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "a mistake leaves no database behind"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["run", "grpo"], "--markdown"),
        (["compare", "a", "b"], "--markdown"),
        (["report"], "--markdown"),
        (["cost", "grpo"], "--markdown"),
        (["plan", "--tokens", "8", "--hidden", "8", "--vocab", "8"], "--markdown"),
        (["gate"], "--markdown"),
        (["gate"], "--junit"),
        (["gate"], "--json"),
        (["doctor"], "--json"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(frostline, tmp_path, arguments, option):
    done = frostline(*arguments, option, "nowhere/out", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and list(tmp_path.iterdir()) == []
    assert done.stderr.startswith(f"frostline: {option}: cannot write nowhere/out: there is no folder nowhere")
    assert len(done.stderr.splitlines()) == 1


def test_why_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    assert why_not_writable(tmp_path) == "it is a folder"
    assert why_not_writable(tmp_path / "file") == why_not_writable(tmp_path / "new") == ""
    assert "no folder" in why_not_writable(tmp_path / "file" / "below")
    assert why_not_writable(Path("/proc/new")).startswith("/proc: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "trying leaves nothing behind"


def test_a_file_that_is_no_database_is_refused_and_left_alone(frostline, bench, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("not a database, but somebody's notes" * 100)
    done = frostline("run", f"{bench}::naps", "--db", other)
    assert done.returncode == 2 and "is not a database" in done.stderr
    assert other.read_text().startswith("not a database")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "no-such-branch", "HEAD"], "BASE: no branch, tag or commit 'no-such-branch'"),
        (["compare", "HEAD", "mian"], "did you mean main?"),
        (["compare", "--", "--upload-pack=touch x", "HEAD"], "BASE"),
        (["compare"], "none was named and the working tree is HEAD"),
    ],
)
def test_a_bad_revision_is_one_clear_line_and_exit_2(frostline, scratch_repo, bench, tmp_path, arguments, said):
    repo = scratch_repo({"thing.py": "A = 1\n", "pyproject.toml": '[project]\nname="thing"\nversion="1"\n'})
    done = frostline(*arguments[:1], "--suite", f"{bench}::naps", "--db", tmp_path / "x.db", *arguments[1:], cwd=repo.path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


def test_compare_outside_a_repository_says_so(frostline, bench, tmp_path):
    done = frostline("compare", "a", "b", "--suite", f"{bench}::naps", "--repo", tmp_path)
    assert done.returncode == 2 and "not" in done.stderr and "repository" in done.stderr


def test_help_is_there_for_every_command(frostline):
    for command in (
        [],
        ["run"],
        ["compare"],
        ["report"],
        ["chart", "crossover"],
        ["chart", "floor"],
        ["gate"],
        ["cost"],
        ["doctor"],
    ):
        done = frostline(*command, "--help")
        assert done.returncode == 0 and "Usage" in done.stdout


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_exits_130_and_can_be_finished(frostline, bench, tmp_path):
    db = tmp_path / "naps.db"
    command = [sys.executable, "-P", "-m", "frostline.harness.cli", "run", f"{bench}::naps", "--rounds", "6", "--db", str(db)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stderr is not None
    said = next(line for line in running.stderr if "round 1 of n=2" in line)
    os.kill(running.pid, signal.SIGINT)
    rest = running.communicate(timeout=60)[1]
    assert running.returncode == 130, said + rest
    assert "everything measured so far is kept" in rest
    done = frostline("run", "--resume", "last", "--db", db)
    assert done.returncode == 0, done.stderr
    with Store.open(db, create=False) as store:
        counted = [item for item in store.processes(store.session().id, role=Role.MEASURE) if item.counted]
        assert len(counted) == len({(item.case_id, item.position, item.round) for item in counted}) == 24
        assert len(store.sessions()) == 1


def test_check_makes_a_comparison_exit_like_a_gate(frostline, scratch_repo, tmp_path):
    project = '[build-system]\nrequires=["setuptools"]\nbuild-backend="setuptools.build_meta"\n'
    project += '[project]\nname="napper"\nversion="1"\n[tool.setuptools]\npy-modules=["napper"]\n'
    repo = scratch_repo(
        {"pyproject.toml": project, "napper.py": "NAP = 0.002\n"},
        {"napper.py": "NAP = 0.004\n"},
    )
    suite = tmp_path / "bench_nap.py"
    suite.write_text(
        "import time\nfrom frostline.harness import suite\nfrom napper import NAP\n"
        "@suite()\ndef nap(implementation, device):\n    return lambda: time.sleep(NAP)\n"
    )
    options = ["--repo", repo.path, "--suite", suite, "--rounds", 6, "--db", tmp_path / "n.db", "--check"]
    worse = frostline("compare", "HEAD~1", "HEAD", *options)
    assert worse.returncode == 1, worse.stdout + worse.stderr
    assert "slower" in worse.stdout and "for a pull request: --markdown -" in worse.stdout
    assert worse.stdout.count("step time") == 1 and "<details>" not in worse.stdout, "each figure is read once"
    better = frostline("compare", "HEAD", "HEAD~1", *options)
    assert better.returncode == 0, better.stdout + better.stderr


def test_cost_predicts_at_full_size_without_a_gpu(frostline, tmp_path):
    began = time.monotonic()
    done = frostline("cost", "grpo", "--preset", "paper", "--set", "vocab=151936", "--db", tmp_path / "c.db")
    assert done.returncode == 0, done.stderr
    assert "20.39 TFLOP" in done.stdout and "30.59 TFLOP" in done.stdout
    assert time.monotonic() - began < 60
    data = json.loads(subprocess.run(
        [sys.executable, "-m", "sqlite_utils", "query", str(tmp_path / "c.db"), "select distinct role from process"],
        capture_output=True, text=True, check=True,
    ).stdout)  # fmt: skip
    assert data == [{"role": "predict"}]


def test_a_budget_ends_a_run_and_resume_finishes_it(frostline, bench, tmp_path):
    db, markdown = tmp_path / "naps.db", tmp_path / "naps.md"
    began = time.monotonic()
    done = frostline("run", f"{bench}::naps", "--rounds", 40, "--budget", "8s", "--db", db, "--markdown", markdown)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60
    said = "the time ended it: 2 of 2 cases have fewer rounds than planned"
    assert said in done.stdout and said in markdown.read_text() and said in frostline("report", "--db", db).stdout
    with Store.open(db, create=False) as store:
        assert 2 < len(store.processes(store.session().id, role=Role.MEASURE)) < 160
    more = frostline("run", "--resume", "last", "--budget", "4s", "--db", db)
    assert more.returncode == 0 and said in more.stdout
    with Store.open(db, create=False) as store:
        assert len(store.sessions()) == 1


def test_a_budget_without_a_single_round_measures_nothing(frostline, bench, tmp_path):
    done = frostline("run", f"{bench}::naps", "--budget", "0.01s", "--db", tmp_path / "n.db")
    assert done.returncode == 4, done.stdout
    assert "nothing could be measured (the time was used up before the first round)" in done.stderr


@pytest.mark.parametrize("command", [["run", "grpo"], ["compare", "a", "b"]])
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--budget", "10"], "--budget: got '10', wanted a time such as 90s, 10m or 1h30m, a week at most"),
        (["--budget", "soon"], "--budget: got 'soon', wanted a time such as 90s, 10m or 1h30m, a week at most"),
        (["--rounds", "8", "--max-rounds", "6"], "--max-rounds: got 6, wanted at least the 8 of --rounds"),
        (["--max-rounds", "0"], "--max-rounds: expected 1 to 10,000, got 0"),
    ],
)
def test_a_wrong_limit_is_one_clear_line(frostline, tmp_path, command, typed, said):
    done = frostline(*command, *typed, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (2, f"frostline: {said}")


def ended(monkeypatch, capsys, error):
    """What the front door says of an exception, and the exit code."""

    def leave(code):
        raise SystemExit(code)

    def app(**_):
        raise error

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code, capsys.readouterr().err


def test_ctrl_c_offers_to_go_on_only_where_a_session_was_begun(monkeypatch, capsys, tmp_path):
    assert ended(monkeypatch, capsys, KeyboardInterrupt()) == (130, "frostline: interrupted\n")
    store = Store(sqlite_utils.Database(memory=True), tmp_path / "with space.db")
    monkeypatch.setattr(commands.sessions, "measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    session = SimpleNamespace(id="01a2")
    with pytest.raises(Interrupted) as stopped:
        commands._finish(SimpleNamespace(looks=SimpleNamespace(most=8)), session, store, None)
    code, said = ended(monkeypatch, capsys, stopped.value)
    assert code == 130 and len(said.splitlines()) == 1
    assert f"frostline run --resume 01a2 --db '{tmp_path}/with space.db'" in said and "everything measured so far" in said


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_during_the_imports_is_one_line(tmp_path):
    (tmp_path / "typer.py").write_text(
        "import os, signal, threading, time\n"
        "def interrupt():\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Timer(0.05, interrupt).start()\ntime.sleep(30)\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "frostline.harness", "--help"]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "frostline: interrupted\n")
