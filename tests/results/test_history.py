"""A metric over commits: what is one line, in which order, and where it takes a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frostline.dashboards import theme
from frostline.dashboards.history import draw_history, history_picture
from frostline.results.evidence import Evidence
from frostline.results.history import LEAST, changes_of_times, lines_of
from frostline.results.history_report import history_table
from frostline.results.record import Machine


@pytest.fixture
def session_of(make_world):
    """A stored session of one commit: times in ms of its processes, its peak, and what else is said of it."""

    def make(commit, times, peak=100.0, dirty=False, in_session=False, **world):
        made = make_world(("torch", "pruned"), **world)
        detail = {"commit": commit, "subject": f"Subject of {commit}"} | ({"dirty": "x"} if dirty else {})
        sides = [replace(side, detail={} if in_session else detail, source_kind="installed") for side in made.sides]
        for position in (0, 1):
            for round_index, time in enumerate(times):
                made.process(position, round_index, times=[time * 1e6] * 3, measurements={"peak_allocated": peak})
        session = replace(made.session, detail=detail if in_session else {})
        return Evidence(session, made.machine, sides, made.cases, made.processes)

    return make


def test_a_step_is_told_with_its_commit(session_of):
    rng = np.random.default_rng(0)
    names = [f"c{number:02}" for number in range(20)]
    sessions = [
        session_of(name, rng.normal(10 if number < 12 else 11, 0.05, 3), peak=100 if number < 5 else 90)
        for number, name in enumerate(names)
    ]
    lines = {
        (line.implementation, line.metric.name): line
        for line in lines_of(sessions[::-1], ["step_time", "peak_allocated"], names)
    }
    (step,) = lines["pruned", "step_time"].steps
    assert step.commit == "c12" and step.ratio == pytest.approx(1.1, abs=0.01)
    (step,) = lines["torch", "peak_allocated"].steps
    assert (step.commit, step.before, step.after) == ("c05", 100.0, 90.0)
    assert [point.commit for point in lines["pruned", "step_time"].points] == names
    text = history_table("grpo", list(lines.values())).text()
    assert "c12 Subject of c12" in text and "+10." in text and "100 B to 90 B" in text


def test_few_commits_are_shown_without_steps_of_times_but_exact_ones_are_told(session_of):
    names = [f"c{number}" for number in range(LEAST - 1)]
    sessions = [session_of(name, [10 + 5 * (number > 3)], peak=50 + (number > 3)) for number, name in enumerate(names)]
    lines = {line.metric.name: line for line in lines_of(sessions, ["step_time", "peak_allocated"], names)}
    assert lines["step_time"].too_short and not lines["step_time"].steps
    assert [step.commit for step in lines["peak_allocated"].steps] == ["c4"]
    assert f"too few commits ({LEAST} are needed)" in history_table("grpo", [lines["step_time"]]).text()


def test_what_differs_otherwise_is_another_line(session_of):
    sessions = [
        session_of("a", [10]),
        session_of("b", [11], version="v2"),
        session_of("c", [12], machine=Machine({"cpu": "Other CPU"})),
        session_of("a", [14]),
        session_of("a", [20], dirty=True),
        session_of("d", [13], in_session=True),
    ]
    lines = [line for line in lines_of(sessions, ["step_time"], ["a", "d"]) if line.implementation == "pruned"]
    assert len(lines) == 3
    (usual,) = (line for line in lines if len(line.points) > 1)
    assert [(point.commit, point.value / 1e6, point.sessions, point.changed) for point in usual.points] == [
        ("a", 12.0, 2, False),  # the median of two sessions
        ("a", 20.0, 1, True),
        ("d", 13.0, 1, False),
    ]
    assert "not committed" in history_table("grpo", lines).text()


def test_what_knows_no_commit_and_what_failed_are_left_out(session_of):
    known = session_of("a", [10])
    unknown = replace(known, sides=[replace(side, detail={}) for side in known.sides])
    assert lines_of([unknown], ["step_time"]) == []
    failed = replace(known, processes=[replace(one, status=type(one.status).CRASH) for one in known.processes])
    assert lines_of([failed], ["step_time"]) == []


def test_noise_alone_seldom_takes_a_step():
    rng = np.random.default_rng(1)
    false = sum(bool(changes_of_times(np.exp(rng.normal(0, 0.02, 20)))) for _ in range(150))
    assert false <= 5  # 0.7 % were simulated


def test_equal_times_have_no_step_and_a_single_change_of_them_one():
    assert changes_of_times([5.0] * 20) == []
    assert changes_of_times([5.0] * 10 + [6.0] * 10) == [10]


def test_the_chart_marks_steps_and_says_them(session_of, tmp_path):
    names = [f"c{number:02}" for number in range(16)]
    sessions = [session_of(name, [10, 10.1], peak=2.0**30 * (1 + (number > 7))) for number, name in enumerate(names)]
    lines = lines_of(sessions, ["step_time", "peak_allocated"], names)
    with theme.applied():
        figure = draw_history("grpo", lines)
    assert [axes.get_ylabel() for axes in figure.axes] == ["step time (ms)", "peak allocated (GiB)"]
    picture = history_picture("grpo", lines, tmp_path)
    assert picture.path.is_file() and picture.sentences == [
        f"peak_allocated, {side}: +100.0% at c08 Subject of c08" for side in ("torch", "pruned")
    ]
