"""The site without a browser: what is on which page, that no page grows with the database, and what is refused."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from big_database import MACHINE, SIDES, fill
from matplotlib.figure import Figure

from frostline.dashboards import ratios, theme
from frostline.dashboards.site import comparison, findings, grid, session
from frostline.dashboards.site.build import build_site
from frostline.dashboards.site.findings import find_comparisons
from frostline.dashboards.site.serve import serve
from frostline.dashboards.site.style import COLOURS
from frostline.dashboards.site.svg import inline_svg
from frostline.results.evidence import Evidence
from frostline.results.judge import judge_across, judge_session
from frostline.results.record import Case, Machine, ProcessRecord, Role, Sample, Session, Status, UsageError, Verdict
from frostline.results.store import Store


def build(db: Path, out: Path) -> Path:
    with Store.open(db, create=False) as store:
        return build_site(store, out, lambda session: store.verdicts(session.id)).index.parent


def rows_of(page: Path, table: str) -> int:
    found = re.search(rf'<table id="{table}">.*?</table>', page.read_text(), re.DOTALL)
    return found.group().count("<tr data-item") if found else 0


def test_a_page_does_not_grow_with_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost where tables go on on further pages, and no page has more than its share."""
    monkeypatch.setattr(grid, "ROWS_A_PAGE", 30)
    monkeypatch.setattr(findings, "CASES_A_PAGE", 4)
    monkeypatch.setattr(comparison, "CASES_A_PAGE", 4)
    fill(tmp_path / "kept.db", 1, 10, 6, 1)
    site = build(tmp_path / "kept.db", tmp_path / "site")
    sessions, compared = sorted(site.glob("session-*.html")), sorted(site.glob("compare-*.html"))
    processes = [rows_of(page, "processes") for page in sessions]
    assert sum(processes) == 10 * 6 * 2 and max(processes) == 30
    assert [rows_of(page, "rounds") for page in compared] and sum(rows_of(page, "rounds") for page in compared) == 10 * 6
    assert len(compared) == 3 and max(rows_of(page, "rounds") for page in compared) == 4 * 6
    assert max(page.stat().st_size for page in site.glob("*.html")) < 200_000
    assert (site / "index.html").read_text().count('class="cell ') == 10


def test_what_an_older_build_left_goes_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path / "kept.db", 1, 1, 6, 1)
    site = build(tmp_path / "kept.db", tmp_path / "site")
    (site / "session-old.html").write_text("gone")
    build(tmp_path / "kept.db", site)
    assert not (site / "session-old.html").exists() and (site / "assets/site.css").is_file()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/index.html").write_text("mine")
    with pytest.raises(UsageError, match=r"^--out: expected an empty folder or a site to replace, got .*mine"):
        build(tmp_path / "kept.db", tmp_path / "mine")
    assert (tmp_path / "mine/index.html").read_text() == "mine"


def test_a_site_needs_no_other_file_and_asks_for_none(tmp_path: Path) -> None:
    fill(tmp_path / "kept.db", 1, 2, 6, 1)
    site = build(tmp_path / "kept.db", tmp_path / "site")
    for page in site.glob("*.html"):
        text = page.read_text()
        assert not re.search(r"""(?:src|href)=["']?(?:https?:|//|/)""", text)
        assert text.lstrip().startswith("<!doctype html>")


def evidence(sides: Sequence[object] = SIDES, machine: Machine = MACHINE, **environment: object) -> Evidence:
    case = Case("big", "1", {"n": 1})
    sessions = Session(f"s-{machine.id}", "frostline compare", "2026-01-01T00:00:00+00:00", machine.id, "cpu", {})
    records = [
        ProcessRecord(
            f"p{side}", sessions.id, side, case.id, Role.MEASURE, 0, Status.OK, measurements={"flops": 1.0 + side},
            environment={"python": "3.11", "pid": side, **(environment if side else {})},
        )
        for side in (0, 1)
    ]  # fmt: skip
    return Evidence(sessions, machine, sides, [case], records)


def compared(found: Evidence, verdicts: Sequence[Verdict], bases: dict[str, Evidence] | None = None) -> comparison.Comparison:
    (one,) = find_comparisons(found, verdicts, bases or {})
    return one


def shown(one: comparison.Comparison) -> list[list[str]]:
    page = next(iter(comparison.comparison_pages(one, dict[str, list[Sample]]().__getitem__)))
    rows = page.content["environment"].rows
    return [["**" * each.strong + each.lines[0] + "**" * each.strong for each in row.entries] for row in rows]


def test_what_differs_around_the_sides_is_bold_and_comes_first() -> None:
    found = evidence(python="3.12")
    rows = shown(compared(found, judge_session(found)))
    assert ["**python**", "**3.11**", "**3.12**", "**differs**"] in rows[:4]
    assert ["device", "cpu", "cpu", "the same"] in rows[4:]
    assert not any("pid" in row[0] for row in rows)


def test_a_baseline_of_another_session_is_linked(tmp_path: Path) -> None:
    base, head = evidence(), evidence(machine=Machine({"cpu": "another", "cores": 4}))
    verdicts = judge_across(base, head)
    one = compared(head, verdicts, {base.session.id: base})
    assert one.base is base and base.session.id in one.name and base.session.id in one.baseline_name
    page = next(iter(comparison.comparison_pages(one, dict[str, list[Sample]]().__getitem__)))
    assert ["**machine cpu**", "**made up**", "**another**", "**differs**"] in shown(one)
    assert f'href="session-{base.session.id}.html"' in page.html(navigation=[], built="", database="")


def test_failures_that_are_alike_are_told_once() -> None:
    found = evidence()
    failed = [
        replace(found.processes[0], id=f"f{at}", status=Status.CRASH, reason="signal 11", stderr="x" * 9_000) for at in range(5)
    ]
    pages = list(session.session_pages(findings.Findings(replace(found, processes=failed), [])))
    (failure,) = pages[0].content["failures"]
    assert failure.where == ["main at n=1 (5 times)"] and len(failure.stderr) == session.STDERR_SHOWN


def test_a_chart_follows_the_theme_and_keeps_text_text() -> None:
    with theme.applied():
        figure = Figure(figsize=(2, 2))
        axes = figure.subplots()
        axes.set_title("<b>$\\frac", color=theme.INK)
        axes.plot([1, 2], [1, 2], "o", gid="points")
        svg = inline_svg(figure, name="one", label='"><script>', tips={"points": ["<i>a", "url(#b)"]})
        with pytest.raises(ValueError, match="points: 2 markers were drawn, with 1 tooltips"):
            inline_svg(figure, name="one", label="", tips={"points": ["a"]})
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == '"><script>' and "<script>" not in svg and "<style" not in svg
    assert [mark.get("data-tip") for mark in root.iter() if mark.get("data-tip")] == ["<i>a", "url(#b)"]
    assert f"var(--c{theme.INK[1:]}, {theme.INK})" in svg
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids)) and all(name.startswith("one-") for name in ids)
    assert {link[1:] for element in root.iter() if (link := element.get("href"))} <= set(ids)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_is_told_from_its_ground_in_light_and_dark() -> None:
    looks = {look.colour for look in (*theme._KNOWN.values(), *theme._REST)}
    assert looks <= set(theme.DARK)
    for place in (0, 1):
        page, tint = COLOURS["page"][place], COLOURS["tint"][place]
        for name in ("ink", "muted", "link", "bad", "open", "good"):
            assert contrast(COLOURS[name][place], page) >= 4.5, name
        assert contrast(COLOURS["ink"][place], tint) >= 4.5
        for colour in looks:
            assert contrast(theme.DARK[colour] if place else colour, page) >= (3.4 if not place else 4.5), colour


@pytest.mark.parametrize("effects", [(1.0, 1.02), (0.07, 9.0), (1.0, 1.0), (0.55, 1.0)])
def test_a_chart_of_ratios_holds_what_it_shows(effects: Sequence[float]) -> None:
    rows = [ratios.RatioRow(f"vocab=128,256 lm_head=trainable dtype={at} " * 2, "slower", [e] * 16, e, e * 0.98, e * 1.02, 0.03)
            for at, e in enumerate(effects)]  # fmt: skip
    with theme.applied():
        figure = ratios.draw_ratios(rows)
        figure.savefig("/dev/null", format="png")
        (axes,) = figure.axes
        width, height = figure.bbox.width, figure.bbox.height
        low, high = axes.get_xlim()
        labels = [label for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True) if low <= tick <= high]
        boxes = [text.get_window_extent() for text in (*axes.texts, axes.xaxis.label, *labels)]
    assert all(low <= effect <= high for effect in effects)
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
    assert not any(a.overlaps(b) for at, a in enumerate(boxes) for b in boxes[at + 1 :])
    assert 2 <= len([tick for tick in axes.get_xticks() if low <= tick <= high]) <= 8


def test_it_is_served_to_this_machine_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("here")
    address: list[str] = []
    ready = threading.Event()
    threading.Thread(target=serve, args=(tmp_path, 0, lambda at: (address.append(at), ready.set())), daemon=True).start()
    assert ready.wait(10)
    host, port = address[0].removeprefix("http://").rstrip("/").split(":")
    assert host == "127.0.0.1"

    def ask(name: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("GET", "/", headers={"Host": name})
        answer = connection.getresponse()
        return answer.status, answer.read()

    assert ask(f"localhost:{port}") == (200, b"here")
    assert ask(f"elsewhere.example:{port}")[0] == 403
    with pytest.raises(UsageError, match=rf"^--port: cannot listen on 127.0.0.1:{port} "):
        serve(tmp_path, int(port), address.append)
