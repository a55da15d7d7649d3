"""The crossover chart: what it says, where it says it, and that no text is clipped or covers another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from frostline.dashboards import theme
from frostline.dashboards.charts import chosen_metrics, crossover_chart, crossover_pictures, draw_crossover, overlay
from frostline.dashboards.frame import Scale, plain_length
from frostline.dashboards.placement import Box
from frostline.results.crossover import Panel
from frostline.results.evidence import Evidence
from frostline.results.lines import Series, compare_lines
from frostline.results.record import (
    STEP_TIME,
    Case,
    Machine,
    ProcessRecord,
    Role,
    Sample,
    Session,
    SideRecord,
    Status,
    UsageError,
)

GIB = 2.0**30
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
TITLE = "GRPO head, forward and backward: peak memory over sequence length"
CAPTION = "NVIDIA H200, bf16, vocab 151,936, hidden 4096; measured. Peak of allocated bytes, inputs and weights included."


def affine(
    label: str, fixed: float, each: float, count: int = len(LENGTHS), *, oom: bool = False, predicted: bool = False
) -> Series:
    """`fixed + each * length` GiB at the first `count` lengths."""
    xs = LENGTHS[:count]
    return Series(label, xs, [(fixed + each * x) * GIB for x in xs], LENGTHS[count] if oom else None, predicted)


def timed(
    label: str, fixed: float, each: float, count: int = len(LENGTHS), *, spread: float = 0.02, oom: bool = False
) -> Series:
    """`fixed + each * length` ms at the first `count` lengths, with a spread of that share."""
    xs = LENGTHS[:count]
    values = [(fixed + each * x) * 1e6 for x in xs]
    spreads = [spread * value for value in values]
    return Series(label, xs, values, LENGTHS[count] if oom else None, metric=STEP_TIME, spreads=spreads)


def seven(title: str) -> Panel:
    """Every implementation that is compared: lines that crowd, cross at nearly one place, end early, and run out of memory."""
    return panel(
        title,
        timed("torch", 0.1, 0.0046),
        timed("unpruned", 3.6, 0.0046),
        timed("pruned", 3.5, 0.0034),
        timed("torch_compile", 0.1, 0.004, 6, oom=True),
        timed("liger", 9, 0.009),
        timed("trl", 0.12, 0.0052, 5),
        timed("cce", 3.6, 0.0035),
    )


def panel(title: str, *lines: Series) -> Panel:
    """The others against the first."""
    return Panel(title, lines, [compare_lines(line, lines[0], "seq_len") for line in lines[1:]])


def waves() -> Panel:
    """Two lines that cross twice."""
    torch = Series("torch", LENGTHS, [x * GIB for x in (2.0, 3.0, 4.2, 5.0, 7.0, 12.0, 22.0)])
    pruned = Series("pruned", LENGTHS, [x * GIB for x in (1.6, 2.9, 4.6, 6.0, 7.6, 11.0, 15.0)])
    return panel("lm_head frozen", torch, pruned)


CHARTS: dict[str, Sequence[Panel]] = {
    "once": [
        panel("lm_head frozen", affine("torch", 1.2, 0.0015), affine("pruned", 2.2, 0.0003)),
        panel("lm_head trainable", affine("torch", 2.4, 0.0015), affine("unpruned", 6, 0.0003), affine("pruned", 5.4, 0.0003)),
    ],
    "twice": [waves()],
    "never": [
        panel("lm_head frozen", affine("unpruned", 4.8, 0.0006), affine("torch", 6, 0.005), affine("pruned", 1.5, 0.0003))
    ],
    "same": [panel("lm_head trainable", affine("unpruned", 4.8, 0.0006), affine("pruned", 4.8, 0.0006))],
    "out of memory": [
        panel(
            "lm_head frozen",
            affine("torch", 1.2, 0.005, 5, oom=True),
            affine("unpruned", 4.8, 0.0006, 6, oom=True),
            affine("pruned", 1.5, 0.0003),
        ),
        panel(
            "lm_head trainable",
            affine("torch", 2.4, 0.005, 4, oom=True),
            affine("unpruned", 4.8, 0.0006, 4, oom=True),
            affine("a_name_of_some_length", 1.6, 0.0003),
            affine("pruned", 1.5, 0.0003),
            Series("liger", [], [], 256),
        ),
    ],
    "measured and predicted": overlay(
        [panel("lm_head frozen", affine("torch", 1.2, 0.005, 5, oom=True), affine("pruned", 1.5, 0.0003))],
        [panel("lm_head frozen", affine("torch", 1.2, 0.0049, predicted=True), affine("pruned", 1.5, 0.00029, predicted=True))],
    ),
    "seven sides": [seven("lm_head frozen"), seven("lm_head trainable")],
    "seven sides of memory": [
        panel(
            "lm_head frozen",
            affine("torch", 1.1, 0.00147),
            *(
                affine(name, 1 + i / 9, 1e-4 * i)
                for i, name in enumerate(("unpruned", "pruned", "torch_compile", "liger", "cce"))
            ),
            affine("trl", 0.5, 0.0005, 6, oom=True),
        )
    ],
    "times near each other": [panel("lm_head frozen", timed("torch", 20, 0.001, spread=0.15), timed("pruned", 22, 0.0004))],
    "wide range": [panel("", Series("torch", LENGTHS, [20e6 * 2.3**i for i in range(7)]), affine("pruned", 0.3, 1e-5))],
    "one length": [
        panel("lm_head frozen", affine("torch", 1, 0.001, 1), affine("pruned", 0.5, 0.001, 1)),
        Panel("nothing", [], []),
    ],
    "many lengths": [
        panel("a", Series("torch", range(100, 3000, 100), [x * 1e6 for x in range(100, 3000, 100)])),
        panel("b", affine("pruned", 1.5, 0.0003)),
        panel("c", affine("unpruned", 1.5, 0.0003)),
    ],
}


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with theme.applied():
        yield


def draw(panels: Sequence[Panel], caption: str = CAPTION) -> Figure:
    times = any(line.metric is STEP_TIME for one in panels for line in one.lines)
    label = "Step time" if times else "Peak memory"
    return draw_crossover(panels, x_label="Sequence length (tokens)", y_label=label, title=TITLE, caption=caption)


def texts(figure: Figure) -> list[tuple[str, Box]]:
    """Every text that shows, with its place in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    extents = [
        (text.get_text(), text.get_window_extent(canvas.get_renderer()))
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip()
    ]
    return [(words, Box(e.x0, e.y0, e.x1, e.y1)) for words, e in extents]


def words(figure: Figure) -> list[str]:
    return [text for text, _ in texts(figure)]


@pytest.mark.parametrize("panels", CHARTS.values(), ids=CHARTS.keys())
def test_no_text_is_clipped_or_covers_another(panels: Sequence[Panel]) -> None:
    figure = draw(panels)
    placed = texts(figure)
    page = Box(0, 0, figure.bbox.width, figure.bbox.height)
    assert [text for text, box in placed if not box.within(page)] == []
    assert [(a[0], b[0]) for a, b in itertools.combinations(placed, 2) if a[1].overlaps(b[1])] == []


@pytest.mark.parametrize("panels", CHARTS.values(), ids=CHARTS.keys())
def test_every_line_lies_within_its_axes(panels: Sequence[Panel]) -> None:
    for axes in draw(panels).axes:
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        for line in axes.lines:
            assert all(left <= x <= right for x in line.get_xdata()), line
            assert all(low <= y <= high for y in line.get_ydata()), line


@pytest.mark.parametrize("name", ["once", "twice"])
def test_crossings_are_ringed_where_the_drawn_lines_meet_and_told_in_free_space(name: str) -> None:
    figure = draw(CHARTS[name])
    placed = dict(texts(figure))
    for axes, one in zip(figure.axes, CHARTS[name], strict=True):
        crossings = [crossing for comparison in one.comparisons for crossing in comparison.crossings]
        rings = [line for line in axes.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata()) == 1]
        assert [(ring.get_xdata()[0], ring.get_ydata()[0]) for ring in rings] == sorted((c.x, c.value) for c in crossings)
        curves = [line for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 2]
        for text, crossing in {c.text: c for c in sorted(crossings, key=lambda c: -c.x)}.items():
            label = placed[text]
            assert label.distance(axes.transData.transform((crossing.x, crossing.value))) < 60
            for curve in curves:
                pixels = axes.transData.transform(curve.get_xydata())
                assert not any(label.cuts((tuple(a), tuple(b))) for a, b in itertools.pairwise(pixels))
    assert [len(c.crossings) for one in CHARTS[name] for c in one.comparisons] == {"once": [1, 1, 1], "twice": [2]}[name]


def test_two_lines_that_cross_a_third_at_the_same_place_get_one_mark() -> None:
    lines = affine("torch", 1.2, 0.0015), affine("unpruned", 2.2, 0.0003), affine("pruned", 2.2, 0.0003)
    figure = draw([panel("lm_head trainable", *lines)])
    assert words(figure).count("512–1,024") == 1


def test_a_line_that_saves_everywhere_says_so() -> None:
    figure = draw(CHARTS["never"])
    assert any("pruned needs less than unpruned at every seq_len measured" in text for text in words(figure))
    assert not [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"], "no ring without a crossing"


def test_out_of_memory_is_a_marked_end() -> None:
    figure = draw(CHARTS["out of memory"])
    frozen = figure.axes[0]
    marks = {to_hex(line.get_color()): line.get_xdata()[0] for line in frozen.lines if line.get_marker() == "x"}
    looks = theme.looks(["torch", "unpruned", "pruned"])
    assert marks == {looks["torch"].colour: 8192, looks["unpruned"].colour: 16384}
    shown = words(figure)
    assert shown.count("torch: OOM") == 2 and shown.count("unpruned: OOM") == 1 and "liger: OOM" in shown
    assert shown.count("unpruned") == shown.count("OOM") == 1, "at the last length the name is in the gutter"
    heights = [line.get_ydata()[0] for line in figure.axes[1].lines if line.get_marker() == "x" and line.get_xdata()[0] == 4096]
    assert len(set(heights)) == 2, "two ends at one length stand apart"


def test_a_prediction_goes_on_where_the_measurement_ran_out() -> None:
    figure = draw(CHARTS["measured and predicted"])
    shown = words(figure)
    assert {"measured", "predicted by the cost model", "torch", "OOM"} <= set(shown)
    assert shown.count("torch") == 1, "one name for both lines"
    styles = {line.get_linestyle() for line in figure.axes[0].lines if len(line.get_xdata()) > 2}
    assert {"-", "--"} <= styles


def test_a_prediction_alone_is_dashed_and_needs_no_key() -> None:
    figure = draw([panel("lm_head frozen", affine("torch", 1, 0.001, predicted=True))])
    assert "measured" not in words(figure)
    assert figure.axes[0].lines[0].get_linestyle() == "--"


def test_overlay_keeps_what_was_measured_and_adds_panels_that_were_not() -> None:
    measured = [panel("frozen", affine("torch", 1, 0.001), affine("pruned", 0.5, 0.001))]
    predicted = [panel("frozen", affine("torch", 1, 0.001, predicted=True)), panel("trainable", affine("torch", 2, 0.001))]
    frozen, trainable = overlay(measured, predicted)
    assert [line.predicted for line in frozen.lines] == [False, False, True]
    assert frozen.comparisons == measured[0].comparisons
    assert trainable == predicted[1]


def test_axes_carry_plain_lengths_and_a_unit() -> None:
    figure = draw(CHARTS["once"])
    shown = words(figure)
    assert {"256", "512", "1K", "16K", "Peak memory (GiB)", "Sequence length (tokens)", "0"} <= set(shown)
    assert {axes.get_ylim() for axes in figure.axes} == {figure.axes[0].get_ylim()}, "the panels share a scale"
    assert figure.axes[0].get_ylim()[0] == 0


def test_a_range_too_wide_for_zero_is_logarithmic_with_a_unit_at_each_tick() -> None:
    figure = draw(CHARTS["wide range"])
    assert figure.axes[0].get_yscale() == "log"
    assert {"16 MiB", "1 GiB"} <= set(words(figure))


def test_times_are_drawn_in_ms_with_bars_on_a_logarithmic_axis() -> None:
    figure = draw(CHARTS["seven sides"])
    shown = words(figure)
    assert figure.axes[0].get_yscale() == "log"
    assert {"Step time (ms)", "2", "5", "10", "100"} <= set(shown)
    looks = theme.looks(["torch", "pruned"])
    torch = CHARTS["seven sides"][0].lines[0]
    bars = [
        sorted(line.get_ydata())
        for line in figure.axes[0].lines
        if line.get_marker() == "_" and to_hex(line.get_color()) == looks["torch"].colour
    ]
    assert bars == [pytest.approx([0.98 * value, 1.02 * value]) for value in torch.values]
    assert not [line for line in draw(CHARTS["once"]).axes[0].lines if line.get_marker() == "_"], "a peak has no bar"


def test_every_side_of_seven_is_named_in_a_colour_of_its_own() -> None:
    figure = draw([seven("lm_head frozen")])
    names = {text.get_text(): to_hex(text.get_color()) for text in figure.axes[0].texts}
    sides = ["torch", "unpruned", "pruned", "torch_compile", "liger", "trl", "cce"]
    assert {*sides, "OOM"} <= set(names) and names["OOM"] == names["torch_compile"]
    assert len({names[side] for side in sides}) == 7
    assert len({look.marker for look in theme.looks(sides).values()}) == 7


def test_what_is_within_the_noise_is_said_and_not_ringed() -> None:
    figure = draw(CHARTS["times near each other"])
    assert " ".join(words(figure)).count("within the noise at 256 to 8,192") == 1
    assert not [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]


def test_sides_of_which_the_same_is_to_be_said_share_a_sentence() -> None:
    shown = " ".join(words(draw(CHARTS["out of memory"])))
    assert shown.count("torch runs out of memory") == 2, "once a panel, not once a comparison"


def test_bytes_and_times_do_not_share_an_axis() -> None:
    with pytest.raises(ValueError, match="one kind of metric, got bytes and timing"):
        draw([panel("", affine("torch", 1, 0.001)), panel("", timed("torch", 1, 0.001))])


@pytest.mark.parametrize("least", [3e3, 9.9e5, 1e6, 4.4e6])
@pytest.mark.parametrize("ratio", [1.0, 5.0, 9.0, 64.0, 900.0, 1e6])
def test_scales_of_times_hold_their_values_with_round_ticks(least: float, ratio: float) -> None:
    scale = Scale.of([least, least * ratio], 2, timed=True)
    ticks = scale.ticks()
    assert scale.low <= least and least * ratio < scale.crown(1) < scale.crown(0) < scale.high
    assert 2 <= len(ticks) <= 9 and scale.low <= ticks[0] and ticks[-1] <= scale.high
    assert scale.unit == "ms" and all(
        float(label.replace(",", "")) == pytest.approx(tick / 1e6) for label, tick in zip(scale.labels(), ticks, strict=True)
    )


@pytest.mark.parametrize("top", [1.0, 900.0, 1.2e3, 3e6, 7e7, 6.1e9, 5e11, 1e12])
@pytest.mark.parametrize("crowns", [0, 1, 3])
def test_scales_hold_their_values_with_few_round_ticks(top: float, crowns: int) -> None:
    for peaks in ([top, top / 2], [top, top / 1000]):
        scale = Scale.of(peaks, crowns)
        ticks = scale.ticks()
        assert 3 <= len(ticks) <= 7 and scale.low <= ticks[0] and ticks[-1] <= scale.high
        assert scale.low <= min(peaks) and top <= scale.high
        marks = [scale.crown(index) for index in range(crowns)]
        assert all(top < mark < scale.high for mark in marks) and marks == sorted(marks, reverse=True)


def test_lengths_read_plainly() -> None:
    assert [plain_length(x) for x in (64, 512, 1000, 1024, 1536, 2980, 16384, 131072)] == [
        *("64", "512", "1,000", "1K", "1.5K", "2,980", "16K", "128K")
    ]


def test_many_lengths_get_ticks_at_powers_of_two() -> None:
    ticks = [label.get_text() for label in draw(CHARTS["many lengths"]).axes[0].get_xticklabels()]
    assert ticks == ["128", "512", "2K"]


def test_an_implementation_looks_the_same_in_every_chart() -> None:
    alone, among = theme.looks(["pruned"]), theme.looks(["torch", "pruned", "mine", "liger"])
    assert alone["pruned"] == among["pruned"]
    assert theme.looks(["mine"])["mine"] == among["mine"]
    unknown = theme.looks(f"side {index}" for index in range(6))
    assert len({look.colour for look in unknown.values()}) == 6
    assert len(theme.looks(str(index) for index in range(20))) == 20


def test_writes_a_picture_of_1200_pixels_and_leaves_matplotlib_alone(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    crossover_chart(
        CHARTS["twice"], x_label="Length", y_label="Peak", title=TITLE, path=tmp_path / "chart.png", caption=CAPTION
    )
    assert imread(tmp_path / "chart.png").shape[1] == 1200
    crossover_chart(CHARTS["twice"], x_label="Length", y_label="Peak", title=TITLE, path=str(tmp_path / "chart.svg"))
    assert "</svg>" in (tmp_path / "chart.svg").read_text()
    assert dict(matplotlib.rcParams) == before


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one panel"):
        draw([])
    with pytest.raises(ValueError, match="positive x"):
        draw([Panel("frozen", [Series("torch", [0, 1], [1, 2])], [])])
    with pytest.raises(ValueError, match="xyz"):
        crossover_chart(CHARTS["twice"], x_label="x", y_label="y", title="t", path=tmp_path / "chart.xyz")


def test_a_title_and_a_caption_of_any_length_are_wrapped() -> None:
    figure = draw_crossover(
        CHARTS["once"], x_label="Length", y_label="Peak", title=f"{TITLE}; {TITLE}", caption=" ".join([CAPTION] * 4)
    )
    page = Box(0, 0, figure.bbox.width, figure.bbox.height)
    assert all(box.within(page) for _, box in texts(figure))


def session(role: Role, *, vocab: int = 4096, name: str = "id") -> Evidence:
    """A session of three sides at two lengths: torch is faster at 512, `pruned` at 4,096; a peer could not run."""
    cases = [Case("grpo", "v1", {"seq_len": x, "lm_head": "frozen", "vocab": vocab}) for x in (512, 4096)]
    sides = [SideRecord(i, name, "installed", "installed", "s", i == 0) for i, name in enumerate(("pruned", "torch", "liger"))]
    machine = Machine({"gpu": "NVIDIA H200"})
    one = Session(name, "frostline chart crossover", "2026-01-01", machine.id, "cuda", {})
    processes = []
    for number, case in enumerate(cases):
        for position, (peak, time) in enumerate(((2.0, 5e6), (1.0 + 4 * number, (2e6, 20e6)[number]))):
            times = {"step_time": time} if role is Role.MEASURE else {}
            measured = {"peak_allocated": peak * GIB, **times}
            processes.append(
                ProcessRecord(f"{number}{position}", "id", position, case.id, role, 0, Status.OK, measurements=measured)
            )
        processes.append(ProcessRecord(f"{number}2", "id", 2, case.id, role, 0, Status.SKIPPED, "no package liger_kernel"))
    return Evidence(one, machine, sides, cases, processes)


def test_memory_and_time_of_one_session_are_two_pictures(tmp_path: Path) -> None:
    shown = [(session(Role.PREDICT), Role.PREDICT), (session(Role.MEASURE), Role.MEASURE)]
    memory, time = crossover_pictures(shown, tmp_path, samples=lambda _: [Sample("step_time", 0, 0, 5e6)])
    assert (memory.path.name, time.path.name) == ("crossover.png", "crossover-time.png")
    assert memory.path.is_file() and time.path.is_file()
    assert memory.sentences == [
        "lm_head frozen (measured and predicted): pruned needs less than torch from 512–4,096 on",
        "lm_head frozen (measured and predicted): liger is left out: no package liger_kernel",
    ]
    assert time.sentences == [
        "lm_head frozen (measured): pruned is faster than torch from 512–4,096 on",
        "lm_head frozen (measured): liger is left out: no package liger_kernel",
    ]


def test_times_of_the_measured_sizes_alone_are_drawn(tmp_path: Path) -> None:
    shown = [(session(Role.PREDICT, vocab=128256), Role.PREDICT), (session(Role.MEASURE), Role.MEASURE)]
    pictures = crossover_pictures(shown, tmp_path, "pruned")
    assert [one.path.name for one in pictures] == ["crossover-predicted.png", "crossover-measured.png", "crossover-time.png"]
    assert pictures[2].sentences[0] == "lm_head frozen (measured): torch is faster than pruned up to 512–4,096"
    assert [one.path.name for one in crossover_pictures(shown, tmp_path, metrics=["step_time"])] == ["crossover-time.png"]
    with pytest.raises(UsageError, match="--metric: times are measured, not predicted"):
        crossover_pictures(shown[:1], tmp_path, metrics=["step_time"])


def test_sessions_of_one_kind_and_other_sizes_are_pictures_of_their_own(tmp_path: Path) -> None:
    shown = [(session(Role.MEASURE, vocab=vocab, name=f"s{vocab}"), Role.MEASURE) for vocab in (4096, 8192)]
    pictures = crossover_pictures(shown, tmp_path)
    assert [one.path.name for one in pictures] == [
        *("crossover-measured-s4096.png", "crossover-measured-s8192.png"),
        *("crossover-time-measured-s4096.png", "crossover-time-measured-s8192.png"),
    ]
    assert all(one.path.is_file() for one in pictures)


def test_sessions_of_one_kind_at_the_same_sizes_are_refused(tmp_path: Path) -> None:
    shown = [(session(Role.MEASURE, name=name), Role.MEASURE) for name in ("first", "second")]
    with pytest.raises(UsageError, match="--session: first and second are both measured at the same sizes"):
        crossover_pictures(shown, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def without_memory() -> Evidence:
    """The measured session of a suite whose steps allocate nothing that is counted."""
    whole = session(Role.MEASURE)
    timed_only = [
        replace(record, measurements={name: value for name, value in record.measurements.items() if name == "step_time"})
        for record in whole.processes
    ]
    return replace(whole, processes=timed_only)


def test_what_a_session_has_is_drawn_where_no_metric_is_named(tmp_path: Path) -> None:
    shown = [(without_memory(), Role.MEASURE)]
    assert [one.path.name for one in crossover_pictures(shown, tmp_path)] == ["crossover-time.png"]
    with pytest.raises(UsageError, match="session id has no measured peak_allocated; it has --metric step_time"):
        crossover_pictures(shown, tmp_path, metrics=["peak_allocated"])
    nothing = replace(shown[0][0], processes=[])
    with pytest.raises(UsageError, match="neither peak_allocated nor step_time in session id"):
        crossover_pictures([(nothing, Role.MEASURE)], tmp_path)


def test_a_point_that_was_skipped_is_told_in_print_as_in_the_picture(tmp_path: Path) -> None:
    whole = session(Role.MEASURE)
    skipped = [
        replace(record, status=Status.SKIPPED, measurements={})
        if (record.position, record.case_id) == (0, whole.cases[0].id)
        else record
        for record in whole.processes
    ]
    (picture,) = crossover_pictures([(replace(whole, processes=skipped), Role.MEASURE)], tmp_path, metrics=["step_time"])
    assert picture.sentences[:2] == [
        "lm_head frozen (measured): pruned is faster than torch at every seq_len measured",
        "lm_head frozen (measured): pruned at seq_len 512: skipped, not drawn",
    ]


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_is_a_file_is_refused_by_name(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--out: expected a folder, .*(File exists|Not a directory)"):
        crossover_pictures([(session(Role.MEASURE), Role.MEASURE)], tmp_path / "file" / below)


def test_metrics_are_chosen_by_name() -> None:
    assert list(chosen_metrics(None)) == list(chosen_metrics("")) == ["peak_allocated", "step_time"]
    assert chosen_metrics("step_time,step_time") == ["step_time"]
    with pytest.raises(UsageError, match="--metric: expected peak_allocated or step_time, got 'flops'"):
        chosen_metrics("step_time,flops")
