"""How often the rule for times errs, by simulation: the figures of `docs/method.md`.

    python -m frostline.results.simulate

Rounds are drawn from a normal distribution of log ratios; the rule is the product's own (`verdict.judge_timing`): 8 rounds,
and 8 more when that look is inconclusive.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from frostline.results.noise import noise_of_a_round
from frostline.results.power import most_noise
from frostline.results.record import Outcome
from frostline.results.statistics import Array, drifts, is_bimodal
from frostline.results.verdict import DEFAULT_DELTA, judge_timing

SEED = 20_260_101
TRIALS = 5_000
ROUNDS = 8


def outcome_rates(
    effect: float, deviation: float, *, trials: int, delta: float = 0.03, looks: int = 2, rounds: int = ROUNDS, seed: int = SEED
) -> Mapping[Outcome, float]:
    """The share of each outcome after the looks.

    Args:
        effect: the true change as a fraction (0.05: 5 % more).
        deviation: standard deviation of a round's log ratio.
        trials: simulated comparisons.
        delta: smallest change worth a word.
        looks: how many looks at most; each takes `rounds` more rounds.
        rounds: rounds of one look.
        seed: of the random generator.
    """
    draws = np.random.default_rng(seed).normal(math.log1p(effect), deviation, size=(trials, looks * rounds))
    ended: Counter[Outcome] = Counter()
    for drawn in draws:
        judged = judge_timing(drawn[:rounds], delta=delta)
        for taken in range(2, looks + 1):
            if judged.outcome is not Outcome.INCONCLUSIVE:
                break
            judged = judge_timing(drawn[: taken * rounds], delta=delta)
        ended[judged.outcome] += 1
    return {outcome: ended[outcome] / trials for outcome in Outcome}


def flag_rates(count: int, *, trials: int, seed: int = SEED) -> tuple[float, float]:
    """How often calm rounds are flagged by chance: (drift, bimodal), for `count` independent normal rounds."""
    draws = np.random.default_rng(seed).normal(0.0, 0.02, size=(trials, count))
    return float(np.mean([drifts(drawn) for drawn in draws])), float(np.mean([is_bimodal(np.exp(drawn)) for drawn in draws]))


def noisy_rate(deviation: float, *, trials: int, seed: int = SEED) -> float:
    """How often a machine is called noisy by one step of a self-comparison, for rounds of this standard deviation."""
    draws = np.random.default_rng(seed).normal(0.0, deviation, size=(trials, 2 * ROUNDS))
    return float(np.mean([_is_noisy(drawn) for drawn in draws]))


def _is_noisy(drawn: Array) -> bool:
    seen = drawn[:ROUNDS]
    judged = judge_timing(seen, delta=DEFAULT_DELTA)
    if judged.outcome is Outcome.INCONCLUSIVE:
        seen = drawn
        judged = judge_timing(seen, delta=DEFAULT_DELTA)
    differs = judged.outcome in (Outcome.FASTER, Outcome.SLOWER)
    return differs or noise_of_a_round(seen) > most_noise(2 * ROUNDS, DEFAULT_DELTA)


def rates_row(effect: float, deviation: float) -> str:
    """A line of the first table: how often each outcome comes out."""
    rates = outcome_rates(effect, deviation, trials=TRIALS)
    shares = (rates[Outcome.FASTER] + rates[Outcome.SLOWER], rates[Outcome.SAME], rates[Outcome.INCONCLUSIVE])
    return f"| {' | '.join((f'{effect:+.0%}', f'{deviation:.0%}', *(f'{share:.1%}' for share in shares)))} |"


def flags_row(count: int) -> str:
    """A line of the second table: how often `count` calm rounds are flagged."""
    drift, bimodal = flag_rates(count, trials=TRIALS)
    return f"| {count} | {drift:.1%} | {bimodal:.1%} |"


def noisy_row(deviation: float) -> str:
    """A line of the third table: how often a machine of this noise fails, by one step and by any of three."""
    rate = noisy_rate(deviation, trials=TRIALS)
    return f"| {deviation:.0%} | {rate:.1%} | {1 - (1 - rate) ** 3:.1%} |"


def main() -> None:
    """Print the three tables of `docs/method.md`."""
    print("| true change | sd of a round | faster or slower | same | inconclusive |\n|---|---|---|---|---|")
    for effect in (0.0, 0.02, 0.05, 0.10):
        for deviation in (0.01, 0.02, 0.03, 0.05):
            print(rates_row(effect, deviation))
    print("\n| rounds | flagged as drift by chance | flagged as bimodal by chance |\n|---|---|---|")
    for count in (6, 8, 16):
        print(flags_row(count))
    print("\n| sd of a round | noisy by one step | by any of three |\n|---|---|---|")
    for deviation in (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08):
        print(noisy_row(deviation))


if __name__ == "__main__":
    main()
