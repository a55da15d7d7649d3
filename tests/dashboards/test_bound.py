"""The bound chart: what a share is made of, that every side stands at its own, and that no text is clipped or covered."""

from __future__ import annotations

import itertools
import math

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from frostline.dashboards import theme
from frostline.dashboards.bound import bound_picture, draw_bound
from frostline.dashboards.placement import Box
from frostline.results.evidence import Evidence
from frostline.results.over_bound import load_bound_panels, time_of
from frostline.results.record import (
    Case,
    Interleave,
    Machine,
    ProcessRecord,
    Role,
    RoundRatio,
    Session,
    SideRecord,
    Status,
    UsageError,
)

SIDES = ("unpruned", "pruned", "torch", "torch_compile", "liger", "bound")
SHAPES = ((2048, 4096), (4096, 4096), (8192, 4096), (4096, 8192), (8192, 8192), (65536, 256))
US = {"unpruned": 18.3, "pruned": 14.2, "torch": 20.9, "torch_compile": 15.0, "liger": 25.4, "bound": 14.1}


def session(cases, metric="kernel_time", rounds=3, names=SIDES, us=US):
    """A session of made-up times, in which torch_compile takes part in the smallest shape alone."""
    machine = Machine({"gpu": "NVIDIA H200"})
    sides = [SideRecord(at, name, "installed", "installed", "one", baseline=at == 0) for at, name in enumerate(names)]
    made = [
        Case("norms", "v1", {"op": op, "rows": rows, "columns": columns, "parameters": parameters, "dtype": "bfloat16"})
        for op, parameters, (rows, columns) in cases
    ]
    stored = Session("s", "frostline run norms", "2026-01-01T00:00:00+00:00", machine.id, "cuda", {})
    processes, ratios = [], []
    for case, number in itertools.product(made, range(rounds)):
        for at, name in enumerate(names):
            if name == "torch_compile" and case.params["rows"] != 2048:
                continue
            time = us[name] * 1e3 * (1 + number / 1000)
            record = ProcessRecord(f"{case.id}{name}{number}", "s", at, case.id, Role.MEASURE, number, Status.OK)
            processes.append(ProcessRecord(**{**vars(record), "measurements": {metric: time}}))
            if at:
                log = math.log(us[name] / us[names[0]]) + 0.01 * (name == "bound")
                ratios.append(RoundRatio("s", case.id, number, metric, at, 0, log, 4, Interleave.BLOCK))
    return Evidence(stored, machine, sides, made, processes, ratios)


PAPER = session(
    [
        *itertools.product(("rms_norm", "layer_norm"), ("frozen",), SHAPES),
        *itertools.product(("rms_norm", "layer_norm"), ("trainable",), SHAPES[2:5]),
        ("fused_add_rms_norm", "frozen", SHAPES[2]),
    ]
)
ONE = session([("rms_norm", "frozen", (512, 1024))], metric="step_time", rounds=1)


def test_a_share_is_the_bounds_time_over_the_sides_by_their_rounds():
    first = load_bound_panels(PAPER)[0]
    assert first.title == "rms norm, frozen" and time_of(PAPER) == "kernel_time"
    assert first.shares["pruned"][2048, 4096] == pytest.approx(14.1 / 14.2 * math.exp(0.01))
    assert first.shares["unpruned"][2048, 4096] == pytest.approx(14.1 / 18.3 * math.exp(0.01)), "the baseline as well"
    assert "bound" not in first.shares and set(first.shares["torch_compile"]) == {(2048, 4096)}
    assert first.shapes[0] == (2048, 4096) and first.shapes[-1] == (8192, 8192), "by size"
    assert first.sentences[1] == "rms norm, frozen: pruned reaches 100 % of the bound"


def test_without_rounds_in_common_medians_are_compared():
    bare = Evidence(ONE.session, ONE.machine, ONE.sides, ONE.cases, ONE.processes)
    (panel,) = load_bound_panels(bare)
    assert time_of(bare) == "step_time" and panel.shares["pruned"][512, 1024] == pytest.approx(14.1 / 14.2)


def test_panels_come_by_op_and_parameters():
    assert [panel.title for panel in load_bound_panels(PAPER)] == [
        "rms norm, frozen",
        "layer norm, frozen",
        "rms norm, trainable",
        "layer norm, trainable",
        "fused add rms norm, frozen",
    ]


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (session([("rms_norm", "frozen", SHAPES[0])], names=SIDES[:3]), "session s has no side 'bound'"),
        (session([("rms_norm", "frozen", SHAPES[0])], rounds=0), "no case in which a side was measured beside bound"),
        (Evidence(ONE.session, ONE.machine, ONE.sides, [Case("norms", "v1", {"n": 1})], []), "no axes rows, columns and op"),
    ],
)
def test_a_session_without_a_bound_is_refused(evidence, said):
    with pytest.raises(UsageError, match=said):
        load_bound_panels(evidence)


def drawn(evidence):
    with theme.applied():
        figure = draw_bound(load_bound_panels(evidence), title="norms: share of the bandwidth bound", caption="made up")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return figure, canvas.get_renderer()


@pytest.mark.parametrize("evidence", [PAPER, ONE], ids=["paper", "one"])
def test_no_text_covers_another_or_is_clipped(evidence):
    figure, renderer = drawn(evidence)
    texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        texts += [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label, axes._left_title]
    boxes = {}
    for at, text in enumerate(text for text in texts if text.get_text() and text.get_visible()):
        extent = text.get_window_extent(renderer)
        boxes[at, text.get_text()] = Box(extent.x0, extent.y0, extent.x1, extent.y1)
    width, height = figure.get_size_inches() * theme.DPI
    for (_, words), box in boxes.items():
        assert box.within(Box(0, 0, width, height)), words
    for ((_, one), first), ((_, other), second) in itertools.combinations(boxes.items(), 2):
        assert not first.overlaps(second), (one, other)


def test_a_marker_stands_at_each_share_and_within_its_panel():
    figure, _ = drawn(PAPER)
    assert len(figure.axes) == 5
    for axes, panel in zip(figure.axes, [0, 2, 1, 3, 4], strict=True):
        shares = load_bound_panels(PAPER)[panel].shares
        markers = [line for line in axes.lines if line.get_marker() not in ("None", None)]
        wanted = sorted(100 * share for of_side in shares.values() for share in of_side.values())
        assert sorted(line.get_xdata()[0] for line in markers) == pytest.approx(wanted)
        low, high = axes.get_xlim()
        assert all(low <= line.get_xdata()[0] <= high for line in markers)
        places = [tuple(line.get_xydata()[0]) for line in markers]
        assert len(set(places)) == len(places)


def test_the_picture_is_written_with_its_figures_in_words(tmp_path):
    picture = bound_picture(PAPER, tmp_path / "new")
    assert picture.path == tmp_path / "new" / "norms.png" and picture.path.stat().st_size > 10_000
    assert "layer norm, trainable: torch reaches 68 % of the bound" in picture.sentences
