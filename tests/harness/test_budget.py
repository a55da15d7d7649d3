"""The time that a session may take: no round is begun that would not end in it, and what was measured is judged."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

import pytest
from rich.console import Console

from frostline.harness import session as sessions
from frostline.harness.budget import Budget, longest_rounds
from frostline.harness.describe import Request, plan_compare, plan_run
from frostline.harness.progress import Progress
from frostline.harness.side import Source
from frostline.results.evidence import Evidence
from frostline.results.flags import OUT_OF_TIME
from frostline.results.notes import notes
from frostline.results.record import Interleave, Outcome, ProcessRecord, Reason, Role, Status, UsageError
from frostline.results.store import Store

SUITE = """
import time
from frostline.harness import Step, suite

@suite(axes={"n": [1, 2]}, implementations=["one", "two"])
def toy(implementation, device, *, n):
    return Step(run=lambda: time.sleep(0.001), outputs=lambda: {"x": 1.0}, reference=lambda: {"x": 1.0})
"""


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def spend(self, budget: Budget, case: str, seconds: float) -> None:
        with budget.round(case):
            self.now += seconds


def test_without_a_limit_everything_is_allowed():
    clock = Clock()
    budget = Budget(None, clock=clock)
    clock.spend(budget, "a", 1e6)
    assert budget.allows_check("a") and budget.allows_round("a") and budget.cut == set()


def test_a_round_that_would_not_end_in_time_is_not_begun():
    clock = Clock()
    budget = Budget(10.0, clock=clock)
    assert budget.allows_round("a"), "of the first nothing is known"
    clock.spend(budget, "a", 3.0)
    assert budget.allows_round("a")
    clock.spend(budget, "a", 4.0)
    assert not budget.allows_round("a"), "3 s are left, and one took 4"
    assert budget.allows_check("a"), "a check may still begin"
    assert budget.cut == {"a"}


def test_a_shorter_case_may_still_be_in_time():
    clock = Clock()
    budget = Budget(10.0, clock=clock)
    clock.spend(budget, "long", 6.0)
    assert not budget.allows_round("long")
    assert not budget.allows_round("unknown"), "taken to last as long as the longest so far"
    clock.spend(budget, "short", 1.0)
    assert budget.allows_round("short")
    assert budget.cut == {"long", "unknown"}


def test_time_that_is_used_up_allows_nothing():
    clock = Clock()
    budget = Budget(5.0, clock=clock)
    clock.now += 5.0
    assert not budget.allows_check("a") and not budget.allows_round("b")
    assert budget.cut == {"a", "b"}


def test_a_round_that_ends_in_an_error_leaves_no_time():
    clock = Clock()
    budget = Budget(10.0, clock=clock)
    with pytest.raises(KeyboardInterrupt), budget.round("a"):
        clock.now += 9.0
        raise KeyboardInterrupt
    assert budget.allows_round("a")


def test_recorded_rounds_count_as_those_of_now():
    budget = Budget(10.0, {"a": 11.0, "b": 2.0}, clock=Clock())
    assert not budget.allows_round("a") and budget.allows_round("b")
    assert not budget.allows_round("c"), "taken to last as long as the longest of any case"


def test_how_long_recorded_rounds_took():
    """Sides whose blocks alternate live at the same time; those that take turns, and a second try, one after the other."""

    def one(case, number, position, seconds, **fields):
        return ProcessRecord("", "", position, case, Role.MEASURE, number, Status.OK, seconds=seconds, **fields)

    beside = [one("a", 0, 0, 3.0), one("a", 0, 1, 4.0), one("a", 1, 0, 1.0), one("a", 1, 1, 1.0)]
    again = [one("b", 0, 0, 2.0), one("b", 0, 1, 1.0, counted=False), one("b", 0, 1, 5.0, attempt=1)]
    in_turn = [one("c", 0, at, 2.0, interleave=Interleave.PROCESS) for at in (0, 1)]
    check = replace(one("d", -1, 0, 60.0), role=Role.VERIFY)
    assert longest_rounds([*beside, *again, *in_turn, check]) == {"a": 4.0, "b": 7.0, "c": 4.0}


class Timed:
    """A session whose rounds take as many seconds of a clock as a test says: no time passes but in rounds."""

    def __init__(self, folder, monkeypatch, seconds, budget_s, **fields) -> None:
        file = folder / "bench.py"
        file.write_text(SUITE)
        self.clock, self.seconds = Clock(), itertools.cycle(seconds)
        real = sessions.measure_round

        def measure_round(*arguments):
            runs = real(*arguments)
            self.clock.now += next(self.seconds)
            return runs

        monkeypatch.setattr("frostline.harness.plan.ROUND_NS", 2e7)
        monkeypatch.setattr("frostline.harness.plan.CYCLES_AT_LEAST", 1)
        monkeypatch.setattr(sessions, "measure_round", measure_round)
        monkeypatch.setattr(sessions, "Budget", lambda limit, recorded: Budget(limit, recorded, clock=self.clock))
        self.store = Store.open(folder / "test.db")
        self.plan = plan_run(Request(str(file), budget_s=budget_s, threads=1, **fields))
        self.session = sessions.open_session(self.plan, self.store, "test", {})
        self.said = io.StringIO()

    def go(self, plan=None):
        progress = Progress(Console(file=self.said, width=200))
        self.verdicts = sessions.measure(plan or self.plan, self.store, self.session, progress)
        return self

    @property
    def rounds(self) -> list[int]:
        """How many rounds each case had."""
        done = self.store.processes(self.session.id, role=Role.MEASURE)
        return [len({one.round for one in done if one.case_id == case.id}) for case in self.plan.cases]

    @property
    def notes(self) -> list[str]:
        verdicts = self.store.verdicts(self.session.id)
        return [line for line in notes(Evidence.load(self.store, self.session.id), verdicts) if "time ended it" in line]

    def flagged(self) -> set[str]:
        return {one.case_id for one in self.store.verdicts(self.session.id) if OUT_OF_TIME in one.flags}


@pytest.fixture
def timed(tmp_path, monkeypatch):
    return lambda seconds, budget_s, **fields: Timed(tmp_path, monkeypatch, seconds, budget_s, **fields)


def test_the_time_ends_a_session_and_what_is_there_is_judged_and_said(timed):
    one = timed([10.0], 75.0, rounds=4).go()
    assert one.rounds == [4, 3], "seven rounds of ten seconds"
    first, second = one.plan.cases
    assert one.flagged() == {second.id}
    judged = {verdict.case_id: verdict for verdict in one.verdicts if verdict.metric == "step_time"}
    assert (judged[first.id].rounds, judged[second.id].rounds) == (4, 3)
    assert judged[second.id].reason is Reason.TOO_FEW_ROUNDS
    assert one.notes == ["the time ended it: 1 of 2 cases have fewer rounds than planned"]
    assert "the time is used up: 1 of 2 cases have fewer rounds than planned" in one.said.getvalue()


def test_a_session_that_ends_in_time_says_nothing_of_it(timed):
    one = timed([10.0], 80.0, rounds=4).go()
    assert one.rounds == [4, 4]
    assert (one.flagged(), one.notes) == (set(), [])


def test_a_case_without_a_round_was_not_measured(timed):
    one = timed([10.0], 15.0, rounds=4).go()
    assert one.rounds == [1, 0]
    second = one.plan.cases[1]
    assert {verdict.reason for verdict in one.verdicts if verdict.case_id == second.id} == {Reason.NOT_MEASURED}
    assert one.notes == ["the time ended it: 2 of 2 cases have fewer rounds than planned, 1 of them none"]


def test_time_used_up_before_the_checks_measures_nothing(timed):
    one = timed([10.0], 0.0, rounds=4).go()
    assert one.store.processes(one.session.id) == []
    assert {verdict.outcome for verdict in one.verdicts} == {Outcome.INCONCLUSIVE}
    assert one.flagged() == {case.id for case in one.plan.cases}


def test_what_ran_out_of_time_is_finished_later_and_then_says_nothing_of_it(timed):
    one = timed([10.0], 45.0, rounds=4).go()
    assert one.rounds == [2, 2]
    before = {item.id for item in one.store.processes(one.session.id)}
    one.go(plan=replace(one.plan, budget_s=None))
    assert one.rounds == [4, 4]
    assert before < {item.id for item in one.store.processes(one.session.id)}, "nothing recorded is lost"
    assert (one.flagged(), one.notes) == (set(), [])


def test_looks_follow_each_other_up_to_the_most_rounds(timed):
    one = timed([1.0], None, rounds=2, max_rounds=5, settings=["n=1"])
    one.go()
    assert one.rounds == [5], "of two rounds nothing is concluded, so all looks are taken"
    assert "inconclusive after 2 rounds in 1 of 1 cases: on to 4" in one.said.getvalue()
    assert "inconclusive after 4 rounds in 1 of 1 cases: on to 5" in one.said.getvalue()


def test_time_may_end_a_later_look(timed):
    one = timed([1.0], 3.5, rounds=2, max_rounds=6, settings=["n=1"]).go()
    assert one.rounds == [3]
    assert one.flagged() == {one.plan.cases[0].id}


class TestPlans:
    @pytest.fixture
    def bench(self, tmp_path):
        file = tmp_path / "bench.py"
        file.write_text(SUITE)
        return str(file)

    def compared(self, bench, **fields):
        source = Source("installed", "installed", "0", None, ())
        return plan_compare(Request(bench, threads=1, **fields), lambda _: [source, source])

    @pytest.mark.parametrize(
        ("typed", "ends"),
        [
            ({}, (8, 16)),
            ({"rounds": 6}, (6, 12)),
            ({"max_rounds": 40}, (8, 16, 24, 32, 40)),
            ({"max_rounds": 12}, (8, 12)),
            ({"max_rounds": 8}, (8,)),
            ({"max_rounds": 6}, (6,)),
            ({"rounds": 10, "max_rounds": 25}, (10, 20, 25)),
        ],
    )
    def test_a_comparison_takes_two_looks_unless_the_most_rounds_say_otherwise(self, bench, typed, ends):
        assert self.compared(bench, **typed).looks.ends == ends

    @pytest.mark.parametrize(("typed", "ends"), [({"rounds": 6}, (6,)), ({"rounds": 6, "max_rounds": 18}, (6, 12, 18))])
    def test_a_run_takes_one(self, bench, typed, ends):
        assert plan_run(Request(bench, threads=1, **typed)).looks.ends == ends

    def test_the_most_are_not_fewer_than_those_of_a_look(self):
        with pytest.raises(UsageError, match="--max-rounds: got 4, wanted at least the 8 of --rounds"):
            Request("grpo", rounds=8, max_rounds=4)
        with pytest.raises(UsageError, match="--max-rounds: expected 1 to 10,000, got 0"):
            Request("grpo", max_rounds=0)
