"""Statistics against scipy at every small number of rounds, and by simulation against what the method promises."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from frostline.results.record import Outcome, Sample
from frostline.results.simulate import SHAPES, flag_rates, flags_row, found_row, outcome_rates, rates_row
from frostline.results.statistics import (
    benjamini_hochberg,
    clock_changed,
    difference_p,
    drifts,
    equivalence_p,
    is_bimodal,
    look,
    paired_interval,
    round_log_ratio,
    signed_rank_p,
    summarise,
)

EVERY_SIZE = range(3, 25)


def rounds(count, mean=0.0, deviation=0.02, seed=0):
    return np.random.default_rng(seed + 1000 * count).normal(mean, deviation, count)


def blocks(*values, metric="step_time"):
    """Samples of one process from the values of each of its blocks."""
    return [Sample(metric, block, 0, value) for block, taken in enumerate(values) for value in taken]


def test_a_round_is_the_median_over_cycles_of_the_mean_log_of_block_medians():
    baseline = blocks([1.0, 1.0, 9.0], [1.0], [2.0], [8.0], [1.0], [1.0])
    side = blocks([2.0], [8.0], [4.0], [4.0], [16.0], [16.0])
    cycles = [math.log(4) - math.log(1), math.log(4) - math.log(4), math.log(16) - math.log(1)]
    assert round_log_ratio(side, baseline) == (pytest.approx(np.median(cycles)), 3)


def test_a_linear_drift_of_the_machine_cancels_in_a_round():
    speed = [math.exp(0.01 * step) for step in range(16)]  # slower and slower through A B B A A B B A ...
    order = "ABBA" * 4
    side = blocks(*([3.0 * speed[i]] for i, who in enumerate(order) if who == "B"))
    baseline = blocks(*([speed[i]] for i, who in enumerate(order) if who == "A"))
    assert round_log_ratio(side, baseline).log_ratio == pytest.approx(math.log(3), abs=1e-12)


def test_only_complete_cycles_that_both_have_count():
    baseline = blocks([1.0], [1.0], [1.0], [1.0], [1.0])
    assert round_log_ratio(blocks([2.0], [2.0], [5.0]), baseline) == (pytest.approx(math.log(2)), 1)
    assert round_log_ratio(blocks([2.0]), baseline) is None
    assert round_log_ratio([], baseline) is None


def test_a_clock_too_coarse_for_the_step_gives_no_ratio():
    assert round_log_ratio(blocks([0.0], [1.0]), blocks([1.0], [1.0])) is None


def test_samples_of_two_metrics_are_refused():
    with pytest.raises(ValueError, match="one metric wanted, got host_time, step_time"):
        round_log_ratio(blocks([1.0], [1.0]), blocks([1.0], [1.0], metric="host_time"))


def test_the_summary_of_processes():
    assert summarise([4.0, 1.0, 2.0, 3.0, 100.0]) == (3.0, 1.0, 5)
    one = summarise([7.0])
    assert one.median == 7.0
    assert math.isnan(one.spread)
    assert math.isnan(summarise([]).median)


@pytest.mark.parametrize("count", EVERY_SIZE)
def test_interval_and_equivalence_agree_with_scipy(count):
    values = rounds(count, 0.01)
    reference = stats.ttest_1samp(values, 0).confidence_interval(0.99)
    assert paired_interval(values) == pytest.approx((reference.low, values.mean(), reference.high))
    bound = math.log1p(0.03)
    lower = stats.ttest_1samp(values, -bound, alternative="greater").pvalue
    upper = stats.ttest_1samp(values, bound, alternative="less").pvalue
    assert equivalence_p(values, 0.03) == pytest.approx(max(lower, upper))


@pytest.mark.parametrize("count", EVERY_SIZE)
@pytest.mark.parametrize("level", [0.90, 0.99, 0.9975])
def test_the_interval_of_pairs_is_that_of_the_paired_t_test(count, level):
    """Each round is a pair: the logs of both sides, which move together, and of which only the difference counts."""
    baseline = rounds(count, math.log(20.0), 0.3)
    side = baseline + rounds(count, 0.04, 0.02, seed=7)
    reference = stats.ttest_rel(side, baseline)
    interval = reference.confidence_interval(level)
    assert paired_interval(side - baseline, level) == pytest.approx((interval.low, (side - baseline).mean(), interval.high))
    seen = look(side - baseline, 0.03, difference_error=1 - level)
    assert (seen.low, seen.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert seen.excludes_one == (reference.pvalue < 1 - level)
    assert difference_p(seen.ratio, seen.low, seen.high, count, level) == pytest.approx(reference.pvalue)


@pytest.mark.parametrize("count", EVERY_SIZE)
def test_signed_rank_agrees_with_scipy(count):
    for seed in range(5):
        values = rounds(count, 0.01, seed=seed)
        assert signed_rank_p(values) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue)


@pytest.mark.parametrize("count", EVERY_SIZE)
def test_fully_separated_rounds_have_the_smallest_p_there_is(count):
    assert signed_rank_p([0.1 + 0.01 * i for i in range(count)]) == pytest.approx(2 / 2**count)
    assert signed_rank_p([0.1] * count) == pytest.approx(2 / 2**count), "ties too"
    assert look([0.1 + 0.001 * i for i in range(count)], 0.03).excludes_one


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
@settings(max_examples=40, deadline=None)
def test_signed_rank_with_ties_and_zeros_is_the_share_of_sign_patterns(values):
    kept = np.array([value for value in values if value])
    ranks = stats.rankdata(np.abs(kept)) if len(kept) else np.array([])
    signs = (np.arange(2 ** len(kept))[:, None] >> np.arange(len(kept))) & 1
    sums = signs @ ranks
    observed = ranks[kept > 0].sum()
    expected = min(1.0, 2 * min((sums <= observed).mean(), (sums >= observed).mean()))
    assert signed_rank_p(values) == pytest.approx(expected)


def test_rounds_that_do_not_vary():
    assert paired_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
    assert (equivalence_p([0.0, 0.0], 0.03), equivalence_p([0.5, 0.5], 0.03)) == (0.0, 1.0)


@pytest.mark.parametrize("values", [[], [0.1]])
def test_one_round_has_no_interval(values):
    with pytest.raises(ValueError, match=f"at least two rounds are needed, got {len(values)}"):
        paired_interval(values)


@pytest.mark.parametrize("count", [6, 8, 16, 24])
def test_ratios_that_go_one_way_drift_up_or_down(count):
    slope = np.linspace(0.0, 0.08, count)
    assert drifts(slope + rounds(count, deviation=0.002))
    assert drifts(-slope + rounds(count, deviation=0.002))
    assert not drifts(rounds(count, deviation=0.005))


def test_what_cannot_be_told_from_chance_is_no_drift():
    assert not drifts([0.0] * 8)
    assert not drifts([0.0, 0.1, 0.2, 0.3, 0.4]), "five rounds go one way by chance once in 60 times"


def modes(count, gap, deviation=0.01, seed=3):
    """Medians of processes that fall into two groups, `gap` apart in their logs, each as calm as `deviation`."""
    return 22.5 * np.exp(rounds(count, 0.0, deviation, seed) + gap * (np.arange(count) % 2))


def test_bimodal_rounds():
    """The 22.5 or 25.5 ms of a baseline that is calm inside each run, and bimodal between runs."""
    assert is_bimodal([22.5, 25.5, 22.55, 25.45, 22.48, 25.52, 22.5, 25.5])
    assert not is_bimodal([22.5, 22.6, 22.4, 22.55, 22.45, 22.5, 22.52, 25.5]), "one outlier is no second mode"
    assert not is_bimodal([22.5, 22.6, 22.4, 22.55, 22.45, 22.5, 22.52, 22.48])
    assert not is_bimodal([22.500, 22.501] * 4, least_range=0.03), "two modes closer than anyone cares about"
    assert not is_bimodal([1.0, 1.0, 2.0, 2.0])
    assert not is_bimodal([1.0] * 8)
    assert not is_bimodal([0.0, 1.0] * 4), "a clock too coarse for the step tells nothing of modes"


@pytest.mark.parametrize("count", [8, 12, 16, 24])
def test_two_modes_are_seen_at_every_size_and_calm_rounds_are_not(count):
    assert is_bimodal(modes(count, 0.13)), "13 standard deviations apart"
    assert not is_bimodal(modes(count, 0.0))
    uneven = modes(count, 0.0, 0.005) * np.where(np.arange(count) < count - count // 4, 1.0, 1.13)
    assert is_bimodal(uneven), "a quarter of the processes in the second mode"


def test_a_clock_that_changed():
    assert clock_changed([1980.0, 1980.0, 1755.0])
    assert not clock_changed([1980.0, 1965.0, 1950.0]), "a step or two of a GPU's clock"
    assert not clock_changed([1980.0])
    assert not clock_changed([])


@pytest.mark.parametrize("p_values", [[0.001, 0.02, 0.03, 0.9], [0.04, 0.04, 0.04, 0.04], [0.9, 0.8], [0.01], []])
def test_benjamini_hochberg_agrees_with_scipy(p_values):
    expected = list(stats.false_discovery_control(p_values) <= 0.05) if p_values else []
    assert benjamini_hochberg(p_values, 0.05) == expected


def test_an_unknown_p_is_never_a_discovery():
    assert benjamini_hochberg([math.nan, 0.001], 0.05) == [False, True]


# The figures of design and docs/method.md, with fewer trials: bounds are some four standard errors wide.


@pytest.mark.parametrize("deviation", [0.02, 0.03])
def test_simulated_self_comparison_gives_few_false_verdicts(deviation):
    rates = outcome_rates(0.0, deviation, trials=1500)
    assert rates[Outcome.FASTER] + rates[Outcome.SLOWER] <= 0.01 + 4 * math.sqrt(0.01 * 0.99 / 1500)
    assert rates[Outcome.SAME] >= {0.02: 0.93, 0.03: 0.44}[deviation]


@pytest.mark.parametrize("deviation", [0.02, 0.03])
def test_simulated_five_per_cent_is_found(deviation):
    rates = outcome_rates(0.05, deviation, trials=800)
    assert rates[Outcome.SLOWER] >= 0.90
    assert rates[Outcome.FASTER] == 0.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [6, 8, 16, 24])
def test_calm_rounds_are_seldom_flagged(count, shape):
    rates = flag_rates(count, shape, trials=1000)
    for flag, rate in rates.items():
        assert rate <= 0.01 + 4 * math.sqrt(0.01 * 0.99 / 1000), f"{flag} in {rate:.1%} of calm sessions"


def test_the_page_has_the_simulated_figures():
    page = (Path(__file__).parents[2] / "docs" / "method.md").read_text(encoding="utf-8")
    for row in (rates_row(0.0, 0.03), flags_row(16, "normal"), found_row(16)):
        assert row in page, "run: python -m frostline.results.simulate"
