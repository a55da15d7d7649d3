"""Every exit code of the gate by its command, what it leaves for those who read it elsewhere, and which base it takes.

The command runs in this process where that is the same, on suites without torch and in as few rounds as tell a status.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest

from frostline.harness import cli

PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "lib"
version = "1"
[tool.setuptools]
py-modules = ["lib"]
[tool.frostline.gate]
predicted = false
isolation = "fork"
inconclusive = "warn"
[tool.frostline.gate.suites."bench.py::work"]
rounds = 1
max_rounds = 1
"""
BENCH = """import lib
from frostline.harness import suite

@suite(axes={"n": [1, 2]})
def work(implementation, device, *, n):
    return lambda: lib.work(n)

@suite()
def other(implementation, device):
    return lambda: lib.other()
"""
LIB = "def work(n):\n    return sum(range(1000))\n\ndef other():\n    return sum(range(1000))\n"
FULL = "    if n == 2:\n        raise MemoryError('no room')\n"
OOM = LIB.replace("    return sum(range(1000))\n\n", f"{FULL}    return sum(range(1000))\n\n")
EMPTY = LIB.replace("    return sum(range(1000))", "    raise MemoryError('no room')")
FILES = {"pyproject.toml": PROJECT, "bench.py": BENCH, "lib.py": LIB}


@dataclass
class Done:
    """How the command ended, and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def gate(monkeypatch, capfd, tmp_path):
    """The command, in this process."""

    def run(repo, *options: object, base: str | None = "HEAD"):
        options = ("--db", tmp_path / "gate.db", *(("--base", base) if base else ()), *options)
        monkeypatch.setattr(sys, "argv", ["frostline", "gate", "--repo", str(repo.path), *map(str, options)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Done(ended.value.code or 0, *capfd.readouterr())

    return run


@pytest.fixture
def told(monkeypatch, tmp_path):
    """Where a run on GitHub tells what it found, and the options that ask for it."""
    names = {"summary": "summary.md", "comment": "comment.md", "junit": "junit.xml", "json": "gate.json"}
    files = {what: tmp_path / name for what, name in names.items()}
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(files["summary"]))
    return files, ("--comment-file", files["comment"], "--junit", files["junit"], "--json", files["json"])


def test_one_case_out_of_memory_fails_while_others_pass_and_nothing_of_another_suite_was_measured(scratch_repo, gate, told):
    files, options = told
    two = PROJECT + '[tool.frostline.gate.suites."bench.py::other"]\nrounds = 1\nmax_rounds = 1\n'
    head = OOM.replace("def other():\n    return", "def other():\n    raise MemoryError('no room')\n    return")
    base = {**FILES, "pyproject.toml": two, "lib.py": head.replace(FULL, "")}
    done = gate(scratch_repo(base, {"lib.py": head}), *options, base="HEAD~1")
    assert done.code == 1, done.out + done.err
    nothing = "Nothing of other was measured: nothing could be measured (oom: MemoryError: no room)."
    assert "work n=2: broken. This side ran out of memory: MemoryError: no room." in done.out and nothing in done.out
    assert "::error title=frostline gate::work n=2: broken." in done.out
    assert "::warning title=frostline gate::work n=1, step_time: inconclusive." in done.out
    assert (
        files["summary"].read_text().startswith("### Failed: something got worse (1 broken")
        and nothing in files["summary"].read_text()
    )
    assert files["comment"].read_text().startswith("<!-- frostline gate -->\n### Failed: something got worse")
    (suite,) = ElementTree.parse(files["junit"]).getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    assert json.loads(files["json"].read_text())["exit_code"] == 1


def test_no_room_on_both_sides_is_no_answer_and_a_session_of_what_no_commit_has_no_base(scratch_repo, gate):
    repo = scratch_repo({**FILES, "lib.py": OOM})
    repo.write({"lib.py": f"{OOM}# changed\n"})
    done = gate(repo)
    assert done.code == 3, done.out + done.err
    assert "work n=2: incomparable. The baseline ran out of memory" in done.out
    repo.write({"pyproject.toml": PROJECT.replace('"warn"', '"warn"\nbase = "session:last"')})
    done = gate(repo, base=None)
    assert done.code == 2, done.out
    assert "had changes that no commit has, so it cannot be measured again; name a session of a commit" in done.err


def test_where_nothing_was_measured_every_file_says_so(scratch_repo, gate, told):
    files, options = told
    repo = scratch_repo(FILES)
    repo.write({"lib.py": EMPTY})
    done = gate(repo, *options, "--head", "path:" + str(repo.path), base="path:" + str(repo.path))
    assert done.code == 4, done.out + done.err
    assert "frostline: nothing could be measured (oom: MemoryError: no room)" in done.err
    assert "::error title=frostline gate::Undecided: nothing could be measured. nothing could be measured (oom" in done.out
    assert "nothing could be measured (oom: MemoryError: no room)" in files["summary"].read_text()
    assert ElementTree.parse(files["junit"]).getroot().find("testsuite/testcase/error") is not None
    assert json.loads(files["json"].read_text())["exit_code"] == 4


def test_a_head_that_cannot_be_built_is_exit_4_and_says_so_in_the_summary(scratch_repo, gate, told):
    files, options = told
    repo = scratch_repo(FILES, {"pyproject.toml": PROJECT.replace("setuptools.build_meta", "no.such.backend")})
    done = gate(repo, *options, base="HEAD~1")
    assert done.code == 4, done.out + done.err
    assert "the build failed" in files["summary"].read_text() and files["comment"].exists()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "max_rounds = 1",
            "max_rounds = 1\naxes = { n = ['big'] }",
            ".axes.n (line 16 of {}): n takes a whole number, got 'big'",
        ),
        ("rounds = 1\nmax", "axes = { m = [1] }\nmax", ".axes.m (line 14 of {}): work has no axis 'm'"),
        ("rounds = 1\nmax", 'preset = "big"\nmax', ".preset (line 14 of {}): work has no preset 'big'"),
        ("max_rounds = 1", "max_rounds = 20000", ".max_rounds (line 15 of {}): expected 1 to 10,000, got 20000"),
        ("bench.py::work", "bench.py::wort", '"bench.py::wort" (line 13 of {}): '),
        ('"warn"', '"warn"\nbase = "mian"', "gate.base (line 13 of {}): no branch, tag or commit 'mian'"),
        ('"warn"', '"warn"\npython = "nowhere"', "gate.python (line 13 of {}): "),
        ('"warn"', '"warn"\nbase = "session:last"', "gate.base (line 13 of {}): "),
        ("[tool.frostline.gate.suites", "[tool.nothing.selected", "names no suite; add [tool.frostline.gate.suites.NAME]"),
    ],
)
def test_a_mistake_is_exit_2_named_by_key_and_line_and_measures_nothing(scratch_repo, gate, told, before, after, said):
    repo = scratch_repo({**FILES, "pyproject.toml": PROJECT.replace(before, after, 1)})
    done = gate(repo, base=None if "base" in after else "HEAD")
    assert done.code == 2, done.out + done.err
    assert said.format(repo.path / "pyproject.toml") in done.err.splitlines()[-1]
    assert done.out.startswith("::error title=frostline gate::gate: ")
    assert "round 1" not in done.err


def test_a_selection_without_a_case_is_exit_2(scratch_repo, gate):
    bench = BENCH.replace('"n": [1, 2]}', '"n": [1, 2]}, keep=lambda params: params["n"] < 2')
    policy = PROJECT + "axes = { n = [2] }\n"
    done = gate(scratch_repo({**FILES, "bench.py": bench, "pyproject.toml": policy}))
    assert done.code == 2, done.out + done.err
    assert ".axes (line 16 of " in done.err and "work has no case for n=2: the selection is empty" in done.err


def test_a_fault_of_ours_is_exit_70_and_no_verdict(scratch_repo, gate, monkeypatch):
    def fault(*arguments, **named):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("frostline.harness.gating.gate", fault)
    done = gate(scratch_repo(FILES))
    assert done.code == 70, done.out + done.err
    assert done.err.splitlines()[-1] == "frostline: this is a fault of frostline, not a verdict"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_gate_is_exit_130_and_never_a_verdict(scratch_repo, tmp_path):
    policy = PROJECT.replace("rounds = 1\nmax_rounds = 1", "rounds = 500\nmax_rounds = 500")
    command = [sys.executable, "-P", "-m", "frostline.harness", "gate", "--base", "HEAD", "--db", str(tmp_path / "gate.db")]
    command += ["--repo", str(scratch_repo({**FILES, "pyproject.toml": policy}).path), "--json", str(tmp_path / "gate.json")]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    until = time.monotonic() + 120
    said = ""
    while "round 1 of" not in said and time.monotonic() < until:
        said += running.stderr.readline()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, said + out + err
    assert "frostline: interrupted; everything measured so far is kept" in err
    assert not out and not (tmp_path / "gate.json").exists()


class TestBase:
    """Which base is taken: `--explain` says it, and measures nothing."""

    @staticmethod
    def policy(base: str) -> dict[str, str]:
        one_case = "axes = { n = [2] }\n"
        return {"pyproject.toml": PROJECT.replace('"warn"', f'"warn"\nbase = "{base}"') + one_case}

    def test_the_last_green_is_the_newest_commit_of_main_that_passed(self, scratch_repo, gate):
        repo = scratch_repo(FILES, {"NOTES": "a remark"})
        repo.commit(self.policy("last-green"), "Take the last green")
        first = gate(repo, "--explain", base=None)
        assert first.code == 0, first.err
        assert first.out.startswith(
            "Compared with: HEAD~1 (Commit 1), the merge base: no stored gate passed on an ancestor of HEAD"
        )
        assert gate(repo, "--head", "HEAD~1", base="HEAD~2").code == 0
        passed = repo.git("rev-parse", "HEAD~1")
        repo.commit({"lib.py": OOM}, "No room")
        assert gate(repo, "--head", "HEAD", base="HEAD~1").code == 1, "and this one does not count"
        repo.git("checkout", "--quiet", "-b", "topic")
        repo.commit({"lib.py": LIB}, "Room again")
        found = gate(repo, "--explain", base=None)
        assert found.out.startswith(f"Compared with: {passed[:12]}, the last on the main branch that passed a gate (session ")
        assert found.code == 0 and "Fails (exit 1) where a verdict is slower, more or broken." in found.out
        repo.write(self.policy("session:last"))
        stored = gate(repo, "--explain", base=None)
        broken = repo.git("rev-parse", "HEAD~1")
        assert stored.out.startswith(f"Compared with: {broken[:12]}, which session ")
        assert "measuring" not in found.err + stored.err

    def test_explain_needs_no_database_and_makes_none(self, scratch_repo, gate, tmp_path):
        done = gate(scratch_repo(FILES), "--explain", "--rounds", "6")
        assert done.code == 0, done.err
        assert "Suite bench.py::work: the preset that it has for this machine; 6 rounds" in done.out
        assert not (tmp_path / "gate.db").exists()
        wrong = gate(scratch_repo(FILES), "--explain", base="mian")
        assert wrong.code == 2 and "--base: no branch, tag or commit 'mian'" in wrong.err
