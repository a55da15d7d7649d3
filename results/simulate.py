"""How often the rule for times errs, by simulation: the figures of `docs/method.md`.

    python -m frostline.results.simulate

Rounds are drawn from a normal distribution of log ratios; the rule is the product's own (`verdict.judge_timing`) in its own
looks (`looks.Looks`): 8 rounds, 8 more when that look is inconclusive, and so on up to the most that is asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from frostline.results.looks import Looks
from frostline.results.noise import noise_of_a_round
from frostline.results.power import most_noise
from frostline.results.record import Outcome
from frostline.results.statistics import Array, clock_changed, drifts, is_bimodal
from frostline.results.verdict import DEFAULT_DELTA, Judgement, judge_timing

SEED = 20_260_101
TRIALS = 5_000
ROUNDS = 8
LOOKS: Sequence[tuple[int, tuple[int, int] | None]] = (
    (8, None),
    (16, None),
    (24, None),
    (40, None),
    (16, (6, 16)),
    (40, (6, 40)),
)
CLOCK_JITTER = 0.005  # standard deviation of a calm clock's readings: 10 MHz of 1980, where a GPU's clock moves in steps of 15
SHAPES: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "normal": lambda generator, size: generator.normal(size=size),
    "uniform": lambda generator, size: generator.uniform(-math.sqrt(3), math.sqrt(3), size=size),
    "exponential": lambda generator, size: generator.exponential(size=size),
}
"""Calm noise of standard deviation 1: as textbooks have it, without tails, and with one long tail as times have it."""


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
    planned = Looks(rounds, looks * rounds)
    ended = Counter(one.outcome for one in _comparisons(effect, deviation, planned, trials=trials, delta=delta, seed=seed))
    return {outcome: ended[outcome] / trials for outcome in Outcome}


def _comparisons(
    effect: float,
    deviation: float,
    looks: Looks,
    *,
    trials: int,
    in_time: tuple[int, int] | None = None,
    delta: float = DEFAULT_DELTA,
    seed: int = SEED,
) -> Iterator[Judgement]:
    """Simulated comparisons, each as it ended; `in_time` are the fewest and the most rounds that a budget leaves time for."""
    generator = np.random.default_rng(seed)
    draws = generator.normal(math.log1p(effect), deviation, size=(trials, looks.most))
    limits = generator.integers(*in_time, size=trials, endpoint=True) if in_time else np.full(trials, looks.most)
    for drawn, limit in zip(draws, limits, strict=True):
        yield _compare(drawn[:limit], looks, delta)


def _compare(drawn: Array, looks: Looks, delta: float) -> Judgement:
    """Judge after each look until one is conclusive, or the rounds are at their end."""
    for end in looks.ends:
        seen = drawn[:end]
        judged = judge_timing(seen, delta=delta, errors=looks.errors(len(seen)))
        if judged.outcome is not Outcome.INCONCLUSIVE or end >= len(drawn):
            break
    return judged


def flag_rates(count: int, shape: str, *, trials: int, seed: int = SEED) -> Mapping[str, float]:
    """How often a calm session is flagged by chance, by flag.

    Args:
        count: of rounds.
        shape: of the noise, one of `SHAPES`.
        trials: simulated sessions.
        seed: of the random generator.
    """
    noise = SHAPES[shape](np.random.default_rng(seed), (trials, count))
    return {
        "drift": float(np.mean([drifts(drawn) for drawn in 0.02 * noise])),
        "bimodal": float(np.mean([is_bimodal(np.exp(drawn)) for drawn in 0.02 * noise])),
        "clock changed": float(np.mean([clock_changed(np.exp(drawn)) for drawn in CLOCK_JITTER * noise])),
    }


def found_rates(count: int, *, trials: int, seed: int = SEED) -> Mapping[str, float]:
    """How often what is there is flagged over `count` normal rounds, in units of a round's standard deviation.

    A drift of three of them from the first round to the last, and two equally likely modes that are 8 and 12 of them apart.
    """
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(trials, count))
    second = generator.integers(0, 2, size=(trials, count))
    return {
        "drift by 3": float(np.mean([drifts(drawn) for drawn in noise + np.linspace(0.0, 3.0, count)])),
        "modes 8 apart": float(np.mean([is_bimodal(np.exp(0.01 * drawn)) for drawn in noise + 8 * second])),
        "modes 12 apart": float(np.mean([is_bimodal(np.exp(0.01 * drawn)) for drawn in noise + 12 * second])),
    }


def noisy_rate(deviation: float, *, trials: int, seed: int = SEED) -> float:
    """How often a machine is called noisy by one step of a self-comparison, for rounds of this standard deviation."""
    draws = np.random.default_rng(seed).normal(0.0, deviation, size=(trials, 2 * ROUNDS))
    return float(np.mean([_is_noisy(drawn) for drawn in draws]))


def _is_noisy(drawn: Array) -> bool:
    judged = _compare(drawn, Looks(ROUNDS, 2 * ROUNDS), DEFAULT_DELTA)
    differs = judged.outcome in (Outcome.FASTER, Outcome.SLOWER)
    return differs or noise_of_a_round(drawn[: judged.rounds]) > most_noise(2 * ROUNDS, DEFAULT_DELTA)


def rates_row(effect: float, deviation: float) -> str:
    """A line of the first table: how often each outcome comes out."""
    rates = outcome_rates(effect, deviation, trials=TRIALS)
    shares = (rates[Outcome.FASTER] + rates[Outcome.SLOWER], rates[Outcome.SAME], rates[Outcome.INCONCLUSIVE])
    return f"| {' | '.join((f'{effect:+.0%}', f'{deviation:.0%}', *(f'{share:.1%}' for share in shares)))} |"


def looks_row(effect: float, deviation: float, most: int, in_time: tuple[int, int] | None = None) -> str:
    """A line of the second table: up to `most` rounds, or as many of them as time is left for."""
    ended = list(_comparisons(effect, deviation, Looks(ROUNDS, most), trials=TRIALS, in_time=in_time))
    outcomes = Counter(one.outcome for one in ended)
    shares = (outcomes[Outcome.FASTER] + outcomes[Outcome.SLOWER], outcomes[Outcome.SAME], outcomes[Outcome.INCONCLUSIVE])
    took = f"{sum(one.rounds for one in ended) / TRIALS:.1f}"
    what = f"{most}" if in_time is None else f"{most}, time for {in_time[0]} to {in_time[1]}"
    cells = (what, f"{effect:+.0%}", f"{deviation:.0%}", *(f"{share / TRIALS:.1%}" for share in shares), took)
    return f"| {' | '.join(cells)} |"


def flags_row(count: int, shape: str) -> str:
    """A line of the third table: how often `count` calm rounds are flagged."""
    return f"| {count} | {shape} | {' | '.join(f'{rate:.1%}' for rate in flag_rates(count, shape, trials=TRIALS).values())} |"


def found_row(count: int) -> str:
    """A line of the fourth table: how often a drift and two modes are flagged over `count` rounds."""
    return f"| {count} | {' | '.join(f'{rate:.0%}' for rate in found_rates(count, trials=TRIALS).values())} |"


def noisy_row(deviation: float) -> str:
    """A line of the last table: how often a machine of this noise fails, by one step and by any of three."""
    rate = noisy_rate(deviation, trials=TRIALS)
    return f"| {deviation:.0%} | {rate:.1%} | {1 - (1 - rate) ** 3:.1%} |"


def main() -> None:
    """Print the tables of `docs/method.md`."""
    print("| true change | sd of a round | faster or slower | same | inconclusive |\n|---|---|---|---|---|")
    for effect in (0.0, 0.02, 0.05, 0.10):
        for deviation in (0.01, 0.02, 0.03, 0.05):
            print(rates_row(effect, deviation))
    print("\n| most rounds | true change | sd of a round | faster or slower | same | inconclusive | rounds taken |")
    print("|---|---|---|---|---|---|---|")
    for most, in_time in LOOKS:
        for effect in (0.0, 0.05):
            for deviation in (0.03, 0.05):
                print(looks_row(effect, deviation, most, in_time))
    print("\n| rounds | noise | drift | bimodal | clock changed |\n|---|---|---|---|---|")
    for count in (6, 8, 16, 24):
        for shape in SHAPES:
            print(flags_row(count, shape))
    print("\n| rounds | drift by 3 | modes 8 apart | modes 12 apart |\n|---|---|---|---|")
    for count in (8, 16, 24):
        print(found_row(count))
    print("\n| sd of a round | noisy by one step | by any of three |\n|---|---|---|")
    for deviation in (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08):
        print(noisy_row(deviation))


if __name__ == "__main__":
    main()
