"""The gate where times are measured, and the whole way to a verdict without pandas or matplotlib."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "napper"
version = "1"
[tool.setuptools]
py-modules = ["napper"]
"""
POLICY = """
[tool.frostline.gate]
predicted = {predicted}
budget = "{budget}"
[tool.frostline.gate.suites."bench.py::nap"]
rounds = 6
max_rounds = 6
[tool.frostline.gate.suites."bench.py::doze"]
rounds = 6
max_rounds = 6
[tool.frostline.gate.metrics.step_time]
"""
BENCH = """
import time
from frostline.harness import suite
from napper import NAP

@suite()
def nap(implementation, device):
    return lambda: time.sleep(NAP)

@suite()
def doze(implementation, device):
    return lambda: time.sleep(0.002)
"""


@pytest.fixture
def gated(scratch_repo, frostline, tmp_path):
    """A repository whose second commit naps twice as long, and its gate."""

    def run(*options, predicted="false", budget="5m", env=None):
        files = {
            "pyproject.toml": PROJECT + POLICY.format(predicted=predicted, budget=budget),
            "bench.py": BENCH,
            "napper.py": "NAP = 0.002\n",
        }
        repo = scratch_repo(files, {"napper.py": "NAP = 0.004\n"}, name="napper")
        options = ("--repo", repo.path, "--base", "HEAD~1", "--db", tmp_path / "gate.db", *options)
        return frostline("gate", *options, env=env)

    return run


@pytest.fixture
def without_tables(tmp_path):
    """An environment in which nobody can import pandas or matplotlib: neither the command nor what it starts."""
    folder = tmp_path / "blocked"
    folder.mkdir()
    for name in ("pandas", "matplotlib"):
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is blocked')\n")
    env = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
    tried = subprocess.run(
        [sys.executable, "-P", "-c", "import pandas"], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert "pandas is blocked" in tried.stderr
    return env


def test_a_slowdown_fails_the_gate_and_no_table_of_pandas_is_needed_for_it(gated, frostline, without_tables, tmp_path):
    files = {name: tmp_path / name for name in ("gate.json", "gate.md", "gate.xml")}
    options = ("--json", files["gate.json"], "--markdown", files["gate.md"], "--junit", files["gate.xml"])
    done = gated(*options, env=without_tables)
    assert done.returncode == 1, done.stdout + done.stderr
    decided = json.loads(files["gate.json"].read_text())
    told = {one["suite"]: (one["outcome"], one["reason"], one["rounds"], one["level"]) for one in decided["verdicts"]}
    assert told["nap"] == ("slower", "interval_excludes_zero", 6, 0.99)
    assert told["doze"][2] == 6
    assert "### Failed: something got worse" in files["gate.md"].read_text()
    assert len(list(ElementTree.parse(files["gate.xml"]).getroot().iter("failure"))) == 1
    report = frostline("report", "--db", tmp_path / "gate.db", "--markdown", tmp_path / "r.md", env=without_tables)
    assert report.returncode == 0 and "doze" in report.stdout and (tmp_path / "r.md").read_text(), report.stderr
    check = frostline(
        *("compare", "HEAD~1", "HEAD", "--repo", tmp_path / "napper", "--suite", f"{tmp_path / 'napper/bench.py'}::nap"),
        *("--max-rounds", "6", "--check", "--db", tmp_path / "c.db", "--markdown", tmp_path / "c.md"),
        env=without_tables,
    )
    assert check.returncode == 1, check.stdout + check.stderr
    assert "slower" in (tmp_path / "c.md").read_text()


def test_suites_that_run_out_of_time_are_said_and_never_pass(gated):
    done = gated("--budget", "0.001s")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Nothing of nap was measured." in done.stdout and "Nothing of doze was measured." in done.stdout
    assert "the time ended it: 1 of 1 cases have fewer rounds than planned, 1 of them none" in done.stdout


def test_every_suite_gets_its_part_of_the_budget(gated, tmp_path):
    done = gated("--rounds", "40", "--max-rounds", "40", budget="8s")
    assert done.returncode in (1, 3), done.stdout + done.stderr
    assert done.stdout.count("the time ended it: 1 of 1 cases have fewer rounds than planned\n") == 2


def test_limits_of_measuring_are_refused_where_nothing_is_measured(gated):
    done = gated("--rounds", "8", "--budget", "1m", predicted="true")
    assert done.returncode == 2
    assert "--rounds, --budget: here the cost model decides, and nothing is measured; leave that out" in done.stderr


def test_a_budget_of_the_policy_that_is_no_time(gated):
    done = gated(budget="soon")
    assert done.returncode == 2
    assert done.stderr.startswith("frostline: gate: tool.frostline.gate.budget (line 13 of ")
    assert done.stderr.endswith("): got 'soon', wanted a time such as 90s, 10m or 1h30m, a week at most\n")
