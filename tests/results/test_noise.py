"""A self-comparison is judged by its rounds, and the newest one that was decided marks or clears the machine's reports."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from frostline.results.evidence import Evidence
from frostline.results.gate import decide
from frostline.results.gate_report import gate_markdown
from frostline.results.judge import judge_session
from frostline.results.noise import DETAIL, latest_self_comparison, load_self_comparison, noise_of_a_round
from frostline.results.noise_report import noise_table
from frostline.results.policy import Policy
from frostline.results.record import Case, Machine, Outcome, Role
from frostline.results.report import bench_table, markdown_comparison, verdict_table
from frostline.results.simulate import noisy_rate
from frostline.results.store import Store

CALM = [0.004, -0.003, 0.002, -0.005, 0.001, 0.003, -0.002, 0.0]
WILD = [20 * one for one in CALM]
SLOWER = [0.08 + one for one in CALM]


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "f.db") as opened:
        yield opened


@pytest.fixture
def add(store, make_world):
    """Store a session with these log ratios: a self-comparison, or an ordinary comparison. Returns the session."""

    def stored(log_ratios, day, *, own=True, device="cpu", machine=None, concluded=True):
        world = make_world(("step", "step"), **({"machine": machine} if machine else {}))
        world.cases[0] = Case("noise", "v1", {"step": "matmul"})
        moved = {"created_at": f"2026-01-{day:02}T00:00:00+00:00", "device": device}
        world.session = replace(world.session, **moved, detail={DETAIL: True} if own else {})
        for number, log_ratio in enumerate(log_ratios):
            for position in range(2):
                world.process(position, number, times=[1e6 * math.exp(position * log_ratio)] * 8)
            world.ratio(1, number, log_ratio)
        store.add_session(world.session, world.machine, world.sides, world.cases)
        store.add_processes(world.processes, world.ratios)
        if concluded:
            store.add_verdicts(judge_session(Evidence.load(store, world.session.id)))
        return world.session

    return stored


def everything_said(store, session):
    evidence, verdicts = Evidence.load(store, session.id), store.verdicts(session.id)
    yield bench_table(evidence, verdicts).text()
    yield verdict_table(evidence, verdicts).text()
    yield markdown_comparison(evidence, verdicts)
    yield gate_markdown(decide(verdicts, Policy(), evidence.cases), [evidence])


def test_noise_is_the_standard_deviation_of_normal_rounds_and_ignores_one_wild_one():
    rounds = [0.02 * z for z in (-1.534, -0.887, -0.489, -0.157, 0.157, 0.489, 0.887, 1.534)]
    assert noise_of_a_round(rounds) == pytest.approx(0.02, rel=0.05)
    assert noise_of_a_round([*rounds[:-1], 5.0]) == pytest.approx(0.02, rel=0.05)
    assert math.isnan(noise_of_a_round([]))


def test_a_calm_machine_passes_and_a_loud_one_fails_as_simulated():
    assert noisy_rate(0.02, trials=200) == 0.0
    assert noisy_rate(0.03, trials=200) < 0.08
    assert noisy_rate(0.08, trials=200) > 0.8


def test_a_noisy_machine_is_marked_in_every_report_until_a_calmer_self_comparison(store, add):
    run = add(CALM, 1, own=False)
    assert all("noisy" not in text for text in everything_said(store, run)), "nothing is known of the machine"
    add(WILD, 2)
    marked = list(everything_said(store, run))
    for text in marked:
        assert "machine is noisy: the A/A of 2026-01-02 found noise of a round of" in text, text
        assert "in matmul, where 4.9 % is allowed; see frostline doctor" in text
    add(CALM, 3)
    assert all("noisy" not in text for text in everything_said(store, run))


def test_a_step_that_is_slower_than_itself_fails_whatever_its_noise(store, add):
    found = load_self_comparison(store, add(SLOWER, 1))
    assert found.noisy and not found.steps[0].too_loud
    assert "matmul slower than itself (+8.3 %)" in found.mark
    assert found.conclusion.startswith("Noisy: matmul slower than itself")


def test_one_that_decided_nothing_neither_marks_nor_clears(store, add):
    add(WILD, 1)
    machine = add(CALM[:3], 2).machine_id
    add(CALM, 3, concluded=False)
    newest = latest_self_comparison(store, machine, "cpu")
    assert newest is not None and newest.noisy and newest.session.created_at.startswith("2026-01-01")
    assert not load_self_comparison(store, store.sessions()[1]).decided
    assert "Nothing can be said" in load_self_comparison(store, store.sessions()[1]).conclusion


def test_only_the_same_machine_on_the_same_kind_of_device_is_marked(store, add):
    add(WILD, 1, device="cuda:1")
    assert "noisy" not in "".join(everything_said(store, add(CALM, 2, own=False)))
    assert "noisy" in "".join(everything_said(store, add(CALM, 3, own=False, device="cuda")))
    other = add(CALM, 4, own=False, device="cuda", machine=Machine({"cpu": "Other"}))
    assert "noisy" not in "".join(everything_said(store, other))


def test_what_the_cost_model_says_is_not_marked(store, add, make_world):
    add(WILD, 1)
    world = make_world()
    world.process(0, -1, role=Role.PREDICT, measurements={"flops": 1.0})
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes)
    noise = latest_self_comparison(store, world.machine.id, "cpu")
    assert noise is not None and replace(evidence, noise=noise).noise_mark == ""


def test_the_table_says_what_can_be_told(store, add):
    session = add(CALM, 1)
    found = load_self_comparison(store, session)
    table = noise_table(found, store.machine(session.machine_id))
    assert [cell[0] for cell in table.rows[0]] == ["matmul", "1.000 [0.996, 1.004]", "8", "same", "0.37 %", "3.2 %", "3.1 %"]
    assert table.notes[-1].startswith("Passed: every step is the same as itself within 3 %")
    unjudged = add(CALM[:2], 2)
    row = noise_table(load_self_comparison(store, unjudged), store.machine(unjudged.machine_id)).rows[0]
    assert [cell[0] for cell in row] == ["matmul", "-", "2", Outcome.INCONCLUSIVE, "-", "-", "-"]
