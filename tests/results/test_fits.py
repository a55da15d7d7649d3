"""The search for the largest size that fits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from frostline.results.fits import MOST_OPERATORS, Fit, Largest, Tried, fits_table, largest_that_fits
from frostline.results.record import Case


def searched(
    peak: Callable[[int], float], limit: float, first: int, operators: float = 0.0, fixed: float = 0.0
) -> tuple[Largest, list[int]]:
    """The answer, and the sizes that were tried; a step has so many `operators` for each step of its size, beside `fixed`."""
    sizes: list[int] = []

    def try_size(size: int) -> Tried:
        sizes.append(size)
        return Tried(peak(size), fixed + operators * size)

    return largest_that_fits(try_size, limit, first), sizes


@pytest.mark.parametrize("first", [1, 1000])
@pytest.mark.parametrize("limit", [700.0, 2e4, 123456.0, 9e9])
@pytest.mark.parametrize(
    "peak",
    [
        lambda n: 100.0 + 7 * n,
        lambda n: 100.0 + 512 * -(-7 * n // 512),
        lambda n: 3.0 * n + 5.0 * max(0, n - 8192),
        lambda n: 10.0 + n**1.5,
        lambda n: 64.0 + 2.0 * min(n, 4096) + n / 8,
    ],
    ids=["line", "granules", "bend up", "curve", "bend down"],
)
def test_it_fits_and_one_more_does_not(peak: Callable[[int], float], limit: float, first: int) -> None:
    found, sizes = searched(peak, limit, first)
    assert found == Largest(found.size, found.peak)
    assert found.peak == peak(found.size) <= limit < peak(found.size + 1)
    assert {found.size, found.size + 1} <= set(sizes) and len(sizes) == len(set(sizes))


def test_a_line_is_met_at_once() -> None:
    found, sizes = searched(lambda n: 1000.0 + 3 * n, 1000 + 3e6, 1024)
    assert found.size == 10**6
    assert sizes == [1024, 2048, 4096, 10**6, 10**6 + 1]


def test_what_would_take_too_long_is_told_by_the_line() -> None:
    found, sizes = searched(lambda n: 1000.0 + 3 * n, 1000 + 3e6, 1024, operators=MOST_OPERATORS / 5000)
    assert sizes == [1024, 2048, 4096]
    assert found == Largest(10**6, 1000 + 3e6, line_up_to=4096)


def test_a_step_of_few_operators_at_any_size_is_tried_at_any_size() -> None:
    """Small sizes say nothing of what a bend far off does, and are no reason to trust a line."""
    found, sizes = searched(lambda n: 1000.0 + 3 * n + 5.0 * max(0, n - 10**7), 1e9, 16, fixed=8.0)
    assert found.size == (10**9 - 1000 + 5 * 10**7) // 8 and not found.line_up_to
    assert {found.size, found.size + 1} <= set(sizes) and len(sizes) <= 12


def test_a_bend_is_passed_before_a_line_is_trusted() -> None:
    found, sizes = searched(lambda n: 3.0 * n + 5.0 * max(0, n - 3000), 8e6, 1024, operators=MOST_OPERATORS / 5000)
    assert found.line_up_to == max(sizes) > 4096 and found.size == (8 * 10**6 + 5 * 3000) // 8


def test_a_size_beyond_patience_is_not_tried() -> None:
    _, sizes = searched(lambda n: n**1.5, 1e12, 1024, operators=MOST_OPERATORS / 1000)
    assert max(sizes) <= 4096


def test_nothing_fits() -> None:
    assert searched(lambda n: 10.0 + n, 5, 1024)[0] == Largest(0)


def test_a_peak_that_does_not_grow_has_no_largest_size() -> None:
    assert searched(lambda _: 10.0, 50, 1024, operators=1.0)[0].no_end


def test_peaks_that_fall_are_told() -> None:
    found, _ = searched(lambda n: 1000.0 + 3 * n - (10_000 if n >= 3000 else 0), 1e6, 1024)
    assert found.falls == (2048, 4096) and found.size == (10**6 + 9000) // 3


def test_the_table_says_where_an_answer_comes_from() -> None:
    case = Case("heads", "1", {"vocab": 7, "seq_len": 16})
    other = Case("heads", "1", {"vocab": 9, "seq_len": 16})
    answers = [
        Fit(case, "plain", Largest(12345, 2**30)),
        Fit(case, "far", Largest(10**6, 2**30, line_up_to=4096)),
        Fit(other, "plain", Largest(0)),
        Fit(other, "far", reason="not installed"),
    ]
    text = fits_table(answers, "seq_len", 2**31, ["as predicted"]).markdown()
    assert "the largest seq\\_len that fits 2.000 GiB" in text
    assert "| 7 | plain | 12,345 | 1.000 GiB |" in text
    assert "1,000,000" in text and "up to 4,096" in text
    assert "none" in text and "not installed" in text and "as predicted" in text
    alone = fits_table([Fit(Case("one", "1", {"n": 1}), "plain", Largest(0))], "n", 2**31, ["as predicted"])
    assert alone.notes == ["as predicted"], "and nothing of axes where there are no others"
