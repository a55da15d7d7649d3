"""False alarms of the gate: what is kept, counted and told; and that what is gated differs in a comment alone."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from frostline.harness.trials.alarms import CHANGED, Gate
from frostline.results.alarms import MARKS, Run, load_runs, measured_part
from frostline.results.policy_file import load_policy
from frostline.results.record import UsageError
from frostline.results.trials_report import splice

ROOT = Path(__file__).resolve().parents[2]
RUN = Run(
    0, 0, [["norms", "step_time", "same", 1.0]], 60.0, "ab" * 20, "Test CPU, 2 cores", "1 processes", 2.5, "2026-01-01T00:00:00"
)


def runs(alarms: int, undecided: int, of: int) -> list[Run]:
    codes = [1] * alarms + [3] * undecided + [0] * (of - alarms - undecided)
    return [replace(RUN, turn=turn, exit_code=code) for turn, code in enumerate(codes)]


@pytest.mark.parametrize(
    ("counts", "rows"),
    [
        (
            (1, 7, 50),
            ["| runs | 50 |", "| alarmed (exit 1) | 1 [0.1, 10.6 % of runs] |", "| undecided (exit 3) | 7 |", "| holds |"],
        ),
        ((0, 0, 20), ["| runs | 20 (of the 50 that are asked for) |", "| passed (exit 0) | 20 |", "| not shown yet |"]),
        ((0, 11, 11), ["| undecided (exit 3) | 11 |", "| passed (exit 0) | 0 |", "| not shown yet |"]),
        ((2, 0, 20), ["| alarmed (exit 1) | 2 [1.2, 31.7 % of runs] |", "| missed |"]),
    ],
)
def test_the_page_has_every_count_and_claims_no_more(counts, rows):
    part = measured_part(runs(*counts))
    assert [row for row in rows if row not in part] == []
    assert ("could not tell" in part) == (counts[1] > counts[2] / 2)
    assert f"{counts[2]} same" in part and "revision abababababab" in part


def test_the_part_goes_between_the_markers_of_the_page():
    page = splice((ROOT / "docs/ci.md").read_text(encoding="utf-8"), measured_part(runs(0, 0, 1)), MARKS)
    assert page.count("| runs | 1 (of the 50 that are asked for) |") == 1


def test_lines_come_back_and_one_that_was_cut_off_is_left_out(tmp_path):
    file = tmp_path / "alarms.jsonl"
    kept = runs(1, 1, 3)
    file.write_text("".join(run.line for run in kept) + kept[0].line[:30])
    assert load_runs(file) == kept
    file.write_text('{"turn": 1}\n')
    with pytest.raises(UsageError, match="line 1 is no run of the gate"):
        load_runs(file)
    with pytest.raises(UsageError, match="no run of the gate to report"):
        measured_part(load_runs(tmp_path / "none"))


def test_what_is_gated_differs_in_a_comment_alone_and_is_measured(tmp_path):
    gate = Gate.make(ROOT, tmp_path)
    shown = subprocess.run(
        ["git", "diff", "--unified=0", "HEAD~1", "HEAD"], cwd=gate.copy, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    changes = [line for line in shown if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert [line for line in shown if line.startswith("+++")] == [f"+++ b/{CHANGED}"]
    assert changes == ["+", "+# A remark that changes nothing."]
    policy, _ = load_policy(gate.copy / "pyproject.toml")
    own, _ = load_policy(ROOT / "pyproject.toml")
    assert policy.predicted is False and policy.metrics == own.metrics and policy.blocks == own.blocks
    assert Gate.make(ROOT, tmp_path) == gate
