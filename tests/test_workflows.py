"""The workflow, the action and the examples of docs/ci.md: their shell steps run, and hand over what they were given.

`make lint` holds them against GitHub's schemas. Here the commands that they call are stand-ins that note how they were called.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/gate.yml").read_text())
ACTION = yaml.safe_load((ROOT / ".github/actions/gate/action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
PAGE = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
EXAMPLES = {kind: re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("yaml", "sh")}
GITHUB, GITLAB = map(yaml.safe_load, EXAMPLES["yaml"])
STAND_IN = """#!/bin/bash
printf '%s\\n' "$(basename "$0")" "$@" "" >> "$CALLS"
case "$*" in *"/comments --jq"*) echo "$KNOWN"; exit ;; esac
exit "${CODE:-0}"
"""


@pytest.fixture
def shell(tmp_path):
    """Run a script as GitHub does, with the stand-ins first on the path; gives its exit code, and every call's words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("frostline", "gh", "make", "pip"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    calls = tmp_path / "calls"

    def run(script: str, **env: str) -> tuple[int, list[list[str]]]:
        calls.write_text("")
        given = {"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(calls), "KNOWN": "", "GITHUB_OUTPUT": str(tmp_path / "output")}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(command, env=given | env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not done.stderr, done.stderr
        return done.returncode, [call.splitlines() for call in calls.read_text().split("\n\n") if call]

    return run


@pytest.mark.parametrize("code", ["0", "1", "3", "4", "70"])
def test_the_action_ends_with_the_gate_s_exit_code_and_tells_it(shell, tmp_path, code):
    hostile = 'main"; touch broken; $(touch broken) `touch broken`'
    inputs = {
        "FROSTLINE": "frostline",
        "REPOSITORY": "a b",
        "BASE": hostile,
        "DATABASE": "x.db",
        "OUT": str(tmp_path / "o u t"),
    }
    ended, (call,) = shell(STEPS["Gate"]["run"], **inputs, OPTIONS="--rounds 6", CODE=code)
    assert ended == int(code)
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    files = [f"{inputs['OUT']}/{name}" for name in ("comment.md", "gate.xml", "gate.json")]
    assert call[:2] == ["frostline", "gate"]
    given = dict(zip(call[2::2], call[3::2], strict=True))
    assert given == {
        "--repo": "a b",
        "--db": "x.db",
        "--base": hostile,
        "--rounds": "6",
        **dict(zip(("--comment-file", "--junit", "--json"), files, strict=True)),
    }
    assert not list(tmp_path.glob("broken*")) and (tmp_path / "o u t").is_dir()


def test_the_action_leaves_the_base_to_the_policy_where_none_is_given(shell, tmp_path):
    inputs = {"FROSTLINE": "frostline", "REPOSITORY": ".", "BASE": "", "DATABASE": "x.db", "OPTIONS": ""}
    _, (call,) = shell(STEPS["Gate"]["run"], **inputs, OUT=str(tmp_path / "out"))
    assert "--base" not in call


@pytest.mark.parametrize(
    ("known", "method", "place"), [("", "POST", "r/issues/7/comments"), ("12\n13", "PATCH", "r/issues/comments/12")]
)
def test_a_comment_of_ours_is_replaced_and_else_made(shell, tmp_path, known, method, place):
    page = tmp_path / "comment.md"
    page.write_text("<!-- frostline gate -->\n### Passed\n")
    code, (asked, told) = shell(STEPS["Comment"]["run"], PLACE="r/issues", NUMBER="7", COMMENT=str(page), KNOWN=known)
    assert code == 0 and asked[:4] == ["gh", "api", "--paginate", "r/issues/7/comments"]
    assert told == ["gh", "api", "--silent", "--method", method, place, "--field", f"body=@{page}"]


def test_without_a_decision_there_is_no_comment(shell, tmp_path):
    assert shell(STEPS["Comment"]["run"], PLACE="r", NUMBER="7", COMMENT=str(tmp_path / "none")) == (0, [])


def test_no_script_holds_what_somebody_else_may_have_written():
    scripts = [step["run"] for step in STEPS.values() if "run" in step]
    scripts += [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    assert scripts and not [script for script in scripts if "${{" in script]


def test_the_workflow_installs_what_it_gives_to_the_action(shell):
    for job in WORKFLOW["jobs"].values():
        (install,) = (step["run"] for step in job["steps"] if "run" in step)
        assert shell(install) == (0, [["make", ".venv/run.stamp"]])
        (used,) = (step for step in job["steps"] if step.get("uses") == "./.github/actions/gate")
        assert set(used["with"]) <= set(ACTION["inputs"]) and used["with"]["frostline"] == ".venv/bin/frostline"
        (checkout,) = (step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@"))
        assert checkout["with"]["fetch-depth"] == 0


def test_base_and_head_are_measured_in_one_job():
    jobs = [*WORKFLOW["jobs"].values(), *GITHUB["jobs"].values()]
    assert all("needs" not in job and sum("actions/gate" in step.get("uses", "") for step in job["steps"]) == 1 for job in jobs)


def test_the_examples_call_the_gate(shell):
    (step,) = (step for step in GITHUB["jobs"]["gate"]["steps"] if "actions/gate@" in step.get("uses", ""))
    assert set(step["with"]) <= set(ACTION["inputs"])
    code, calls = shell("\n".join(GITLAB["gate"]["script"]), CI_MERGE_REQUEST_DIFF_BASE_SHA="abc")
    assert code == 0 and calls[1][:4] == ["frostline", "gate", "--base", "abc"]
    assert {"--junit", "--json", "--comment-file"} < set(calls[1])


@pytest.mark.parametrize(("code", "ends"), [("0", 0), ("1", 1), ("2", 2), ("3", 0), ("4", 4), ("70", 70)])
def test_the_plain_example_lets_what_is_undecided_pass_and_nothing_else(shell, code, ends):
    (script,) = EXAMPLES["sh"]
    ended, (call,) = shell(script, CODE=code)
    assert ended == ends and call[:4] == ["frostline", "gate", "--base", "main"]
