"""Bars from the suite to the printed line: judged when measured, stored with the session, and drawn against the floor."""

from __future__ import annotations

from pathlib import Path

import pytest

SUITE = """
import time
import torch
from frostline.harness import Bar, Step, suite

@suite(
    axes={"lm_head": ["frozen"], "n": [256]},
    implementations=["floor", "mine"],
    bars=[
        Bar("time over the floor", "mine", "step_time", at_most=50, against="floor", where={"lm_head": "frozen"}),
        Bar("error", "mine", "x.maximum", at_most=1e-3, where={"lm_head": "frozen"}),
        Bar("trained", "mine", "step_time", at_most=1, where={"lm_head": "trainable"}),
    ],
)
def naps(implementation, device, *, lm_head, n):
    x = torch.ones(n)

    def run():
        time.sleep(0.001 if implementation == "floor" else 0.002)
        return x.clone() if implementation == "mine" else x.sum()

    return Step(run=run, outputs=lambda: {"x": 1.5}, reference=lambda: {"x": 1.0}, tolerance=1.0)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    file = tmp_path / "bench.py"
    file.write_text(SUITE)
    return file


def lines_of(text: str) -> dict[str, str]:
    """The lines of the table of bars, by their first words."""
    table = text.split("Bars of naps: ")[1].split("\n\n")[1].splitlines()[2:]
    return {line.split("  ")[0].strip(): line for line in table}


def test_bars_are_printed_after_the_table_and_again_from_the_store(frostline, bench, tmp_path):
    db, markdown = tmp_path / "naps.db", tmp_path / "naps.md"
    done = frostline("run", bench, "--rounds", 2, "--db", db, "--markdown", markdown)
    assert done.returncode == 0, done.stderr
    assert "Bars of naps: 1 hold, 1 missed, 1 not measured" in done.stdout
    lines = lines_of(done.stdout)
    assert "<= 50 x floor" in lines["time over the floor"] and "holds" in lines["time over the floor"]
    assert "5.00e-01  missed" in lines["error"]
    assert "not measured  no case with lm_head=trainable" in lines["trained"]
    page = markdown.read_text()
    assert (
        page.startswith("**naps on")
        and "**Bars of naps: 1 hold" in page
        and "| error | &lt;= 1.00e-03 | 5.00e-01 | missed |" in page
    )

    bench.write_text(SUITE.replace("at_most=50", "at_most=0.1"))
    again = frostline("report", "--db", db)
    assert lines_of(again.stdout) == lines, "the bars that it was measured under, whatever the suite's file says by now"

    chart = ("chart", "floor", "--db", db, "--out", tmp_path / "charts")
    refused = frostline(*chart)
    assert refused.returncode == 2 and "has no session of head_floor; measure one with frostline run" in refused.stderr
    drawn = frostline(*chart, "--session", "last")
    assert drawn.returncode == 0, drawn.stderr
    assert "lm_head frozen: mine takes" in drawn.stdout and "x the floor, and 1.000 KiB above the inputs" in drawn.stdout
    assert (tmp_path / "charts" / "floor.png").is_file()


def test_a_bar_that_cannot_be_is_one_clear_line(frostline, bench, tmp_path):
    bench.write_text(SUITE.replace('"mine", "step_time", at_most=1,', '"theirs", "step_time", at_most=1,'))
    done = frostline("run", bench, "--db", tmp_path / "naps.db")
    assert done.returncode == 2
    assert "suite naps: bar 'trained': side='theirs' is no implementation; it has floor, mine" in done.stderr
