"""The chances agree with the product's own rule on simulated rounds, and the limits are where the chances say."""

from __future__ import annotations

import pytest

from frostline.results.power import FOUND, most_noise, same_chance, smallest_told, told_chance
from frostline.results.record import Outcome
from frostline.results.simulate import outcome_rates

TRIALS = 1_500
MARGIN = 0.05  # four standard errors of a share of TRIALS


@pytest.mark.parametrize(("noise", "rounds"), [(0.02, 8), (0.04, 8), (0.05, 16), (0.08, 16)])
def test_same_comes_out_as_often_as_simulated(noise, rounds):
    simulated = outcome_rates(0.0, noise, trials=TRIALS, looks=1, rounds=rounds)
    assert same_chance(noise, rounds, 0.03) == pytest.approx(simulated[Outcome.SAME], abs=MARGIN)


@pytest.mark.parametrize(("change", "noise", "rounds"), [(0.05, 0.03, 8), (0.05, 0.05, 16), (0.10, 0.10, 16), (0.04, 0.01, 8)])
def test_a_change_is_told_as_often_as_simulated(change, noise, rounds):
    simulated = outcome_rates(change, noise, trials=TRIALS, looks=1, rounds=rounds)
    assert told_chance(change, noise, rounds, 0.03) == pytest.approx(simulated[Outcome.SLOWER], abs=MARGIN)


@pytest.mark.parametrize("rounds", [6, 8, 16])
@pytest.mark.parametrize("noise", [0.001, 0.02, 0.3])
def test_the_smallest_told_change_is_told_nine_times_in_ten(noise, rounds):
    assert told_chance(smallest_told(noise, rounds, 0.03), noise, rounds, 0.03) == pytest.approx(FOUND, abs=1e-6)


def test_without_noise_delta_itself_is_told():
    assert smallest_told(0.0, 8, 0.03) == 0.03


def test_more_rounds_tell_smaller_changes():
    assert smallest_told(0.05, 16, 0.03) < smallest_told(0.05, 8, 0.03)


def test_the_most_noise_makes_same_a_toss():
    assert most_noise(16, 0.03) == pytest.approx(0.0487, abs=5e-5)
    assert same_chance(most_noise(8, 0.05), 8, 0.05) == pytest.approx(0.5, abs=1e-6)
