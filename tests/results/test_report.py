"""The tables: what they show, that no figure is cut at any width, and that a failure never looks like a win."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from frostline.results.evidence import Evidence, side_names, varying_axes
from frostline.results.judge import judge_session
from frostline.results.record import Interleave, Role, RoundRatio, SideRecord, Status
from frostline.results.report import bench_table, markdown_comparison, verdict_table
from frostline.results.table import Column, Table
from frostline.results.verdict import tally, worst_first


def shown(renderable, width):
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


@pytest.fixture
def session(make_world):
    """Three cases: one that the second side wins, one that it gets wrong, one that it has no memory for."""
    world = make_world(vocabularies=[128_256, 151_936, 4])
    for case in range(3):
        world.verify(0, 1e-6, 1e-5, case=case)
        world.verify(1, 0.25 if case == 1 else 1e-6, 1e-5, case=case)
        for number in range(8):
            figures = {"step_time": 471.6e6 + 4e5 * number, "peak_allocated": 6.14 * 2**30, "peak_above_inputs": 3.0 * 2**30}
            world.process(0, number, case=case, measurements=figures)
            if case < 2:
                figures = {"step_time": 263.7e6, "peak_allocated": 3.25 * 2**30, "peak_above_inputs": 0.25 * 2**30}
                world.process(1, number, case=case, measurements=figures)
                world.ratio(1, number, math.log(263.7 / 471.6) + 1e-4 * number, case=case)
    world.process(1, 0, case=2, status=Status.OOM, reason="CUDA out of memory")
    return Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios)


def test_the_bench_table(session):
    table = bench_table(session, judge_session(session))
    assert [column.header for column in table.columns] == ["vocab", "unpruned", "pruned", "saves", "error", "verdict"]
    won, wrong, oom = table.rows
    assert won == [
        ("128,256",),
        ("473.0 ± 0.7 ms", "6.140 GiB (+3.000 GiB)"),
        ("263.7 ± 0.0 ms", "3.250 GiB (+256.0 MiB)"),
        ("44.1 % [44.0, 44.1] time", "47.1 % memory"),
        ("loss 1.0e-06",),
        ("time: faster", "memory: less"),
    ]
    assert wrong[2:] == [("wrong",), ("-",), ("loss 2.5e-01",), ("broken",)]
    assert oom[2:] == [("OOM",), ("-",), ("loss 1.0e-06",), ("broken",)]


def test_the_notes_say_where_how_and_on_what(session):
    notes = "\n".join(bench_table(session, judge_session(session)).notes)
    for said in (
        "device cpu",
        "Test CPU, 2 cores",
        "grpo v1",
        "8 rounds",
        "spawn",
        "by block",
        "lm_head=frozen",
        session.session.id,
    ):
        assert said in notes
    assert "half their interquartile range" in notes


def test_flags_are_counted_in_the_notes(make_world, module):
    world = make_world(("pruned", "pruned"))
    for number in range(8):
        for position in range(2):
            world.process(position, number, measurements={"step_time": 1e6}, modules=(module,))
        world.ratio(1, number, 0.0)
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios)
    assert "flag: same code (1 verdict)" in bench_table(evidence, judge_session(evidence)).notes


def test_the_verdict_table_has_the_worst_first_and_says_a_failure_once(session):
    table = verdict_table(session, judge_session(session))
    assert table.title == "grpo: 2 broken, 2 less, 1 faster"
    rows = [{column.header: " ".join(cell) for column, cell in zip(table.columns, row, strict=True)} for row in table.rows]
    assert [(row["vocab"], row["metric"], row["verdict"]) for row in rows] == [
        ("151,936", "all", "broken"),
        ("4", "all", "broken"),
        ("128,256", "peak allocated", "less"),
        ("128,256", "peak above inputs", "less"),
        ("128,256", "step time", "faster"),
    ]
    assert (rows[0]["baseline"], rows[0]["measured"], rows[0]["ratio"]) == ("ok", "wrong", "-")
    assert (rows[4]["baseline"], rows[4]["measured"], rows[4]["ratio"]) == (
        "473.0 ± 0.7 ms",
        "263.7 ± 0.0 ms",
        "0.559 [0.559, 0.560]",
    )
    assert rows[1]["why"] == "This side ran out of memory: CUDA out of memory."
    assert rows[4]["why"] == "Over 8 rounds. (drift)", "the figures have columns of their own"
    ratio = "ratio: measured over baseline; of a time that of the rounds, with its 99 % interval"
    assert ratio in table.notes
    assert ratio not in verdict_table(session, [one for one in judge_session(session) if one.metric != "step_time"]).notes


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_figure_is_cut_at_any_width(session, width):
    verdicts = judge_session(session)
    for table in (bench_table(session, verdicts), verdict_table(session, verdicts)):
        for text in (shown(table.rich(width), width), table.text(width)):
            for row in table.rows:
                for column, cell in zip(table.columns, row, strict=True):
                    assert all(line in text for line in cell if not column.prose), (column.header, cell)
            assert "…" not in text


def test_text_keeps_to_its_width_where_it_can(session):
    table = verdict_table(session, judge_session(session))
    body = table.text(110).split("\n\n")[1]
    assert max(map(len, body.splitlines())) <= 110
    assert len(table.text().splitlines()) < len(table.text(110).splitlines()), "without a width nothing is wrapped"


def test_markdown_is_one_table_with_whole_rows(session):
    page = markdown_comparison(session, judge_session(session))
    tables = re.findall(r"(?:^\|.*\|\n)+", page, flags=re.MULTILINE)
    assert len(tables) == 2
    for table in tables:
        lines = table.splitlines()
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert re.fullmatch(r"\|(-+:?\|)+", lines[1])
    assert "<details>" in page


def test_markdown_and_rich_take_any_text_as_it_is():
    table = Table("a_b", [Column("c")], [[("[red]x|y*<b>`",)]])
    assert "[red]x\\|y\\*&lt;b&gt;\\`" in table.markdown()
    assert "[red]x|y*<b>`" in shown(table.rich(80), 80)


def test_a_session_of_predictions(make_world):
    world = make_world(vocabularies=[4, 8])
    for case in range(2):
        for position, peak in enumerate((200, 100)):
            world.process(
                position, -1, case=case, role=Role.PREDICT, measurements={"peak_allocated": peak * 2.0**20, "flops": 5e12}
            )
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes)
    table = bench_table(evidence, judge_session(evidence))
    assert table.rows[0][1:4] == [
        ("200.0 MiB", "5.000 TFLOP"),
        ("100.0 MiB", "5.000 TFLOP"),
        ("50.0 % memory", "0.0 % FLOPs"),
    ]
    assert any("by the cost model" in note for note in table.notes)


def test_prediction_stands_beside_measurement(make_world):
    world = make_world()
    for position in range(2):
        world.process(position, 0, measurements={"step_time": 1e6, "peak_allocated": 2.0**20})
        world.process(position, -1, role=Role.PREDICT, measurements={"peak_allocated": 2.0**21})
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes)
    assert bench_table(evidence, []).rows[0][0] == ("1.000 ms", "1.000 MiB", "predicted 2.000 MiB")


def test_several_sides_each_have_their_columns(make_world):
    world = make_world(("unpruned", "pruned", "torch"))
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes)
    verdicts = judge_session(evidence)
    headers = [column.header for column in bench_table(evidence, verdicts).columns]
    assert headers[:3] == ["unpruned", "pruned", "pruned saves"]
    assert headers[-2:] == ["torch error", "torch verdict"]
    assert [row[1] for row in bench_table(evidence, verdicts).rows] == [("not measured",)]
    assert "side" in [column.header for column in verdict_table(evidence, verdicts).columns]


PEERS = ("unpruned", "pruned", "torch", "liger", "cce")


@pytest.fixture
def crowd(make_world):
    """Five sides on two cases: the fourth takes two rounds of the first case alone, the last is not installed."""
    world = make_world(PEERS, [128_256, 151_936])
    first, second = (case.id for case in world.cases)
    world.session.plan["fewer_rounds"] = {first: {"liger": 2, "cce": 2}, second: {"liger": 0, "cce": 0}}
    for case, position, number in itertools.product(range(2), range(4), range(8)):
        if position < 3 or (case == 0 and number < 2):
            world.process(
                position, number, case=case, measurements={"step_time": 1e6 * (position + 1), "peak_allocated": 2.0**20}
            )
            if position:
                world.ratio(position, number, math.log(position + 1) + 1e-4 * number, case=case)
    for position in range(4):
        world.verify(position, 1e-6, 1e-5)
    world.process(4, -1, role=Role.VERIFY, status=Status.SKIPPED, reason="cce is not installed")
    return Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios)


def test_many_sides_stand_one_below_the_other(crowd):
    table = bench_table(crowd, judge_session(crowd))
    assert [column.header for column in table.columns] == ["vocab", "side", "measured", "saves", "error", "verdict"]
    assert [(row[0][0], row[1][0]) for row in table.rows] == [
        *(("128,256", name) for name in PEERS[:4]),
        *(("151,936", name) for name in PEERS[:3]),
    ]
    assert table.rows[0][3:] == [("-",), ("loss 1.0e-06",), ("baseline",)]
    pruned, liger = table.rows[1], table.rows[3]
    assert pruned[2] == ("2.000 ± 0.000 ms", "1.000 MiB") and pruned[5] == ("time: slower", "memory: same")
    assert liger[5] == ("time: inconclusive", "memory: same")
    assert liger[3][0].startswith("4") and liger[3][0].endswith("x the time")  # no -300 % saved
    assert max(map(len, table.text().split("\n\n")[1].splitlines())) <= 110


def test_a_metric_that_one_side_does_not_have_is_left_to_the_verdicts(make_world):
    world = make_world()
    for position, figures in enumerate(({"step_time": 1e6, "flops": 1e12}, {"step_time": 1e6})):
        world.process(position, 0, measurements=figures)
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes)
    verdicts = judge_session(evidence)
    assert bench_table(evidence, verdicts).rows[0][-1] == ("time: inconclusive",)
    assert "flops" in [row[0][0] for row in verdict_table(evidence, verdicts).rows]


def test_each_time_is_named_for_what_it_is(make_world):
    world = make_world()
    graph, profile = "replays of a CUDA graph", "the sum of durations in a profile"
    for position, way in enumerate((graph, profile)):
        figures = {"kernel_time": 18.3e3 / (1 + position), "host_time": 60e3, "cold_step_time": 25e3, "step_time": 90e3}
        for number in range(6):
            how = {"clocks": {"kernel_time": way}}
            world.process(position, number, measurements=figures, environment=how)
            world.ratios += [
                RoundRatio(world.session.id, world.cases[0].id, number, name, 1, 0, log, 4, Interleave.BLOCK)
                for name, log in (("kernel_time", math.log(0.5)), ("host_time", 0.0))
                if position
            ]
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes, world.ratios)
    table = bench_table(evidence, judge_session(evidence))
    (row,) = table.rows
    assert row[0] == (
        "90.00 ± 0.00 us",
        "25.00 ± 0.00 us cold step time",
        "18.30 ± 0.00 us kernel time",
        "60.00 ± 0.00 us host time",
    )
    assert row[2] == ("50.0 % kernel time", "0.0 % host time")
    assert row[-1][-2:] == ("kernel time: faster", "host time: same")
    assert "kernel time: the kernels of one step alone, nothing of it in the L2 cache before" in table.notes
    assert {f"kernel time, of unpruned: {graph}", f"kernel time, of pruned: {profile}"} < set(table.notes)


def test_what_takes_part_in_less_is_in_the_notes(crowd):
    verdicts = judge_session(crowd)
    table = bench_table(crowd, verdicts)
    assert "2 rounds, in 1 of 2 cases: liger" in table.notes
    assert "cce skipped: cce is not installed" in table.notes
    assert not any("not verified" in note for note in table.notes), "what was skipped is not unverified"
    second = crowd.cases[1].id
    assert {verdict.position for verdict in verdicts if verdict.case_id == second} == {1, 2}


def test_a_side_that_is_skipped_everywhere_takes_no_columns(make_world):
    world = make_world(("unpruned", "pruned", "liger"))
    for position in range(2):
        world.process(position, 0, measurements={"step_time": 1e6})
    world.process(2, -1, role=Role.VERIFY, status=Status.SKIPPED, reason="liger-kernel is not installed")
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes)
    table = bench_table(evidence, judge_session(evidence))
    assert [column.header for column in table.columns] == ["unpruned", "pruned", "saves", "error", "verdict"]
    assert "liger skipped: liger-kernel is not installed" in table.notes


def test_one_round_is_one_and_what_all_processes_share_is_said_once(make_world):
    world = make_world(vocabularies=[4, 8])
    for case, interleave in enumerate(Interleave):
        for position in range(2):
            world.process(position, 0, case=case, interleave=interleave, measurements={"step_time": 1e6})
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes)
    said = "1 round, a fresh process of each side in every one (spawn, interleaved by block and by process)"
    assert said in bench_table(evidence, []).notes


def test_why_a_side_failed_is_in_the_notes_once_for_each_reason(make_world):
    world = make_world(("unpruned", "pruned", "liger"), [4, 8])
    for case in range(2):
        world.process(0, 0, case=case, measurements={"step_time": 1e6})
        world.process(2, 0, case=case, status=Status.ERROR, reason="RuntimeError: broken\n  liger")
    world.process(1, 0, case=0, measurements={"step_time": 1e6})
    world.process(1, 0, case=1, status=Status.OOM, reason="CUDA out of memory")
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes)
    table = bench_table(evidence, judge_session(evidence))
    assert table.notes[-2:] == ["pruned failed at vocab=8: CUDA out of memory", "liger failed: RuntimeError: broken liger"]
    assert "RuntimeError: broken liger" in table.markdown()


def side(position, implementation, source, kind="git"):
    return SideRecord(position, implementation, source, kind, source)


@pytest.mark.parametrize(
    ("sides", "names"),
    [
        ([side(0, "a", "here"), side(1, "b", "here")], ["a", "b"]),
        ([side(0, "a", "main"), side(1, "a", "branch")], ["main", "branch"]),
        ([side(0, "a", "v1"), side(1, "b", "v1"), side(2, "a", "v2")], ["a @ v1", "b @ v1", "a @ v2"]),
        ([side(0, "a", "v1"), side(1, "a", "v1")], ["a @ v1 #0", "a @ v1 #1"]),
    ],
)
def test_sides_have_the_shortest_names_that_differ(sides, names):
    assert list(side_names(sides).values()) == names


def test_axes_that_never_vary_are_no_columns(make_world):
    assert varying_axes(make_world(vocabularies=[1, 2]).cases) == ["vocab"]
    assert varying_axes(make_world(vocabularies=[1]).cases) == []


def test_the_tally(session):
    verdicts = judge_session(session)
    assert tally(verdicts) == "6 broken, 2 less, 1 faster"
    assert tally([]) == "no verdict"
    assert [one.outcome for one in worst_first(verdicts)][-1] == "faster"


@pytest.mark.parametrize("checked", [False, True])
def test_a_session_that_was_interrupted_before_its_first_round_was_not_predicted(make_world, checked):
    world = make_world()
    if checked:
        world.verify(0, 1e-6, 1e-5)
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, world.processes, [])
    for table in (bench_table(evidence, judge_session(evidence)), verdict_table(evidence, judge_session(evidence))):
        said = "\n".join(table.notes)
        assert "grpo v1; device cpu; machine Test CPU, 2 cores" in said
        assert "no round was measured: the session was ended before its first" in said
        assert "predicted" not in said and "cost model" not in said
    assert bench_table(evidence, []).rows[0][0] == ("not measured",)


def test_what_a_directory_held_is_named_by_a_hash_of_it(make_world):
    """As a revision is by its commit: the directory will be another one tomorrow."""
    world = make_world(("pruned", "pruned"), source_kind="path")
    details = ({"directory": "/a"}, {"directory": "/b", "installed_with": ["einops==0.8.1"]})
    world.sides = [
        replace(side, source=f"path:{name}", source_id=name * 16, detail=detail)
        for side, name, detail in zip(world.sides, ("ab", "cd"), details, strict=True)
    ]
    evidence = Evidence(world.session, world.machine, world.sides, world.cases, [])
    said = verdict_table(evidence, []).notes
    assert "path:ab: content abababababab" in said
    assert "path:cd: content cdcdcdcdcdcd, with einops==0.8.1" in said
