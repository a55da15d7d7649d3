"""The site in a real browser: Chromium, driven by Playwright. `make test-browser` runs these; they fail where it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from big_database import fill

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=\"document.title='owned'\">$\\frac"
BENCH = """
from frostline.harness import suite

@suite(axes={"size": [2000, 20000]}, implementations=["library", "by_hand", "unfinished"])
def total(implementation, device, *, size):
    numbers = list(range(size))
    def by_hand():
        found = 0
        for number in numbers:
            found += number
        return found
    if implementation == "unfinished":
        raise RuntimeError("<b>not</b> written yet")
    return (lambda: sum(numbers)) if implementation == "library" else by_hand
"""
# As root, and where nothing may be fetched: no sandbox, and none of the browser's own errands.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a real run, a comparison of two pages and a suite with a hostile name."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "bench.py").write_text(BENCH)
    db = str(folder / "kept.db")
    fill(folder / "kept.db", 1, 14, 8, 4)
    fill(folder / "kept.db", 1, 2, 8, 2, suite=HOSTILE)
    command = [sys.executable, "-m", "frostline.harness"]
    measure = ["run", str(folder / "bench.py"), "--device", "cpu", "--rounds", "1", "--isolation", "fork", "--db", db]
    for words in (measure, ["site", "build", "--db", db, "--out", str(folder / "out")]):
        done = subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    name = os.environ.get("CHROMIUM", "chromium")
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} not found: install it (Debian: apt-get install chromium) or name one with CHROMIUM")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab that fails the test for whatever it complains of or asks the network for."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else complaints.append(asked.url))
    tab.on("requestfailed", lambda asked: complaints.append(f"not loaded: {asked.url}"))
    yield tab
    context.close()
    assert not complaints


def pages_of(site: Path) -> list[Path]:
    found = sorted(site.glob("*.html"))
    assert {path.name.split("-")[0].removesuffix(".html") for path in found} >= {"index", "crossover", "session", "compare"}
    return found


def named(site: Path, kind: str, title: str) -> Path:
    """The first page of a kind whose title begins so."""
    return next(path for path in pages_of(site) if path.name.startswith(kind) and f"<title>{title}" in path.read_text())


@pytest.mark.parametrize("width", [1200, 390])
def test_every_page_loads_and_fits(site: Path, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for path in pages_of(site):
        page.goto(path.as_uri())
        assert page.locator("h1").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
        for chart in page.locator(".chart svg").all():
            box = chart.bounding_box()
            assert box is not None and 250 < box["width"] <= width and box["height"] > 50, path.name


def test_no_link_leads_nowhere(site: Path, page: Page) -> None:
    for path in pages_of(site):
        page.goto(path.as_uri())
        for link in page.evaluate("[...document.querySelectorAll('a[href]')].map((a) => a.getAttribute('href'))"):
            name, _, anchor = link.partition("#")
            target = site / name if name else path
            assert target.is_file(), f"{path.name}: {link}"
            assert not anchor or f'id="{anchor}"' in target.read_text(), f"{path.name}: {link}"


def test_a_cell_leads_to_its_evidence(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    cell = page.locator(".cell", has_text="vocab=2,000 head=big3").first
    assert cell.locator("b").first.inner_text() == "slower"
    cell.click()
    row = page.locator("tr:target")
    assert "vocab=2,000 head=big3" in row.inner_text() and "slower" in row.inner_text()
    assert page.locator(".chart svg [data-tip]").count() > 12 * 8


def test_the_worst_comes_first(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    order = ["broken", "slower", "more", "incomparable", "inconclusive", "same", "less", "faster"]
    worst = [
        order.index(word) for word in page.locator("#matrix tbody tr .cells li:first-child b:first-child").all_inner_texts()
    ]
    assert worst == sorted(worst) and len(worst) == 4 and worst[0] == 0


def test_the_matrix_is_filtered_by_keyboard(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    form = page.locator("form[data-for=matrix]")
    every = page.locator("#matrix .cell:visible").count()
    form.locator("[data-text]").focus()
    page.keyboard.type("by_hand against")
    assert page.locator("#matrix .cell:visible").count() == 2
    assert form.locator("output").inner_text() == f"2 of {every} shown"
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.keyboard.press("Tab")
    page.keyboard.type("slower")
    shown = page.locator("#matrix .cell:visible").all_inner_texts()
    assert shown and all("slower" in text for text in shown) and len(shown) < every
    assert page.locator("#matrix tbody tr:visible").count() == 1


def test_a_table_is_sorted_by_keyboard(site: Path, page: Page) -> None:
    page.goto(named(site, "compare", "big: ").as_uri())
    column = page.locator("#ratios th").filter(has=page.locator("button", has_text="ratio"))
    column.locator("button").focus()
    for key, direction in (("Enter", "ascending"), ("Space", "descending")):
        page.keyboard.press(key)
        assert column.get_attribute("aria-sort") == direction
        ratios = [float(text) for text in page.locator("#ratios tbody td:nth-child(5)").all_inner_texts() if text != "-"]
        assert ratios == sorted(ratios, reverse=direction == "descending") and ratios[0] != ratios[-1]


def test_a_point_says_what_it_is(site: Path, page: Page) -> None:
    page.goto(named(site, "compare", "big: ").as_uri())
    point = page.locator(".chart svg [data-tip]").first
    point.hover()
    assert (
        page.locator(".tip").inner_text() == point.get_attribute("data-tip") and "round 1" in page.locator(".tip").inner_text()
    )
    page.keyboard.press("Escape")
    assert page.locator(".tip").is_hidden()


def test_a_hostile_name_stays_text(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    assert page.locator("#matrix th", has_text=HOSTILE).count() == 1
    hostile = [path for path in pages_of(site) if "onerror" in path.read_text()]
    assert len(hostile) >= 3
    for path in hostile:
        page.goto(path.as_uri())
        assert page.locator("img").count() == 0 and "owned" not in page.title()[:6]
    page.goto((next(path for path in hostile if path.name.startswith("compare"))).as_uri())
    assert page.locator("h1").inner_text().startswith(HOSTILE)


def test_what_failed_is_told(site: Path, page: Page) -> None:
    page.goto(named(site, "session", "total, ").as_uri())
    told = page.locator(".failure").first
    assert "error" in told.inner_text() and "<b>not</b> written yet" in told.locator("pre").first.inner_text()
    assert "Traceback" in told.locator("pre").last.inner_text()


def test_the_print_view_is_whole(site: Path, page: Page) -> None:
    """On paper nothing is scrolled, folded or filtered away, and nothing is wider than the sheet."""
    page.set_viewport_size({"width": 720, "height": 1000})
    for path in (next(site.glob("session-*.html")), next(site.glob("compare-*.html")), site / "index.html"):
        page.goto(path.as_uri())
        rows = page.locator("[data-item]").count()
        for field in page.locator("[data-text]").all():
            field.fill("nothing has this")
        page.emulate_media(media="print")
        assert page.locator("[data-item]:visible").count() == rows > 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 720, path.name
        assert page.locator("details pre, details table").evaluate_all("(all) => all.every((one) => one.checkVisibility())")
        fits = "(all) => all.every((one) => one.scrollWidth < one.clientWidth + 2 && one.scrollHeight < one.clientHeight + 2)"
        assert page.locator(".wide, pre").evaluate_all(fits), path.name
        assert page.locator(".filters:visible").count() == 0
        page.emulate_media(media="screen")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(site: Path, browser: Browser, scheme: str) -> None:
    """All of its rules in the light; in the dark, where only the colours are others, that of the contrast."""
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme=scheme, bypass_csp=True)
    tab = context.new_page()
    rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    for path in (site / "index.html", named(site, "session", "total, "), named(site, "compare", "total: ")):
        tab.goto(path.as_uri())
        found = Axe().run(tab, options=rules).response
        assert len(found["passes"]) >= (1 if rules else 15)
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        assert not [(one["id"], one["nodes"][0]["html"]) for one in serious], path.name
    context.close()
