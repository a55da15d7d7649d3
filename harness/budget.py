"""The time that a session may take: when it is used up, what is there is judged.

It is asked before each check and each round, and never ends one that has begun, so nothing that was recorded is lost. A round
that would not end in time, by how long the rounds so far took, is not begun: a budget is kept, not overrun by a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from frostline.results.record import Interleave, ProcessRecord, Role


class Budget:
    """Seconds from now on; None sets no limit. `cut` has the cases that had to do without a check or a round.

    Args:
        seconds: of the whole session, checks included.
        recorded: how long a round of a case took, in seconds by case, where an earlier command has measured some.
        clock: tells seconds; for tests.
    """

    def __init__(
        self,
        seconds: float | None,
        recorded: Mapping[str, float] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds
        self._longest = dict(recorded or {})  # round so far, by case
        self.cut: set[str] = set()

    def allows_check(self, case_id: str) -> bool:
        """Whether there is time left at all. A case that is not checked cannot be measured either."""
        return self._allows(case_id, 0.0)

    def allows_round(self, case_id: str) -> bool:
        """Whether another round of the case would end in time.

        It is taken to last as long as the case's longest so far; before its first, as long as the longest of any case.
        """
        return self._allows(case_id, self._longest.get(case_id, max(self._longest.values(), default=0.0)))

    @contextmanager
    def round(self, case_id: str) -> Iterator[None]:
        """Take the time of a round of a case."""
        begun = self._clock()
        yield
        self._longest[case_id] = max(self._longest.get(case_id, 0.0), self._clock() - begun)

    def _allows(self, case_id: str, needed: float) -> bool:
        if self._end is None:
            return True
        left = self._end - self._clock()
        if left > 0 and left >= needed:
            return True
        self.cut.add(case_id)
        return False


def longest_rounds(records: Sequence[ProcessRecord]) -> dict[str, float]:
    """How many seconds the longest stored round of each case took, by the lives of its processes."""
    lives: dict[tuple[str, int, int, Interleave], list[float]] = {}
    for item in records:
        if item.role is Role.MEASURE:
            lives.setdefault((item.case_id, item.round, item.attempt, item.interleave), []).append(item.seconds)
    rounds: dict[tuple[str, int], float] = {}
    for (case_id, number, _, interleave), seconds in lives.items():
        together = max(seconds) if interleave is Interleave.BLOCK else sum(seconds)
        rounds[case_id, number] = rounds.get((case_id, number), 0.0) + together
    longest: dict[str, float] = {}
    for (case_id, _), took in rounds.items():
        longest[case_id] = max(longest.get(case_id, 0.0), took)
    return longest
