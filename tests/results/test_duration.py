"""Times as people type them."""

from __future__ import annotations

import pytest

from frostline.results.duration import parse_duration
from frostline.results.record import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("1H30M5S", 5405),
        ("0.5s", 0.5),
        (" 2m ", 120),
    ],
)
def test_hours_minutes_and_seconds(text, seconds):
    assert parse_duration(text, "--budget") == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "m", "10x", "ten", "-5m", "0s", "0h0m", "30m1h", "10m5m", "1e3s", "1:30", "10min", "99999h"]
)
def test_anything_else_is_one_clear_line(text):
    with pytest.raises(UsageError) as caught:
        parse_duration(text, "--budget")
    assert str(caught.value) == f"--budget: got {text!r}, wanted a time such as 90s, 10m or 1h30m, a week at most"
