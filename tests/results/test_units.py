"""Units that people read, at every edge between two of them."""

from __future__ import annotations

import math

import pytest

from frostline.results.units import (
    format_apart,
    format_change,
    format_percent,
    format_ratio,
    format_saving,
    format_spread,
    format_value,
    human_scale,
)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.0, "ns", "0 ns"),
        (12.0, "ns", "12 ns"),
        (12.34, "ns", "12.34 ns"),
        (999.94, "ns", "999.9 ns"),
        (999.96, "ns", "1.000 us"),
        (1500.0, "ns", "1.500 us"),
        (263.7e6, "ns", "263.7 ms"),
        (61.5e9, "ns", "61.50 s"),
        (7200e9, "ns", "7,200 s"),
        (0.0, "B", "0 B"),
        (1023.0, "B", "1,023 B"),
        (1024.0, "B", "1.000 KiB"),
        (3.25 * 2**30, "B", "3.250 GiB"),
        (-512.0 * 2**20, "B", "-512.0 MiB"),
        (5e12, "FLOP", "5.000 TFLOP"),
        (1234.0, "1", "1,234"),
        (0.5, "1", "0.500"),
        (math.nan, "ns", "-"),
        (3.0, "tok/s", "3 tok/s"),
    ],
)
def test_values(value, unit, shown):
    assert format_value(value, unit) == shown


def test_a_value_in_another_s_unit():
    assert format_value(512.0, "B", beside=2048.0) == "0.500 KiB"
    assert format_value(3e9, "ns", beside=5e6) == "3,000 ms"
    assert format_value(1000.0, "B", beside=100.0) == "1,000 B"


def test_a_spread_has_its_value_s_unit_and_places():
    assert format_spread(263.7e6, 0.4e6, "ns") == "263.7 ± 0.4 ms"
    assert format_spread(1.5e6, 1.5e3, "ns") == "1.500 ± 0.002 ms"
    assert format_spread(263.7e6, math.nan, "ns") == "263.7 ms"
    assert format_spread(math.nan, 1.0, "ns") == "-"


def test_changes_savings_and_fractions():
    assert [format_change(ratio) for ratio in (1.0, 1.05, 0.559, 1.0004, 2.9, 9.8, math.nan)] == [
        "+0.0 %",
        "+5.0 %",
        "-44.1 %",
        "+0.04 %",
        "+190.0 %",
        "9.800 x",
        "-",
    ]
    assert [format_saving(ratio) for ratio in (0.559, 1.05, 1.0, math.nan)] == ["44.1 %", "-5.0 %", "0.0 %", "-"]
    assert [format_percent(fraction) for fraction in (0.03, 0.0025, 0.0)] == ["3 %", "0.25 %", "0 %"]


@pytest.mark.parametrize("unit", ["ns", "B", "FLOP", "1"])
def test_every_magnitude_stays_readable(unit):
    for exponent in range(16):
        factor, name = human_scale(10.0**exponent, unit)
        assert 10.0**exponent / factor >= 0.99995
        assert isinstance(name, str)


@pytest.mark.parametrize(
    ("ratio", "shown", "change"),
    [
        (1.0, "1.000", "+0.0 %"),
        (1.0004, "1.0004", "+0.04 %"),
        (1 - 2**-22, "0.9999998", "-0.00002 %"),
        (1.0000999, "1.00010", "+0.01 %"),
        (1.1, "1.100", "+10.0 %"),
        (0.0, "0.000", "-100.0 %"),
    ],
)
def test_a_ratio_looks_like_none_only_where_it_is_none(ratio, shown, change):
    assert format_ratio(ratio) == shown
    assert format_change(ratio) == change


def test_compared_values_look_the_same_only_where_they_are():
    assert format_apart(2.0**30, 2.0**30, "B") == ("1.000 GiB", "1.000 GiB")
    assert format_apart(2.0**30, 2.0**30 + 512, "B") == ("1,073,741,824 B", "1,073,742,336 B")
    assert format_apart(2.0**20, 3 * 2.0**30, "B") == ("0.001 GiB", "3.000 GiB")
    assert format_apart(1e12, 1e12 + 1, "FLOP") == ("1,000,000,000,000 FLOP", "1,000,000,000,001 FLOP")
    assert format_apart(math.nan, 1.0, "B") == ("-", "1 B")
