"""What other programs measured comes in whole or not at all, is never judged, and goes out as it was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from frostline.results.evidence import Evidence
from frostline.results.exchange.export import datasette_metadata, export
from frostline.results.exchange.merge import merge
from frostline.results.exchange.readers import read_file
from frostline.results.judge import judge_across, judge_session
from frostline.results.record import Outcome, Status, UsageError
from frostline.results.report import bench_table
from frostline.results.store import Store

HOSTILE = '=HYPERLINK("x"),\n"quoted", ünï\u2028\'; DROP TABLE session; --'


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "one.db") as opened:
        yield opened


def bring_in(store, path):
    new = store.add_imported(read_file(Path(path), "frostline import"))
    return [Evidence.load(store, one.session.id) for one in new]


def written(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def pytest_file(path, name=HOSTILE):
    stats = {"data": [0.5, 0.25, 1.0], "median": 0.5}
    one = {"fullname": "t.py::test[a]", "params": {"text": name}, "stats": stats, "extra_info": {}, "group": None}
    return written(path, {"machine_info": {"cpu": {"brand_raw": "CPU", "count": 2}}, "commit_info": {"id": "ab" * 20},
                          "benchmarks": [one], "datetime": "2026-01-01T00:00:00+00:00"})  # fmt: skip


def test_the_published_tables_are_sides_of_their_own_that_nothing_rests_on(store):
    found = {(one.cases[0].suite, len(one.cases)): one for one in bring_in(store, "published")}
    muse, grpo = found["muse_glimmer", 5], found["grpo", 4]
    last = next(case for case in muse.cases if case.params["seq_len"] == 16384)
    assert muse.standing(last.id, 0).status is Status.OOM
    assert muse.values(muse.cases[0].id, 0, "peak_allocated") == [18.4e9]
    assert grpo.values(grpo.cases[0].id, 1, "step_time") == [pytest.approx(263.7e6)]
    assert not judge_session(grpo)
    assert {one.outcome for one in judge_across(grpo, grpo)} == {Outcome.INCOMPARABLE}
    shown = bench_table(grpo, []).text()
    assert "liger_after @ published" in shown and "imported from published tables" in shown
    assert bring_in(store, "published") == []  # a second time adds nothing


def test_the_last_session_is_one_that_was_measured_here(store, make_world):
    world = make_world(created_at="2020-01-01T00:00:00+00:00")
    store.add_session(world.session, world.machine, world.sides, world.cases)
    bring_in(store, "published")
    assert store.session("last").id == world.session.id


def test_pytest_benchmark_keeps_every_round(store, tmp_path):
    (found,) = bring_in(store, pytest_file(tmp_path / "p.json"))
    (record,) = found.processes
    assert found.cases[0].params == {"text": HOSTILE}
    assert [one.value for one in store.samples(record.id)] == [5e8, 2.5e8, 1e9]
    assert record.measurements == {"step_time": 5e8}


def test_google_benchmark(store, tmp_path):
    rows = [{"name": "BM_sort/8/kind:fast", "run_name": "BM_sort/8/kind:fast", "run_type": "iteration", "real_time": time,
             "time_unit": "us"} for time in (2.0, 3.0)]  # fmt: skip
    (found,) = bring_in(store, written(tmp_path / "g.json", {"context": {"num_cpus": 2}, "benchmarks": rows}))
    (case,) = found.cases
    assert case.suite == "BM_sort" and case.params == {"arg0": 8, "kind": "fast"}
    assert found.values(case.id, 0, "step_time") == [2000.0, 3000.0]


def test_asv(store, tmp_path):
    written(tmp_path / "r" / "benchmarks.json", {"time_it": {"unit": "seconds", "param_names": ["n"]}, "version": 2})
    data = {"commit_hash": "cd" * 20, "result_columns": ["result", "params"], "params": {"cpu": "CPU"},
            "results": {"time_it": [[0.5, None], [["1", "2"]]]}}  # fmt: skip
    written(tmp_path / "r" / "box" / "cd-env.json", data)
    written(tmp_path / "r" / "box" / "machine.json", {})
    (found,) = bring_in(store, tmp_path / "r")
    assert [found.standing(case.id, 0).status for case in found.cases] == [Status.OK, Status.ERROR]
    assert found.values(found.cases[0].id, 0, "step_time") == [5e8]


LIGER = (
    "kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_name,x_label,x_value,y_value_50,y_value_20,"
    "y_value_80,extra_benchmark_config_str,gpu_name,timestamp,liger_version\n"
)
LIGER_ROW = 'ce,{side},full,{metric},{unit},V,vocab size,4096,{value},1,2,"{{""B"": 8}}",A100,{when},0.2.1\n'


def test_ligers_csv_takes_the_last_of_rows_alike(store, tmp_path):
    text = LIGER + "".join(
        LIGER_ROW.format(side=side, metric=metric, unit=unit, value=value, when=when)
        for side, metric, unit, value, when in (
            ("liger", "speed", "ms", 2.0, "2024-09-04 00:00:00"),
            ("liger", "speed", "ms", 9.0, "2024-09-03 00:00:00"),
            ("huggingface", "memory", "MB", 256, "2024-09-03 00:00:00"),
        )
    )
    (found,) = bring_in(store, written(tmp_path / "l.csv", text))
    (case,) = found.cases
    assert case.params == {"V": 4096, "B": 8, "mode": "full"} and found.baseline.implementation == "huggingface"
    assert found.values(case.id, 0, "step_time") == [2e6]
    assert found.values(case.id, 1, "peak_allocated") == [256 * 2**20]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "[]",
        '{"a": 1}',
        '{"machine_info": {}, "benchmarks": [{"fullname": "x", "stats": {"median": "fast"}}]}',
        '{"context": {}, "benchmarks": [{"name": "x", "real_time": NaN}]}',
        '{"commit_hash": "a", "results": {}}',
        '{"format": "frostline-figures", "version": 9}',
        LIGER + LIGER_ROW.format(side="x", metric="speed", unit="ms", value="fast", when="2024"),
        LIGER + "only,three,cells\n",
    ],
)
def test_a_file_that_is_not_what_it_says_is_one_clear_line(tmp_path, text):
    with pytest.raises(UsageError, match=r"^FILE: ") as told:
        read_file(written(tmp_path / "x.json", text), "")
    assert "x.json" in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_hostile_text_survives_the_way_out(store, tmp_path, form):
    bring_in(store, pytest_file(tmp_path / "p.json"))
    bring_in(store, "published")
    path = tmp_path / f"out.{form}"
    assert export(store, path, "samples") == 3
    read = {"csv": pd.read_csv, "json": lambda p: pd.read_json(p, orient="table"), "parquet": pd.read_parquet}[form](path)
    assert list(read["value"]) == [5e8, 2.5e8, 1e9] and set(read["unit"]) == {"ns"} and set(read["text"]) == {HOSTILE}
    assert export(store, path) > 40


def test_merging_twice_adds_nothing_and_leaves_the_other_alone(store, tmp_path):
    bring_in(store, pytest_file(tmp_path / "p.json"))
    with Store.open(tmp_path / "two.db") as other:
        bring_in(other, pytest_file(tmp_path / "q.json"))
        bring_in(other, "published")
    before = (tmp_path / "two.db").read_bytes()
    assert merge(store, tmp_path / "two.db")["session"] == 4
    assert merge(store, tmp_path / "two.db") == {}
    assert (tmp_path / "two.db").read_bytes() == before
    with pytest.raises(UsageError, match="OTHER"):
        merge(store, written(tmp_path / "no.db", "not a database, but long enough to be read as the header of one" * 9))


def test_the_real_datasette_shows_titles_and_answers_queries(store, tmp_path):
    app = pytest.importorskip("datasette.app", reason="datasette is not installed: make .venv/develop.stamp")
    import asyncio

    bring_in(store, "published")

    async def ask():
        served = app.Datasette([str(store.path)], metadata=datasette_metadata("one"))
        await served.invoke_startup()
        pages = [await served.client.get(f"/one{one}") for one in ("", "/session", "/figures.json?_shape=array")]
        queries = [(await served.client.get(f"/one/{one}.json")).status_code for one in ("worse", "failures")]
        return pages, queries

    (front, session, figures), queries = asyncio.run(ask())
    assert "What was measured" in front.text and "All that one command measured." in session.text and queries == [200, 200]
    assert {one["implementation"] for one in figures.json()} >= {"hf", "liger_after"}
