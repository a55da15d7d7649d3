"""The program behind the measured part of the method: reading each tool, the order, the load, and all of it once end to end."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from frostline.harness.trials.calibrate import ratio_of
from frostline.harness.trials.experiment import FORMS, commands_of
from frostline.harness.trials.load import LoadPlan, background, stretches
from frostline.harness.trials.planted import CHANGES, PlantedRepository, tag_of
from frostline.harness.trials.tools.asv_tool import read_table
from frostline.harness.trials.tools.base import Shell, ToolFailed
from frostline.harness.trials.tools.pyperf_tool import read_comparison
from frostline.harness.trials.tools.pytest_benchmark_tool import read_failures
from frostline.results.trials import Trials
from frostline.results.trials_report import BEGIN, END

ASV_TABLE = """
| Change   | Before [466431e4] <slow5>   | After [d4351850] <main>   | Ratio   | Benchmark (Parameter)               |
|----------|-----------------------------|---------------------------|---------|-------------------------------------|
| +        | 1.17±0.05ms                 | 2.37±0.1ms                | 2.03    | bench_asv.Steps.time_step('gemm')   |
|          | 3.25±3ms                    | 7.03±3ms                  | ~2.16   | bench_asv.Steps.time_step('norm')   |
| -        | 1.65±1ms                    | 1.21±0.02ms               | 0.73    | bench_asv.Steps.time_step('python') |
|          | 1.65±1ms                    | failed                    | n/a     | bench_asv.Steps.time_step('other')  |
"""
PYPERF_TEXT = """\
python: Mean +- std dev: [base] 3.60 ms +- 1.27 ms -> [slow5] 2.80 ms +- 0.61 ms: 1.28x faster
gemm: Mean +- std dev: [base] 1.40 ms +- 0.02 ms -> [slow5] 1.47 ms +- 0.02 ms: 1.05x slower

Benchmark hidden because not significant (1): norm

Geometric mean: 1.11x faster
"""
PYTEST_TEXT = """\
Performance has regressed:
\ttest_step[python] (0001_d435185) - Field 'median' has failed PercentageRegressionCheck: 8.924311794 > 5.000000000
\ttest_step[gemm] (0001_d435185) - Field 'median' has failed PercentageRegressionCheck: 28.1 > 5.000000000
Traceback (most recent call last):
"""


def test_asv_marks_what_changed() -> None:
    assert read_table(ASV_TABLE) == {
        "gemm": ("slower", 2.03),
        "norm": ("unchanged", 2.16),
        "python": ("faster", 0.73),
        "other": ("unchanged", None),
    }


def test_pyperf_hides_what_is_not_significant() -> None:
    found = read_comparison(PYPERF_TEXT, ("gemm", "norm", "python"))
    assert found["gemm"] == ("slower", 1.05) and found["norm"] == ("unchanged", None)
    assert found["python"] == ("faster", pytest.approx(1 / 1.28))
    with pytest.raises(ToolFailed, match="nothing of other"):
        read_comparison(PYPERF_TEXT, ("gemm", "other"))


def test_pyperf_leaves_out_the_name_of_a_lone_benchmark() -> None:
    assert read_comparison("Mean +- std dev: [a] 1 ms +- 0 ms -> [b] 2 ms +- 0 ms: 2.00x slower\n", ["norm"]) == {
        "norm": ("slower", 2.0)
    }


def test_pytest_benchmark_names_what_regressed() -> None:
    assert read_failures(PYTEST_TEXT) == {"python", "gemm"}
    assert read_failures("3 passed") == set()


def test_every_cell_gets_its_share_wherever_one_stops() -> None:
    counts = {("fork", "noisy", 0): 40, ("asv", "calm", 5): 10}
    order = commands_of(counts)
    assert len(set(order)) == 50
    first = Counter(command.way for command in order[:25])
    assert first == {"fork": 20, "asv": 5}
    turns = [command.turn for command in order if command.way == "fork"]
    assert turns == list(range(40))


def test_the_usual_form_has_two_hundred_self_comparisons_and_the_full_one_goes_on_from_it() -> None:
    usual, full = (set(commands_of(FORMS[form])) for form in ("usual", "full"))
    own = [one for one in usual if one.change == 0 and one.way in ("fork", "spawn", "fork in turn")]
    assert 3 * len(own) >= 200
    assert usual < full


def test_the_load_of_a_seed_is_always_the_same_and_within_its_bounds() -> None:
    first, again, other = (list(itertools.islice(stretches(seed, LoadPlan()), 200)) for seed in (1, 1, 2))
    assert first == again != other
    assert [what for what, _ in first[1::2]] == ["pause"] * 100 and {what for what, _ in first[::2]} == {"burn", "stream"}
    assert all(0.2 <= seconds <= 5.0 for _, seconds in first)


def test_the_load_ends_with_its_block() -> None:
    with background(0, LoadPlan(processes=2)):
        running = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True)
        before = len(running.stdout.split())
    left = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True)
    assert before - len(left.stdout.split()) == 2


def test_the_load_ends_when_its_input_is_closed() -> None:
    command = [sys.executable, "-P", "-m", "frostline.harness.trials.load", "3", "0.2", "0.4"]
    assert subprocess.run(command, input=b"", timeout=60, check=False).returncode == 0


def test_every_revision_does_its_share_more(tmp_path: Path) -> None:
    repository = PlantedRepository.make(tmp_path / "planted")
    sources = {tag: repository.source(tag) for tag in ("base", *map(tag_of, CHANGES))}
    assert len(set(map(len, sources.values()))) == len(sources)  # no bytecode of one is taken for another's
    for change in CHANGES:
        assert f"\nEXTRA = {change}\n" in sources[tag_of(change)]
    commits = repository.git("rev-parse", *sources)
    assert PlantedRepository.make(tmp_path / "planted").git("rev-parse", *sources) == commits
    assert PlantedRepository.make(tmp_path / "again").git("rev-parse", *sources) == commits


def test_a_calibration_sees_twice_the_work() -> None:
    def work(times: int) -> int:
        return sum(range(20_000 * times))

    ratio, step_ns = ratio_of(lambda: work(1), lambda: work(2), 0.2)
    assert 1.6 < ratio < 2.5 and step_ns > 0


def test_a_command_that_fails_says_its_last_lines(tmp_path: Path) -> None:
    shell = Shell(PlantedRepository(tmp_path))
    with pytest.raises(ToolFailed, match="exit code 3:\nlast words"):
        shell.run(["python", "-c", "print('last words'); raise SystemExit(3)"])
    assert shell.run(["python", "-c", "raise SystemExit(3)"], codes=(3,)).code == 3


def test_what_cannot_be_is_said_before_anything_runs(tmp_path: Path) -> None:
    for arguments, said in (
        (["--form", "huge"], "--form: got 'huge'"),
        (["--only", "fork,hyperfine"], "--only: got hyperfine"),
    ):
        command = [sys.executable, "-P", "-m", "frostline.harness.trials", "--out", str(tmp_path / "t.jsonl"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and said in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(900)
def test_the_short_form_works_end_to_end(tmp_path: Path) -> None:
    """Every tool for real, once; then the page and the charts. What the tools say is left to them."""
    lines, page, images = tmp_path / "trials.jsonl", tmp_path / "page.md", tmp_path / "images"
    page.write_text(f"# Before\n\n{BEGIN}\n{END}\n\nafter\n")

    def run(module: str, *arguments: object) -> str:
        command = [sys.executable, "-P", "-m", f"frostline.{module}", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("harness.trials", "--form", "short", "--out", lines)
    kept = Trials.load(lines)
    told = {(one.tool, one.setting): one.outcome for one in kept.trials}
    assert {tool for tool, _ in told} == {"frostline", "asv", "pyperf", "pytest-benchmark"}
    assert set(told.values()) <= {"faster", "slower", "same", "inconclusive", "unchanged"}
    in_turn = [one for one in kept.trials if one.setting == "fork, in turn"]
    assert len(in_turn) == 1 and len(in_turn[0].log_ratios) >= 6
    size = lines.stat().st_size
    again = run("harness.trials", "--form", "short", "--out", lines)
    assert "calibrating" not in again and len(Trials.load(lines).trials) == len(kept.trials) and lines.stat().st_size > size
    run("results.trials_report", lines, page)
    assert "| frostline, fork, in blocks |" in page.read_text() and page.read_text().endswith("after\n")
    run("dashboards.trials", lines, images)
    assert {path.name for path in images.iterdir()} == {"method-found.png", "method-time.png"}
