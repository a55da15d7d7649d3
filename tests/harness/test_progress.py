"""The time left is estimated from the work that is done, not from how many parts it came in."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from frostline.harness.progress import Progress


@pytest.mark.parametrize(
    ("work", "left"),
    [
        ((1, 1, 1, 1), ["about 30 s left", "about 20 s left", "about 10 s left", "done"]),
        ((7, 7, 3, 3), ["about 19 s left", "about 9 s left", "about 5 s left", "done"]),
    ],
)
def test_parts_of_unequal_work(monkeypatch, work, left):
    clock = [0.0]
    monkeypatch.setattr("frostline.harness.progress.time.monotonic", lambda: clock[0])
    progress, said = Progress(Console(file=io.StringIO())), []
    progress.begin(len(work), "measuring", work=sum(work))
    for part in work:
        clock[0] += 10.0
        progress.step("a part", work=part)
        said.append(progress.time_left())
    assert said == left
