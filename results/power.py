"""What the rule for times can tell at a given noise: the chance of `same`, the smallest change it finds, the noise it bears.

The rule (`verdict.judge_timing`) sees n log ratios with mean m and standard deviation s. It says `same` when
|m| + t(0.95) s / sqrt(n) < log(1 + delta), and `faster` or `slower` when |m| exceeds both log(1 + delta) and
t(0.995) s / sqrt(n), with the quantiles of Student's t for n - 1 degrees of freedom. For normal rounds of standard deviation
sigma, m is normal with sigma / sqrt(n) and (n - 1) s^2 / sigma^2 is chi-square with n - 1, independent of m. So each chance is
the mean, over the distribution of s, of a difference of normal probabilities; it is taken over equally likely values of s.
Everything here is the first look: `python -m frostline.results.simulate` has both.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy  # its parts are loaded when they are used

from frostline.results.looks import DIFFERENCE_ERROR, EQUIVALENCE_ERROR
from frostline.results.statistics import Array

POINTS = 2_000  # equally likely values of s: the chances are right to 0.001
FOUND = 0.9  # a change that can be expected to be told is told nine times in ten


def same_chance(noise: float, rounds: int, delta: float) -> float:
    """How often identical code is called the `same` within delta.

    Args:
        noise: standard deviation of a round's log ratio.
        rounds: of the look, at least two.
        delta: the smallest change worth a word, as a fraction.
    """
    error = noise / math.sqrt(rounds)
    quantile = float(scipy.stats.t.ppf(1 - EQUIVALENCE_ERROR, rounds - 1))
    room = math.log1p(delta) - quantile * error * _spreads(rounds)  # how far the mean may lie from 0
    return float(np.mean(np.clip(1 - 2 * scipy.stats.norm.sf(room / error), 0, None)))


def told_chance(change: float, noise: float, rounds: int, delta: float) -> float:
    """How often a true change (a fraction, above 0) is told: `slower`, with the interval clear of 0 and at least delta.

    Arguments as of `same_chance`.
    """
    error = noise / math.sqrt(rounds)
    quantile = float(scipy.stats.t.ppf(1 - DIFFERENCE_ERROR / 2, rounds - 1))
    needed = np.maximum(math.log1p(delta), quantile * error * _spreads(rounds))
    return float(np.mean(scipy.stats.norm.sf((needed - math.log1p(change)) / error)))


def smallest_told(noise: float, rounds: int, delta: float) -> float:
    """The smallest true change, as a fraction, told nine times in ten. Arguments as of `same_chance`; noise can be 0."""
    if noise == 0:
        return delta
    quantile = float(scipy.stats.t.ppf(1 - DIFFERENCE_ERROR / 2, rounds - 1))
    most = math.log1p(delta) + noise / math.sqrt(rounds) * (quantile * float(_spreads(rounds)[-1]) + 3)
    found = scipy.optimize.brentq(lambda log: told_chance(math.expm1(log), noise, rounds, delta) - FOUND, 0.0, most)
    return math.expm1(float(found))


@lru_cache
def most_noise(rounds: int, delta: float) -> float:
    """The noise of a round at which identical code is called `same` every other time; with more, it mostly is not.

    4.9 % for 16 rounds and a delta of 3 %. Arguments as of `same_chance`.
    """
    bound = math.log1p(delta)
    return float(scipy.optimize.brentq(lambda noise: same_chance(noise, rounds, delta) - 0.5, bound / 100, 100 * bound))


def _spreads(rounds: int) -> Array:
    """Equally likely values of s / sigma, for normal rounds."""
    chances = (np.arange(POINTS) + 0.5) / POINTS
    return np.sqrt(np.asarray(scipy.stats.chi2.ppf(chances, rounds - 1), dtype=np.float64) / (rounds - 1))
