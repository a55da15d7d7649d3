"""The floor chart: every side is there, at its place and by name, and no text covers another or is clipped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from frostline.dashboards import theme
from frostline.dashboards.floor import draw_floor, floor_picture
from frostline.dashboards.placement import Box
from frostline.results.evidence import Evidence
from frostline.results.over_floor import load_floor_panels
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

GIB = 2.0**30
Figures = Mapping[str, tuple[float, float]]  # by side: ms, GiB above the inputs
FROZEN: Figures = {
    "floor": (24.9, 0),
    "known": (26.9, 0.257),
    "unknown": (26.8, 0.257),
    "torch": (36.6, 11.74),
    "torch_compile": (27.8, 5.87),
    "liger": (263.7, 0.2),
    "trl": (40.2, 0.38),
    "cce": (60.7, 0.065),
}
TRAINABLE: Figures = {
    "floor": (37.5, 0),
    "floor_unknown": (49.9, 0),
    "known": (41.1, 3.12),
    "unknown": (52, 1.39),
    "torch": (49, 11.7),
    "torch_compile": (39.8, 5.9),
    "liger": (464, 4.0),
    "trl": (55, 2.3),
    "cce": (94, 1.04),
}
NAMES = tuple(TRAINABLE)


def session(*cases: tuple[str, Figures], names: Sequence[str] = NAMES) -> Evidence:
    """A session with a case for each head and its figures; the first side is the baseline. Without figures it takes no part."""
    machine = Machine({"gpu": "NVIDIA H200"})
    sides = [SideRecord(at, name, "installed", "installed", "one", baseline=at == 0) for at, name in enumerate(names)]
    made = [
        Case("head_floor", "v1", {"vocab": 128256, "lm_head": head, "active": 1 - at / 10, "dtype": "bfloat16"})
        for at, (head, _) in enumerate(cases)
    ]
    fewer = {
        case.id: {name: 0 for name in names if name not in figures} for case, (_, figures) in zip(made, cases, strict=True)
    }
    plan = {"fewer_rounds": fewer}
    stored = Session("s", "frostline run head_floor", "2026-01-01T00:00:00+00:00", machine.id, "cuda", plan)
    processes, ratios = [], []
    for case, (_, figures) in zip(made, cases, strict=True):
        floor = figures[names[0]][0]
        for number, (name, (ms, gib)) in itertools.product(range(4), figures.items()):
            at = names.index(name)
            measurements = {"step_time": ms * 1e6 * (1 + number / 1000), "peak_above_inputs": gib * GIB}
            processes.append(
                ProcessRecord(
                    f"{case.id}{name}{number}", "s", at, case.id, Role.MEASURE, number, Status.OK, measurements=measurements
                )
            )
            if at:
                ratio = RoundRatio("s", case.id, number, "step_time", at, 0, math.log(ms / floor), 4, Interleave.BLOCK)
                ratios.append(ratio)
    return Evidence(stored, machine, sides, made, processes, ratios)


H200 = session(("frozen", FROZEN), ("trainable", TRAINABLE), ("frozen", {name: FROZEN[name] for name in ("floor", "known")}))
FEW = session(("frozen", {"floor": (5, 0), "known": (6, 0.001)}))
NOTHING_ABOVE = session(("frozen", FROZEN | {"cce": (84.2, 0.0), "liger": (24.0, 1e-7)}))


def drawn(evidence: Evidence):
    with theme.applied():
        figure = draw_floor(load_floor_panels(evidence), title="Time over the floor", caption="measured on NVIDIA H200")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    texts = [
        *figure.texts,
        *(text for axes in figure.axes for text in (*axes.texts, *axes.get_xticklabels(), axes.xaxis.label)),
    ]
    texts += [text for axes in figure.axes for text in (*axes.get_yticklabels(), axes.yaxis.label)]
    boxes = {}
    for at, text in enumerate(texts):
        if text.get_text():
            extent = text.get_window_extent(canvas.get_renderer())
            boxes[at, text.get_text()] = Box(extent.x0, extent.y0, extent.x1, extent.y1)
    return figure, boxes


@pytest.mark.parametrize("evidence", [H200, FEW, NOTHING_ABOVE], ids=["H200", "few", "nothing above"])
def test_no_text_covers_another_or_is_clipped(evidence: Evidence) -> None:
    figure, boxes = drawn(evidence)
    width, height = figure.get_size_inches() * theme.DPI
    for (_, words), box in boxes.items():
        assert box.within(Box(0, 0, width, height)), words
    for ((_, one), first), ((_, other), second) in itertools.combinations(boxes.items(), 2):
        assert not first.overlaps(second), (one, other)


def test_no_name_covers_a_point() -> None:
    figure, boxes = drawn(H200)
    for axes in figure.axes:
        points = [line.get_xydata()[0] for line in axes.lines if line.get_marker() not in ("None", None)]
        for x, y in axes.transData.transform(points):
            assert not any(box.distance((x, y)) == 0 for box in boxes.values())


def test_every_side_has_a_name_with_its_ratio_and_stands_where_it_was_measured() -> None:
    figure, boxes = drawn(H200)
    words = [word for _, word in boxes]
    for name, panels in (("known", ("1.08", "1.10")), ("liger", ("10.59", "12.37")), ("cce", ("2.44", "2.51"))):
        assert [f"{name} {ratio}" in words for ratio in panels] == [True, True]
    frozen = [
        tuple(line.get_xydata()[0]) for line in figure.axes[0].lines if line.get_marker() == theme.looks(["trl"])["trl"].marker
    ]
    assert frozen == [pytest.approx((40.2 / 24.9, 0.38 * GIB))]
    assert not any(word.startswith("floor_unknown 1") for word in words), "a floor is a line, and told above the panel"
    assert "floor_unknown: 49.97 ms, the line at 1.33" in " ".join(words)


def test_a_side_named_after_a_baseline_that_is_no_floor_is_a_point_like_any_other() -> None:
    names = ("torch", "torch_compile", "known")
    (panel,) = load_floor_panels(session(("frozen", {name: FROZEN[name] for name in names}), names=names))
    assert [(point.label, point.is_floor) for point in panel.points] == [
        ("torch", True),
        ("torch_compile", False),
        ("known", False),
    ]
    floors = [point.label for point in load_floor_panels(H200)[1].points if point.is_floor]
    assert floors == ["floor", "floor_unknown"]


def test_a_ratio_over_a_baseline_that_is_no_floor_names_it(tmp_path: Path) -> None:
    names = ("known", "torch")
    evidence = session(("frozen", {name: FROZEN[name] for name in names}), names=names)
    shown = " ".join(word for _, word in drawn(evidence)[1])
    assert "Time over known (x)" in shown and "Time over the floor (x)" not in shown
    assert "known: 26.94 ms and 263.2 MiB above the inputs, the line at 1" in shown
    assert floor_picture(evidence, tmp_path).sentences == [
        "lm_head frozen: known takes 26.94 ms and 263.2 MiB above the inputs",
        "lm_head frozen: torch takes 36.65 ms, 1.361 x known, and 11.74 GiB above the inputs",
    ]


def test_what_needs_nothing_stands_on_the_edge_and_says_so() -> None:
    figure, boxes = drawn(NOTHING_ABOVE)
    assert any(word == "cce 3.38 (+0)" for _, word in boxes)
    assert figure.axes[0].get_ylim()[0] == 128 * 2**20, "what is as good as nothing does not stretch the axis"


def test_the_case_with_the_most_sides_is_drawn() -> None:
    panels = load_floor_panels(H200)
    assert [(panel.title, panel.case.params["active"], len(panel.points)) for panel in panels] == [
        ("lm_head frozen", 1.0, 8),
        ("lm_head trainable", 0.9, 9),
    ]


def test_a_side_that_failed_is_told_and_not_drawn() -> None:
    failed = [
        replace(record, status=Status.OOM, measurements={}) if record.position == NAMES.index("torch") else record
        for record in H200.processes
    ]
    panels = load_floor_panels(replace(H200, processes=failed))
    assert [panel.remarks for panel in panels] == [["torch ran out of memory: not drawn"]] * 2
    assert all(point.label != "torch" for panel in panels for point in panel.points)


def test_a_session_without_its_floor_is_refused() -> None:
    others = [record for record in H200.processes if record.position != 0]
    with pytest.raises(UsageError, match="no case in which a side was measured beside floor"):
        load_floor_panels(
            replace(H200, processes=others, sides=[side for side in H200.sides if "unknown" not in side.implementation])
        )


def test_the_picture_is_written_and_told_in_sentences(tmp_path: Path) -> None:
    picture = floor_picture(H200, tmp_path / "new")
    assert imread(picture.path).shape[1] == 1200
    assert "lm_head frozen: known takes 26.94 ms, 1.080 x the floor, and 263.2 MiB above the inputs" in picture.sentences
    assert "lm_head trainable: floor takes 37.56 ms" in picture.sentences


def test_a_folder_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--out: expected a folder, .*File exists"):
        floor_picture(H200, tmp_path / "file")
