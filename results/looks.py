"""After how many rounds a comparison is judged, and how much error each of these looks may spend.

A comparison that stops as soon as it can tell has as many chances to err as it takes looks, so the error of a look has to
shrink with their number. The first look always spends the same, so that its verdict does not depend on how long one would have
gone on; the looks after it share as much again, in equal parts. Errors add up at most (Bonferroni), however the looks depend on
each other: over any number of looks a false difference costs at most 2 % and a false `same` at most 10 %, as with two looks.

`docs/method.md` has the simulated rates (`python -m frostline.results.simulate`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DIFFERENCE_ERROR = 0.01  # of the first look, two-sided: its interval holds the true ratio in 99 of 100 cases
EQUIVALENCE_ERROR = 0.05  # of the first look, for each of the two one-sided tests of `same`
LOOK_ROUNDS = 8


@dataclass(frozen=True)
class Errors:
    """What one look may spend: the two-sided error of the interval, and that of each one-sided test of `same`."""

    difference: float = DIFFERENCE_ERROR
    equivalence: float = EQUIVALENCE_ERROR

    @property
    def level(self) -> float:
        """The confidence of the interval."""
        return 1 - self.difference


FIRST_LOOK = Errors()


@dataclass(frozen=True)
class Looks:
    """A look after every `rounds` rounds, the last after `most` (which need not be a multiple of them)."""

    rounds: int = LOOK_ROUNDS
    most: int = LOOK_ROUNDS

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> Looks:
        """The looks of a session's stored plan; one of before `max_rounds` could be asked for has `looks` of equal length."""
        rounds = int(plan.get("rounds", LOOK_ROUNDS))
        return cls(rounds, int(plan.get("max_rounds") or rounds * int(plan.get("looks", 1))))

    @property
    def ends(self) -> tuple[int, ...]:
        """The rounds after which a verdict is tried."""
        return (*range(self.rounds, self.most, self.rounds), self.most)

    def errors(self, rounds: int) -> Errors:
        """What may be spent after this many rounds: by the look that they belong to, finished or not.

        A look that is cut short (the time was used up) is judged as itself: how many rounds fit says nothing of their ratios.
        """
        later = len(self.ends) - 1
        if later < 2 or bisect_left(self.ends, rounds) == 0:
            return FIRST_LOOK
        return Errors(DIFFERENCE_ERROR / later, EQUIVALENCE_ERROR / later)
