"""`frostline chart crossover`: what is measured and predicted for it, what is taken from the store, and what it says."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from frostline.harness.cli import app
from frostline.harness.commands import predict
from frostline.harness.crossover import Wanted, sessions_to_draw
from frostline.harness.describe import Request, plan_run
from frostline.harness.progress import Progress
from frostline.results.record import Role, UsageError
from frostline.results.store import Store

SUITE = """
import time
from frostline.harness import Preset, Step, suite

small = Preset({"seq_len": [1, 8]}, rounds=1)

@suite(
    axes={"seq_len": [1], "lm_head": ["frozen", "trainable"]},
    implementations=["other", "torch", "mine"],
    presets={"crossover": small, "crossover_small": small, "long": Preset({"seq_len": [9]})},
)
def naps(implementation, device, *, seq_len, lm_head):
    nap = {"other": 0.003, "torch": 0.001 * seq_len, "mine": 0.004}[implementation]
    return Step(run=lambda: time.sleep(nap))
"""

TORCH_SUITE = """
import torch
from frostline.harness import Preset, Step, suite

@suite(
    axes={"seq_len": [66], "lm_head": ["frozen"]},
    implementations=["other", "torch", "mine"],
    presets={"crossover": Preset({"seq_len": [66, 70]}, rounds=1)},
)
def buffers(implementation, device, *, seq_len, lm_head):
    size = {"other": 1, "torch": seq_len * 1000, "mine": 68_500}[implementation]
    return Step(run=lambda: torch.empty(size, device=device).zero_())
"""


@pytest.fixture
def naps(tmp_path: Path) -> str:
    file = tmp_path / "naps.py"
    file.write_text(SUITE)
    return str(file)


def test_times_are_measured_once_and_drawn_again_from_the_store(frostline, naps, tmp_path):
    db = tmp_path / "naps.db"
    chart = ["chart", "crossover", naps, "--metric", "step_time", "--set", "lm_head=frozen", "--db", db, "--out", tmp_path]
    refused = frostline(*chart, "--no-fill")
    assert refused.returncode == 2 and "--db: no database" in refused.stderr
    done = frostline(*chart)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said == [
        "lm_head frozen (measured): other is faster than torch from 1–8 on",
        "lm_head frozen (measured): mine is faster than torch from 1–8 on",
        f"Chart: {tmp_path / 'crossover-time.png'}",
    ]
    again = frostline(*chart, "--no-fill", "--implementations", "other,mine")  # the session has one side more: it serves
    assert again.stdout.splitlines()[0] == "lm_head frozen (measured): mine is slower than other at every seq_len measured"
    other = frostline(*chart, "--no-fill", "--preset", "long")
    assert other.returncode == 2 and "nothing stored for the preset long; frostline run" in other.stderr
    with Store.open(db, create=False) as store:
        (session,) = store.sessions()
        assert not store.processes(session.id, role=Role.PREDICT), "times need no prediction"
    stored = frostline("chart", "crossover", "--session", session.id, "--db", db, "--out", tmp_path)
    assert stored.stdout == done.stdout, "a session by its id needs no suite, and what it has no figures of is not drawn"


def test_a_stored_session_is_drawn_as_asked_or_refused(frostline, naps, tmp_path):
    db, out = tmp_path / "naps.db", tmp_path / "out"
    assert (
        frostline("run", naps, "--preset", "crossover", "--set", "lm_head=frozen", "--device", "cpu", "--db", db).returncode
        == 0
    )
    with Store.open(db, create=False) as store:
        (session,) = store.sessions()
    chart = ["chart", "crossover", "--session", session.id, "--metric", "step_time", "--db", db, "--out", out]
    for arguments, said in (
        (["nonsense"], "SUITE: no suite 'nonsense'"),
        (["grpo"], f"--session: {session.id} is of naps, expected one of grpo"),
        (["--preset", "unknown"], "--preset: with --session what is stored is drawn"),
        (["--fill"], "--fill: with --session what is stored is drawn"),
        (["--set", "lm_head=frozen,thawed"], f"--set: session {session.id} has no case with lm_head=thawed; it has frozen"),
        (["--set", "vocab=5"], f"--set: session {session.id} has no axis 'vocab'"),
    ):
        with pytest.raises(UsageError) as refused:
            app([*map(str, chart), *arguments], standalone_mode=False)
        assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not out.exists()
    with pytest.raises(UsageError, match="--out: expected a folder"):
        app(["chart", "crossover", naps, "--out", naps, "--db", str(tmp_path / "none.db")], standalone_mode=False)
    assert not (tmp_path / "none.db").exists(), "it is refused before anything is measured"
    done = frostline(*chart, naps, "--no-fill", "--set", "lm_head=frozen")
    assert done.returncode == 0 and (out / "crossover-time.png").is_file(), done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--metric", "flops"], "--metric: expected peak_allocated or step_time, got 'flops'"),
        (["--against", "eager"], "--against: no side 'eager'; drawn are other, torch, mine"),
        (["--implementations", "torhc"], "--implementations: naps has no 'torhc' (did you mean torch?)"),
        (["--set", "vocab=5"], "--set: naps has no axis 'vocab'"),
        (["--session", "0123"], "--db: no database"),
    ],
)
def test_a_mistake_is_one_clear_line_before_anything_is_measured(frostline, naps, tmp_path, arguments, said):
    done = frostline("chart", "crossover", naps, *arguments, "--db", tmp_path / "n.db", "--out", tmp_path)
    assert done.returncode == 2 and said in done.stderr
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["naps.py"], "neither a picture nor a database"


def test_predictions_close_in_on_a_crossing_in_a_session_that_has_more_sides(tmp_path):
    suite = tmp_path / "buffers.py"
    suite.write_text(TORCH_SUITE)
    request = Request(str(suite), "crossover", device="cuda")
    quiet = Progress(Console(file=io.StringIO()))
    some = replace(request, implementations=["torch", "mine"])
    with Store.open(tmp_path / "b.db") as store:
        session = predict(plan_run(request), store, quiet, "frostline cost").session
        ((evidence, role),) = sessions_to_draw(
            [Wanted(Role.PREDICT, some, plan_run(some))], None, store, quiet, "frostline chart", fill=True
        )
        predicted = store.processes(session.id)
        assert [one.id for one in store.sessions()] == [session.id], "the stored session serves"
    assert role is Role.PREDICT and [side.implementation for side in evidence.sides] == ["torch", "mine"]
    assert {case.params["seq_len"] for case in evidence.cases} == {66, 68, 70}, "68 was added: the lines cross above it"
    peaks = {(item.case_id, item.position): item.measurements["peak_allocated"] for item in predicted}
    for case in evidence.cases:
        assert peaks[case.id, 0] < peaks[case.id, 1], "each figure is at the position that its side has in the session"
        assert peaks[case.id, 1] == pytest.approx(4000 * case.params["seq_len"], rel=0.002)
        assert peaks[case.id, 2] == pytest.approx(4 * 68_500, rel=0.002)


def test_predicted_alone_measures_nothing(frostline, tmp_path):
    file, db = tmp_path / "buffers.py", tmp_path / "b.db"
    file.write_text(TORCH_SUITE)
    done = frostline("chart", "crossover", file, "--predicted", "--db", db, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Chart: " in done.stdout and "step_time" not in done.stdout
    with Store.open(db, create=False) as store:
        roles = {item.role for session in store.sessions() for item in store.processes(session.id)}
    assert roles == {Role.PREDICT}


def test_predicted_alone_has_no_times(frostline, naps, tmp_path):
    done = frostline("chart", "crossover", naps, "--predicted", "--metric", "step_time", "--db", tmp_path / "n.db")
    assert done.returncode == 2
    assert "--predicted: the cost model has no step_time" in done.stderr
