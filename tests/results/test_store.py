"""The store keeps what it is given, whole, under several writers and under a kill, and refuses what it must."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sqlite_utils

from frostline.results.record import (
    Case,
    Kind,
    Metric,
    Outcome,
    Reason,
    Role,
    Status,
    UsageError,
    Verdict,
    Verification,
)
from frostline.results.schema import TABLES, document, migrations
from frostline.results.store import Store


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "frostline.db"


def fill(store, world):
    store.add_session(world.session, world.machine, world.sides, world.cases)
    store.add_processes(world.processes, world.ratios)


def verdict(world, outcome=Outcome.SAME, **given):
    made = Verdict(
        world.session.id, world.cases[0].id, "step_time", 1, 0, outcome, Reason.INTERVAL_WITHIN_DELTA,
        "Same.", 1.0, 0.99, 1.01, 0.03, 8, math.nan, ("drift",),
    )  # fmt: skip
    return replace(made, **given)


def test_everything_comes_back_as_it_went_in(path, make_world, module):
    world = make_world(vocabularies=[4096, 128_256])
    record = world.process(
        0,
        times=[3.0, 1.0, 2.0],
        modules=(module,),
        verifications=(Verification("loss", math.nan, math.inf, 1e-5),),
        telemetry={"before": {"clock_sm_mhz": 1980.0}},
        environment={"threads": 1},
        stderr="a warning",
        reason="",
        seconds=1.5,
    )
    world.ratio(1, 0, -0.5)
    with Store.open(path) as store:
        fill(store, world)
    with Store.open(path, create=False) as store:
        assert store.session("last") == world.session
        assert store.session(world.session.id[:30]) == world.session
        assert store.machine(world.session.machine_id) == world.machine
        assert store.sides(world.session.id) == world.sides
        assert store.cases(world.session.id) == world.cases
        assert [list(case.params) for case in store.cases(world.session.id)] == [["vocab", "lm_head", "dtype"]] * 2
        assert store.samples(record.id) == list(record.samples)
        assert store.ratios(world.session.id) == world.ratios
        (read,) = store.processes(world.session.id)
        assert math.isnan(read.verifications[0].relative)
        assert not read.verifications[0].ok
        assert replace(read, verifications=()) == replace(record, samples=(), verifications=())
        assert read.code_id == record.code_id != ""


def test_processes_can_be_chosen_by_role(path, make_world):
    world = make_world()
    world.process(0)
    world.verify(0, 1e-6, 1e-5)
    with Store.open(path) as store:
        fill(store, world)
        assert [record.role for record in store.processes(world.session.id, role=Role.VERIFY)] == [Role.VERIFY]
        assert len(store.processes(world.session.id)) == 2


def test_one_transaction_for_all_or_nothing(path, make_world):
    world = make_world()
    good = world.process(0, times=[1.0])
    bad = replace(world.process(1, times=[1.0]), measurements={"no_such_metric": 1.0})
    with Store.open(path) as store:
        store.add_session(world.session, world.machine, world.sides, world.cases)
        with pytest.raises(sqlite3.IntegrityError):
            store.add_processes([good, bad])
        assert store.processes(world.session.id) == []
        assert store.samples(good.id) == []
        store.add_metrics([Metric("no_such_metric", "1", Kind.EXACT, "a suite's own")])
        store.add_processes([good, bad])
        assert len(store.processes(world.session.id)) == 2
        assert store.metrics()["no_such_metric"].kind is Kind.EXACT


def test_foreign_keys_hold(path, make_world):
    world, stranger = make_world(), make_world()
    with Store.open(path) as store:
        fill(store, world)
        with pytest.raises(sqlite3.IntegrityError):
            store.add_processes([stranger.process(0)])
        with pytest.raises(sqlite3.IntegrityError):
            store.add_processes([replace(world.process(0), position=7)])


@pytest.mark.parametrize("table", sorted(TABLES))
def test_nothing_recorded_can_be_changed(path, make_world, module, table):
    world = make_world()
    world.process(0, times=[1.0], modules=(module,), verifications=(Verification("loss", 0.0, 0.0, 1.0),))
    world.ratio(1, 0, 0.1)
    with Store.open(path) as store:
        fill(store, world)
        store.add_verdicts([verdict(world)])
    db = sqlite3.connect(path)
    assert db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] > 0
    column = next(iter(TABLES[table][1]))
    with pytest.raises(sqlite3.IntegrityError, match="never changed"):
        db.execute(f"DELETE FROM {table}")
    with pytest.raises(sqlite3.IntegrityError, match="never changed"):
        db.execute(f"UPDATE {table} SET {column} = {column}")


def test_a_later_verdict_counts_and_the_earlier_stays(path, make_world):
    world = make_world()
    with Store.open(path) as store:
        fill(store, world)
        store.add_verdicts([verdict(world, Outcome.INCONCLUSIVE), verdict(world, Outcome.LESS, role=Role.PREDICT)])
        store.add_verdicts([verdict(world, Outcome.SLOWER, effect=math.nan)])
        latest = {one.role: one for one in store.verdicts(world.session.id)}
        assert (latest[Role.MEASURE].outcome, latest[Role.PREDICT].outcome) == (Outcome.SLOWER, Outcome.LESS)
        assert math.isnan(latest[Role.MEASURE].effect)
        assert latest[Role.PREDICT].flags == ("drift",)
    assert sqlite3.connect(path).execute("SELECT COUNT(*) FROM verdict").fetchone() == (3,)


def test_session_references(path, make_world):
    with Store.open(path) as store:
        with pytest.raises(UsageError, match="no session yet"):
            store.session()
        first, second = make_world(), make_world(created_at="2026-01-02T00:00:00+00:00")
        fill(store, second)
        fill(store, first)
        assert store.session("last") == second.session
        assert [one.id for one in store.sessions()] == [first.session.id, second.session.id]
        assert store.session(first.session.id) == first.session
        common = os.path.commonprefix([first.session.id, second.session.id])  # noqa: RUF071  (ids, not paths)
        assert common, "ids of the same millisecond's neighbourhood share their first digits"
        with pytest.raises(UsageError, match="names 2 sessions"):
            store.session(common)
        for unknown in ("zzz", ""):
            with pytest.raises(UsageError, match="no session"):
                store.session(unknown)


def test_rounds_done(path, make_world):
    world = make_world(("a", "b", "c"), vocabularies=[1, 2])
    for position in range(3):
        world.process(position, 0)
    world.process(0, 1)
    world.process(1, 1, counted=False)  # an attempt that was repeated, then interrupted
    world.process(2, 1)
    world.verify(1, 1.0, 0.1, case=1)  # wrong: left out of every round of case 1
    world.process(0, 0, case=1)
    world.process(2, 0, case=1, status=Status.OOM, reason="out of memory")
    world.process(0, 1, case=1)
    with Store.open(path) as store:
        fill(store, world)
        first, second = (case.id for case in world.cases)
        assert store.rounds_done(world.session.id) == {(first, 0), (second, 0), (second, 1)}


def test_cases_can_be_added_to_a_session(path, make_world):
    world = make_world()
    more = Case("grpo", "v1", {"vocab": 9})
    with Store.open(path) as store:
        fill(store, world)
        store.add_cases(world.session.id, [world.cases[0], more])
        assert store.cases(world.session.id) == [world.cases[0], more]


def test_measurements_are_tidy(path, make_world):
    world = make_world(vocabularies=[4096, 8192])
    world.process(0, measurements={"step_time": 5.0, "peak_allocated": 100.0})
    world.process(1, case=1, status=Status.OOM, reason="out of memory")
    world.process(1, counted=False, measurements={"step_time": 1.0})
    with Store.open(path) as store:
        fill(store, world)
        frame = store.measurements(world.session.id)
        assert store.measurements().equals(frame)
        assert store.measurements("another").empty
    assert list(frame["metric"].fillna("none")) == ["step_time", "peak_allocated", "none"]
    assert list(frame["vocab"]) == [4096, 4096, 8192]
    assert list(frame["unit"].fillna("none")) == ["ns", "B", "none"]
    assert math.isnan(frame["value"].iloc[2])
    assert list(frame["status"]) == ["ok", "ok", "oom"]
    assert list(frame["implementation"]) == ["unpruned", "unpruned", "pruned"]


def test_an_axis_may_have_a_column_s_name(path, make_world):
    world = make_world()
    world.cases = [Case("mine", "1", {"round": 3})]
    world.process(0, 7, measurements={"step_time": 5.0})
    with Store.open(path) as store:
        fill(store, world)
        frame = store.measurements()
    assert (frame["round"].item(), frame["axis.round"].item()) == (7, 3)


def test_what_is_not_ours_is_refused(tmp_path):
    missing = tmp_path / "missing.db"
    with pytest.raises(UsageError, match="no database at"):
        Store.open(missing, create=False)
    assert not missing.exists()
    text = tmp_path / "text.db"
    text.write_text("this is no database, and long enough to tell " * 20)
    with pytest.raises(UsageError, match="is not a database"):
        Store.open(text)
    other = tmp_path / "other.db"
    sqlite_utils.Database(other)["photos"].insert({"id": 1})
    with pytest.raises(UsageError, match=r"something else \(tables photos\)"):
        Store.open(other)
    empty = tmp_path / "empty.db"
    empty.touch()
    with pytest.raises(UsageError, match="is empty"):
        Store.open(empty, create=False)
    with pytest.raises(UsageError, match="cannot open"):
        Store.open(tmp_path)


def test_a_newer_schema_is_refused(path):
    Store.open(path).close()
    db = sqlite_utils.Database(path)
    db[migrations.migrations_table].insert({"migration_set": migrations.name, "name": "m999_future", "applied_at": "2099"})
    db.close()
    with pytest.raises(UsageError, match=r"newer version of Frostline \(it has m999_future\)"):
        Store.open(path)


def test_settings_of_the_file_and_the_connection(path):
    with Store.open(path) as store:
        pragmas = {
            name: store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


WRITER = textwrap.dedent("""
    import sys, time
    from frostline.results.record import *
    from frostline.results.store import Store
    path, start, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    time.sleep(max(0.0, start - time.time()))
    machine, case = Machine({"cpu": "x"}), Case("s", "1", {"n": 1})
    session = Session(new_id(), "w", "2026", machine.id, "cpu", {})
    with Store.open(path) as store:
        store.add_session(session, machine, [SideRecord(0, "a", "installed", "installed", "x", True)], [case])
        for i in range(count):
            samples = [Sample("step_time", b, b, 1.0 + b) for b in range(200)]
            store.add_processes([ProcessRecord(new_id(), session.id, 0, case.id, Role.MEASURE, i, Status.OK,
                                               samples=samples, measurements={"step_time": 1.0})])
            print(i, flush=True)
""")


def start_writer(path, start, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(start), str(count)], stdout=subprocess.PIPE, text=True
    )


def test_many_writers_may_open_one_new_file(path):
    path.parent.mkdir()
    writers = [start_writer(path, time.time() + 2.0, 10) for _ in range(4)]
    for writer in writers:
        writer.communicate(timeout=60)
    assert [writer.returncode for writer in writers] == [0] * 4
    with Store.open(path, create=False) as store:
        assert len(store.sessions()) == 4
        for session in store.sessions():
            records = store.processes(session.id)
            assert [record.round for record in records] == list(range(10))
            assert all(len(store.samples(record.id)) == 200 for record in records)


def test_a_killed_writer_leaves_whole_processes(path: Path):
    writer = start_writer(path, 0, 10_000)
    assert writer.stdout is not None
    reported = 0
    for line in writer.stdout:
        reported = int(line) + 1
        if reported == 20:
            break
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate(timeout=60)
    with Store.open(path, create=False) as store:
        records = store.processes(store.session().id)
        assert len(records) >= reported, "what was reported as stored is stored"
        assert [record.round for record in records] == list(range(len(records)))
        assert all(len(store.samples(record.id)) == 200 and record.measurements for record in records)
        assert store._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_page_of_the_schema_agrees_with_the_code():
    page = Path(__file__).parents[2] / "docs" / "schema.md"
    assert page.read_text() == document(), "run: python -m frostline.results.schema > docs/schema.md"


def test_opening_a_database_imports_no_pandas() -> None:
    """It takes longer than all else that a report imports."""
    code = "import sys, frostline.results.store; assert 'pandas' not in sys.modules; import pandas; pandas.DataFrame()"
    subprocess.run([sys.executable, "-c", code], check=True)
