"""The statistics of rounds, as pure functions of arrays.

A round (one fresh process of each side, driven in alternating blocks) is the unit of replication; samples inside a process
share its memory layout, its caches and its luck, so they are never pooled over rounds (Kalibera and Jones, "Rigorous
benchmarking in reasonable time", ISMM 2013). A round yields one log ratio; everything that is concluded comes from those.

`docs/method.md` explains the choices and gives their simulated error rates (`python -m frostline.results.simulate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy  # its parts are loaded when they are used: most commands need none of them, and they take a second
from numpy.typing import NDArray

from frostline.results.record import Sample

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Sequence[float] | Array

DRIFT_P = 0.01  # Kendall's tau of a round's log ratio against its number: below this it is flagged
DRIFT_ROUNDS = 6  # of fewer, even the clearest order comes by chance more often than that
BIMODAL_VALUES = 6  # of fewer, two groups of two or more say nothing
CLOCK_CHANGE = 0.05  # share by which a clock may differ between rounds


class RoundEffect(NamedTuple):
    """A round's natural-log ratio of side to baseline, and over how many cycles it is the median."""

    log_ratio: float
    cycles: int


def round_log_ratio(side: Sequence[Sample], baseline: Sequence[Sample]) -> RoundEffect | None:
    """The log ratio of one round: the median over the cycles that both sides have.

    A cycle goes forth and back (A B B A), so both blocks of a side together lie at the same mean time as both of the other's,
    and a linear drift of the machine cancels. In cycle k a side's figure is the mean of the logs of the medians of its blocks
    2k and 2k + 1. Design: `docs/architecture.md`, "round".

    Args:
        side, baseline: the samples of one timing metric in one process each.

    Returns:
        The ratio and the number of common cycles, or None where there is none: no common complete cycle, or a block whose
        median is not positive (a clock too coarse for the step).

    Raises:
        ValueError: samples of more than one metric.
    """
    metrics = {sample.metric for sample in (*side, *baseline)}
    if len(metrics) > 1:
        raise ValueError(f"round_log_ratio: samples of one metric wanted, got {', '.join(sorted(metrics))}")
    of_side, of_baseline = _cycle_logs(side), _cycle_logs(baseline)
    common = sorted(of_side.keys() & of_baseline.keys())
    ratios = np.array([of_side[cycle] - of_baseline[cycle] for cycle in common])
    if not len(ratios) or not np.isfinite(ratios).all():
        return None
    return RoundEffect(float(np.median(ratios)), len(common))


def _cycle_logs(samples: Sequence[Sample]) -> dict[int, float]:
    """The log figure of each complete cycle of one process; NaN where a block's median is not positive."""
    blocks: dict[int, list[float]] = {}
    for sample in samples:
        blocks.setdefault(sample.block, []).append(sample.value)
    medians = {block: float(np.median(values)) for block, values in blocks.items()}
    logs = {block: math.log(median) if median > 0 else math.nan for block, median in medians.items()}
    return {block // 2: (logs[block] + logs[block + 1]) / 2 for block in logs if block % 2 == 0 and block + 1 in logs}


class Summary(NamedTuple):
    """What a report shows of a side: the median of its processes' medians, and half their interquartile range (NaN for one)."""

    median: float
    spread: float
    processes: int


def summarise(process_medians: Values) -> Summary:
    """The median over processes of each process's median, with half the interquartile range of those medians as its spread.

    Half of the processes lie within about `median +- spread`. Quartiles are numpy's (linear interpolation), so that one wild
    process does not change what is shown; every process stays in the store.
    """
    values = np.asarray(process_medians, dtype=np.float64)
    if not len(values):
        return Summary(math.nan, math.nan, 0)
    low, middle, high = np.percentile(values, [25, 50, 75])
    return Summary(float(middle), float(high - low) / 2 if len(values) > 1 else math.nan, len(values))


class Interval(NamedTuple):
    """A mean and the ends of its confidence interval, all as natural-log ratios."""

    low: float
    mean: float
    high: float


def paired_interval(log_ratios: Values, level: float = 0.99) -> Interval:
    """Student's t interval of the mean of the rounds' log ratios (each is a difference of a pair, hence "paired").

    Its exponential is an interval of the geometric mean over rounds of side / baseline. At least two rounds are needed.
    """
    mean, error, freedom = _mean_error(log_ratios)
    reach = _t_quantile((1 + level) / 2, freedom) * error
    return Interval(mean - reach, mean, mean + reach)


def difference_p(ratio: float, low: float, high: float, rounds: int, level: float = 0.99) -> float:
    """The two-sided p-value of "no difference" that belongs to a paired interval, from the interval itself.

    Args:
        ratio, low, high: the effect and the ends of its interval, as ratios.
        rounds: how many log ratios it rests on.
        level: of the interval.
    """
    reach = (math.log(high) - math.log(low)) / 2
    if reach == 0:
        return 1.0 if ratio == 1 else 0.0
    error = reach / _t_quantile((1 + level) / 2, rounds - 1)
    return 2 * _t_below(-abs(math.log(ratio)) / error, rounds - 1)


def equivalence_p(log_ratios: Values, delta: float) -> float:
    """The p-value of "the same within delta": the larger of the two one-sided t tests (Schuirmann 1987).

    The bounds are +-log(1 + delta), so they are symmetric in the ratio: 1 / (1 + delta) to 1 + delta.
    """
    mean, error, freedom = _mean_error(log_ratios)
    bound = math.log1p(delta)
    if error == 0:
        return 0.0 if abs(mean) < bound else 1.0
    above_lower = _t_below(-(mean + bound) / error, freedom)
    below_upper = _t_below((mean - bound) / error, freedom)
    return max(above_lower, below_upper)


def _t_quantile(chance: float, freedom: int) -> float:
    """Of Student's t. Special functions, since the distributions of `scipy.stats` take a hundred times as long."""
    return float(scipy.special.stdtrit(freedom, chance))


def _t_below(value: float, freedom: int) -> float:
    """How likely Student's t is to lie below a value."""
    return float(scipy.special.stdtr(freedom, value))


def _mean_error(log_ratios: Values) -> tuple[float, float, int]:
    values = np.asarray(log_ratios, dtype=np.float64)
    if len(values) < 2:
        raise ValueError(f"at least two rounds are needed, got {len(values)}")
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))), len(values) - 1


def signed_rank_p(log_ratios: Values) -> float:
    """The exact two-sided p-value of Wilcoxon's signed-rank test of "centred on 0"; rounds at exactly 0 are left out.

    Exact with ties too: under the null every sign is a fair coin, whatever the ranks, so the distribution of the rank sum is
    a product of (1 + x^rank) / 2, multiplied out over doubled ranks (midranks are multiples of a half). scipy's exact
    method has no ties; without them the two agree, which the tests check.
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    values = values[values != 0]
    if not len(values):
        return 1.0
    ranks = np.rint(2 * scipy.stats.rankdata(np.abs(values))).astype(int)
    chances = np.ones(1)
    for rank in ranks:
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    observed = int(ranks[values > 0].sum())
    lower, upper = chances[: observed + 1].sum(), chances[observed:].sum()
    return float(min(1.0, 2 * min(lower, upper)))


@dataclass(frozen=True)
class Look:
    """All that one look at the rounds gives. Ratios are side / baseline; `delta` is a fraction."""

    rounds: int
    ratio: float
    low: float
    high: float
    excludes_one: bool
    within_delta: bool
    p_value: float


def look(log_ratios: Values, delta: float, *, difference_error: float = 0.01, equivalence_error: float = 0.05) -> Look:
    """Take one look: the effect with its interval, whether it excludes 1, and whether it is the same within delta.

    Args:
        log_ratios: one for each round, at least two.
        delta: the smallest change worth a word, as a fraction.
        difference_error: two-sided error of the interval in this look.
        equivalence_error: error of each of the two one-sided tests in this look.
    """
    interval = paired_interval(log_ratios, 1 - difference_error)
    return Look(
        rounds=len(log_ratios),
        ratio=math.exp(interval.mean),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        excludes_one=interval.low > 0 or interval.high < 0,
        within_delta=equivalence_p(log_ratios, delta) < equivalence_error,
        p_value=signed_rank_p(log_ratios),
    )


def drifts(log_ratios: Values) -> bool:
    """Whether the rounds' ratios go one way over time: Kendall's tau against the round's place, at 1 % error."""
    values = np.asarray(log_ratios, dtype=np.float64)
    if len(values) < DRIFT_ROUNDS or np.ptp(values) == 0:
        return False
    return float(scipy.stats.kendalltau(np.arange(len(values)), values).pvalue) < DRIFT_P


def is_bimodal(values: Values, least_range: float = 0.0) -> bool:
    """Whether positive values fall into two groups, each calm in itself.

    The logs are split in two where that explains most of their variance, each group with a sixth of them and at least two (an
    outlier is no mode). They are bimodal where the split explains as much as calm values let it only once in a hundred times
    (`_calm_share`), and their range is at least log(1 + `least_range`). How far apart two modes must be to be seen, and how
    often calm rounds are flagged, is in `docs/method.md`.
    """
    array = np.sort(np.asarray(values, dtype=np.float64))
    count = len(array)
    if count < BIMODAL_VALUES or array[0] <= 0:
        return False
    logs = np.log(array)
    whole = float(logs[-1] - logs[0])
    if whole == 0 or whole < math.log1p(least_range):
        return False
    return _explained_by_two(logs, max(2, math.ceil(count / 6))) > _calm_share(count)


def _explained_by_two(ordered: Array, least: int) -> float:
    """The largest share of the variance of ordered values that a split into two groups of at least `least` explains."""
    count = len(ordered)
    deviations = ordered - ordered.mean()
    sizes = np.arange(least, count - least + 1)  # of the lower group
    between = np.cumsum(deviations)[sizes - 1] ** 2 * count / (sizes * (count - sizes))
    return float(between.max() / (deviations**2).sum())


def _calm_share(count: int) -> float:
    """What the best split explains of `count` calm values in at most one of a hundred cases.

    Fitted to simulated normal, uniform and exponential values (the latter two split better than the normal), from 6 to 48.
    """
    return max(0.9, 0.982 - 0.0085 * (count - BIMODAL_VALUES))


def clock_changed(clocks: Values) -> bool:
    """Whether a clock was not the same in all rounds: the highest reading is more than 5 % above the lowest."""
    return len(clocks) > 0 and float(np.max(clocks)) > (1 + CLOCK_CHANGE) * float(np.min(clocks))


def benjamini_hochberg(p_values: Values, error: float) -> list[bool]:
    """Which hypotheses are rejected when their false discovery rate is held at `error` (Benjamini and Hochberg 1995).

    The k smallest p-values are rejected, for the largest k whose k-th p-value is at most k / m x error. NaN is never rejected.
    """
    values = np.asarray([1.0 if math.isnan(p) else p for p in p_values], dtype=np.float64)
    if not len(values):
        return []
    order = np.argsort(values, kind="stable")
    passed = np.flatnonzero(values[order] <= error * np.arange(1, len(values) + 1) / len(values))
    rejected = np.zeros(len(values), dtype=bool)
    if len(passed):
        rejected[order[: passed[-1] + 1]] = True
    return [bool(one) for one in rejected]
