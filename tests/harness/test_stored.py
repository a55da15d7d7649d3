"""What is said of stored sessions that were interrupted, finished later, or never begun. Nothing is measured here."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from frostline.harness import commands
from frostline.harness import session as sessions
from frostline.harness.front.measure import report
from frostline.harness.plan import Plan
from frostline.harness.progress import Progress
from frostline.harness.side import Side, Source
from frostline.results.flags import OUT_OF_TIME
from frostline.results.listing import sessions_table
from frostline.results.record import Case, Interleave, Outcome, ProcessRecord, Role, RoundRatio, Status, UsageError, new_id
from frostline.results.store import Store

INSTALLED = Source("installed", "installed", "some code")


class Recorded:
    """A session whose processes are made up: a second side takes `ratio` times as long as the first."""

    def __init__(self, store: Store, rounds: int = 8, cases: int = 1, names: Sequence[str] = ("one", "two")) -> None:
        self.store = store
        sides = [Side(at, name, INSTALLED, at == 0) for at, name in enumerate(names)]
        found = [Case("toy", "v1", {"n": n}) for n in range(cases)]
        self.plan = Plan("bench.py::toy", found, sides, rounds, "cpu", 1)
        self.session = sessions.open_session(self.plan, store, "frostline run bench.py", {})

    def measure(self, rounds: range, ratio: float = 1.0, seconds: float = 1.0) -> None:
        """Store rounds of every case that have begun just now."""
        for number in rounds:
            for case in self.plan.cases:
                noise = 1e-4 * (number % 3)
                place = (self.session.id, case.id, number, "step_time", 1, 0)
                records = [
                    ProcessRecord(
                        new_id(), self.session.id, position, case.id, Role.MEASURE, number, Status.OK,
                        started_at=datetime.now(UTC).isoformat(), seconds=seconds,
                        measurements={"step_time": 1e6 * ratio**position},
                    )
                    for position in range(len(self.plan.sides))
                ]  # fmt: skip
                ratios = [RoundRatio(*place, math.log(ratio) + noise, 4, Interleave.BLOCK)]
                self.store.add_processes(records, ratios[: len(records) - 1])

    def check(self) -> None:
        """Store that every output was right."""
        for case in self.plan.cases:
            checks = [
                ProcessRecord(new_id(), self.session.id, at, case.id, Role.VERIFY, -1, Status.OK, started_at="2026-01-01")
                for at in (0, 1)
            ]
            self.store.add_processes(checks)

    def judge(self) -> None:
        """Store what is concluded so far, as the end of a command does."""
        self.store.add_verdicts(sessions.judge(self.plan, self.store, self.session))


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "test.db") as opened:
        yield opened


def shown(store, one):
    return [(verdict.outcome, verdict.rounds) for verdict in commands.verdicts_of(one.session, store)]


def test_what_was_measured_since_the_verdicts_is_judged(store):
    one = Recorded(store)
    one.measure(range(4))
    assert shown(store, one) == [(Outcome.INCONCLUSIVE, 4)]
    one.judge()
    assert shown(store, one) == [(Outcome.INCONCLUSIVE, 4)]
    one.measure(range(4, 7), ratio=2.0)  # finished later, and interrupted again
    assert shown(store, one) == [(Outcome.INCONCLUSIVE, 7)]
    one.measure(range(7, 8))
    one.judge()
    assert shown(store, one) == [(Outcome.INCONCLUSIVE, 8)]
    assert len(store.verdicts(one.session.id)) == 1


def test_verdicts_that_are_newer_than_what_was_measured_are_shown_as_they_were_given(store):
    one = Recorded(store)
    one.measure(range(8), ratio=2.0)
    one.judge()
    (given,) = store.verdicts(one.session.id)
    store.add_verdicts([replace(given, flags=("out of time",))])
    assert [verdict.flags for verdict in commands.verdicts_of(one.session, store)] == [("out of time",)]


@pytest.mark.parametrize(("budget_s", "begun"), [(50.0, False), (300.0, True)])
def test_what_rounds_took_before_is_known_when_they_go_on(store, monkeypatch, budget_s, begun):
    one = Recorded(store)
    one.check()
    one.measure(range(2), seconds=100.0)
    rounds = []
    monkeypatch.setattr(sessions, "_one_round", lambda *arguments: rounds.append(arguments[4]) or [])
    verdicts = sessions.measure(replace(one.plan, budget_s=budget_s), store, one.session, Progress(Console(file=io.StringIO())))
    assert bool(rounds) is begun
    assert all((OUT_OF_TIME in verdict.flags) is not begun for verdict in verdicts)


def listed(store):
    return [[" ".join(cell) for cell in row] for row in sessions_table(store).rows]


def test_stored_sessions_are_listed_the_newest_first_with_what_is_there_of_them(store, tmp_path):
    with pytest.raises(UsageError, match="holds no session yet"):
        sessions_table(store)
    begun = Recorded(store, cases=2)
    whole, cut, more = Recorded(store), Recorded(store), Recorded(store)
    for one, rounds in ((whole, 8), (cut, 5)):
        one.measure(range(rounds))
        one.judge()
    (verdict,) = store.verdicts(cut.session.id)
    store.add_verdicts([replace(verdict, flags=(OUT_OF_TIME,))])
    more.measure(range(3))
    sides = [side.record() for side in begun.plan.sides]
    predicted = replace(begun.session, id=new_id(), command="frostline 'chart' crossover", detail={"predicted": True})
    store.add_session(predicted, store.machine(begun.session.machine_id), sides, begun.plan.cases)
    rows = listed(store)
    assert [row[-1] for row in rows] == [
        "predicted", "3 of 8, not finished", "5, the time ended it", "8", "0 of 8, not finished",
    ]  # fmt: skip
    assert [row[2] for row in rows] == ["chart crossover", "run", "run", "run", "run"]
    assert rows[0][3:6] == ["toy", "one, two", "cpu"]
    for row, session in zip(rows, reversed(store.sessions()), strict=True):
        assert store.session(row[0]).id == session.id, "what is shown of an id names it"
    with pytest.raises(UsageError, match=r"no session 'none' in .*; the last one is .*, frostline report --list has all$"):
        store.session("none")


def test_a_side_without_others_is_finished_without_a_verdict(store):
    alone = Recorded(store, names=("one",), cases=2)
    alone.measure(range(8))
    assert listed(store)[0][-1] == "8"
    cut = Recorded(store, names=("one",))
    cut.measure(range(5))
    assert listed(store)[0][-1] == "5 of 8, not finished"
    failed = ProcessRecord(
        new_id(), cut.session.id, 0, cut.plan.cases[0].id, Role.MEASURE, 5, Status.CRASH, attempt=1,
        started_at=datetime.now(UTC).isoformat(),
    )  # fmt: skip
    store.add_processes([failed])
    assert listed(store)[0][-1] == "6"


def test_the_command_lists_them(store, capsys, tmp_path):
    Recorded(store)
    report(None, listed=True, db=store.path, markdown=tmp_path / "list.md")
    said = capsys.readouterr().out
    assert said.startswith(f"1 session in {store.path}") and "0 of 8, not finished" in said
    assert (tmp_path / "list.md").read_text().startswith("**1 session in")
    with pytest.raises(UsageError, match="--list names every session; leave SESSION out"):
        report("last", listed=True, db=store.path)


@pytest.mark.parametrize(
    ("rounds", "most", "warned"),
    [
        (2, 2, "at most 2 rounds: fewer than 6 tell nothing of times, and all will be inconclusive; "),
        (1, None, "at most 1 round: fewer than 6 tell nothing of times, and all will be inconclusive; "),
        (3, 6, ""),
        (6, None, ""),
    ],
)
def test_too_few_rounds_to_tell_anything_are_said_before_they_are_taken(store, monkeypatch, rounds, most, warned):
    one = Recorded(store)
    one.measure(range(1))
    said = io.StringIO()
    plan = replace(one.plan, rounds=rounds, max_rounds=most)
    monkeypatch.setattr(sessions, "measure", lambda *_: said.write("measuring\n") and [])
    commands._finish(plan, one.session, store, Progress(Console(file=said, width=200)))
    more = "more are asked for with --rounds or --max-rounds"
    assert said.getvalue().splitlines() == [*([warned + more] if warned else []), "measuring"]


@pytest.mark.parametrize("names", [("one", "one"), ("one", "two")])
def test_markdown_may_be_all_that_is_on_the_screen(store, capsys, tmp_path, names):
    """So that it can be handed on; of a comparison it has the verdicts, and every figure folded away."""
    one = Recorded(store, names=names)
    one.measure(range(8), ratio=2.0)
    one.judge()
    report("last", db=store.path, markdown=tmp_path / "page.md")
    plain, page = capsys.readouterr(), (tmp_path / "page.md").read_text()
    compared = names == ("one", "one")
    assert ("<details>" in page) is compared
    assert ("saves" not in plain.out) is compared, "a comparison's figures are read once"
    assert plain.out.count("2.000 ± ") == (1 if compared else 2)
    assert plain.out.count("2.000 [") == 1 and "over 8 rounds" in plain.out.lower() and "+100" not in plain.out
    report("last", db=store.path, markdown=Path("-"))
    alone = capsys.readouterr()
    assert alone.out == page and "Kept in" in alone.err and "Kept in" in plain.out
