"""Counting trials: intervals against scipy, the bars, and the file that they are kept in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import binomtest

from frostline.results.record import UsageError
from frostline.results.trials import (
    Calibration,
    Mark,
    SetUp,
    Trial,
    Trials,
    as_line,
    by_rounds,
    marks,
    pick,
    settings_of,
    share,
)
from frostline.results.trials_report import BEGIN, END, measured_part, splice

OURS = Trial("frostline", "fork, in blocks", "calm", 0, 0, "gemm", "same", 1.001, 9.0, (0.001, -0.002) * 4)
ASV = replace(OURS, tool="asv", setting="factor 1.1", outcome="unchanged", seconds=12.0, log_ratios=())
SET_UP = SetUp("a machine", {"numpy": "2.0", "load": "1 process"}, "0123456789abcdef", "2026-01-01T00:00:00+00:00")


def several(one: Trial, outcomes: dict[str, int], **fields: object) -> list[Trial]:
    """So many trials of each outcome."""
    listed = [outcome for outcome, count in outcomes.items() for _ in range(count)]
    return [replace(one, outcome=outcome, turn=turn, **fields) for turn, outcome in enumerate(listed)]  # type: ignore[arg-type]  # fields of a Trial by name


def mark_of(found: list[Mark], words: str) -> Mark:
    (mark,) = [mark for mark in found if words in mark.asks]
    return mark


@pytest.mark.parametrize(("count", "of"), [(0, 200), (1, 200), (2, 7), (6, 7), (12, 12)])
def test_the_interval_is_clopper_and_pearsons(count: int, of: int) -> None:
    found, exact = share(count, of), binomtest(count, of).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


def test_of_nothing_everything_is_possible() -> None:
    assert (share(0, 0).low, share(0, 0).high) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("false", "word", "shown"), [(0, "holds", True), (4, "holds", False), (5, "missed", False), (20, "missed", True)]
)
def test_false_verdicts_at_most_one_in_a_hundred(false: int, word: str, shown: bool) -> None:
    trials = several(OURS, {"faster": false // 2, "slower": false - false // 2, "same": 400 - false})
    mark = mark_of(marks(trials), "at most 1 %")
    assert (mark.word, mark.shown) == (word, shown)


def test_inconclusive_is_not_found() -> None:
    trials = several(OURS, {"slower": 89, "inconclusive": 11}, change=5) + several(OURS, {"slower": 98, "same": 2}, change=10)
    found = marks(trials)
    assert mark_of(found, "5 % slowdown found: at least 90 %").word == "missed"
    assert mark_of(found, "10 % slowdown found: at least 98 %").word == "holds"


def test_same_is_asked_of_the_calm_machine_alone() -> None:
    trials = several(OURS, {"same": 5, "inconclusive": 5}) + several(OURS, {"inconclusive": 90}, load="noisy")
    assert mark_of(marks(trials), "same reached").word == "holds"


@pytest.mark.parametrize(("theirs", "word"), [(1, "holds"), (0, "missed")])
def test_fewer_alarms_means_fewer(theirs: int, word: str) -> None:
    trials = several(OURS, {"same": 10}) + several(ASV, {"slower": theirs, "unchanged": 10 - theirs})
    assert mark_of(marks(trials), "than asv (factor 1.1)").word == word


def test_only_a_tool_that_finds_five_percent_sets_the_time() -> None:
    own = several(OURS, {"slower": 10}, change=5)
    blind = several(ASV, {"unchanged": 10}, change=5, seconds=1.0)
    assert mark_of(marks(own + blind), "no more time").word == "holds"
    sharp = several(ASV, {"slower": 10}, change=5, setting="factor 1.03", seconds=8.0)
    mark = mark_of(marks(own + blind + sharp), "no more time")
    assert mark.word == "missed" and "factor 1.03" in mark.figure


def test_the_first_rounds_alone() -> None:
    """Six rounds of +6 % and then ten of none: found by the first six."""
    trial = replace(OURS, change=5, log_ratios=(0.058, 0.059, 0.060, 0.059, 0.058, 0.060, *[0.0] * 10), seconds=16.0)
    six, sixteen = by_rounds([OURS, trial], (6, 16))
    assert (six.found[5].count, sixteen.found[5].count) == (1, 0)
    assert (six.false.count, six.same.count, six.false.of) == (0, 1, 1)


def test_a_file_that_was_cut_off_loses_its_last_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    file.write_text(as_line(SET_UP) + as_line(Calibration("gemm", 5, 1.05, 1e6)) + as_line(OURS) + as_line(ASV)[:40])
    kept = Trials.load(file)
    assert (len(kept.set_ups), len(kept.calibrations), len(kept.trials)) == (1, 1, 1)
    assert replace(kept.trials[0], log_ratios=tuple(kept.trials[0].log_ratios)) == OURS


def test_trials_of_two_machines_are_not_counted_together(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    file.write_text(as_line(SET_UP) + as_line(replace(SET_UP, machine="another")))
    with pytest.raises(UsageError, match="different machines"):
        Trials.load(file)


def test_a_line_that_is_no_trial_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    file.write_text(as_line(SET_UP) + '{"kind": "trial"}\n')
    with pytest.raises(UsageError, match="line 2 is no trial"):
        Trials.load(file)


def test_ours_come_first_and_commands_are_counted() -> None:
    trials = [ASV, OURS, replace(OURS, step="norm"), replace(OURS, turn=1)]
    assert settings_of(trials) == [("frostline", "fork, in blocks"), ("asv", "factor 1.1")]
    assert pick(trials, "frostline").commands == 2


def test_the_page_keeps_what_is_around_the_markers() -> None:
    kept = Trials([SET_UP], [Calibration("gemm", 5, 1.05, 1e6)], [OURS, ASV])
    page = splice(f"before\n{BEGIN}\nformer\n{END}\nafter\n", measured_part(kept))
    assert page.startswith("before\n") and page.endswith("\nafter\n") and "former" not in page
    assert splice(page, measured_part(kept)) == page
    assert "| frostline, fork, in blocks | – | 0.0 % of 1 [0.0, 97.5] |" in page
    for broken in ("no markers", f"{END}\n{BEGIN}", f"{BEGIN}{BEGIN}{END}"):
        with pytest.raises(UsageError, match="needs the lines"):
            splice(broken, "part")
