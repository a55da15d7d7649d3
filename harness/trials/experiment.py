"""What is compared how often: the cells of the experiment, its forms, and an order that may be stopped anywhere.

A cell is a tool in one way of running, with or without the background load, on one planted change. A command of any tool
compares all three steps at once, as a user's would; so a cell of n commands has 3 n comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from frostline.harness.trials.tools.asv_tool import Asv
from frostline.harness.trials.tools.base import Shell, Tool
from frostline.harness.trials.tools.frostline_tool import Frostline
from frostline.harness.trials.tools.pyperf_tool import Pyperf
from frostline.harness.trials.tools.pytest_benchmark_tool import PytestBenchmark

CALM, NOISY = "calm", "noisy"

WAYS: Mapping[str, Callable[[Shell], Tool]] = {
    "fork": lambda shell: Frostline(shell, "fork"),
    "spawn": lambda shell: Frostline(shell, "spawn"),
    "fork in turn": lambda shell: Frostline(shell, "fork", in_turn=True),
    "pytest-benchmark": PytestBenchmark,
    "asv": Asv,
    "pyperf": Pyperf,
}

Counts = Mapping[tuple[str, str, int], int]

SHORT: Counts = {
    ("fork", NOISY, 0): 1,
    ("fork in turn", CALM, 10): 1,
    ("pytest-benchmark", CALM, 10): 1,
    ("asv", CALM, 10): 1,
    ("pyperf", NOISY, 10): 1,
}
"""A trial of the program itself, with the quickest options of every tool."""

USUAL: Counts = {
    ("fork", NOISY, 0): 30,
    ("fork", CALM, 0): 14,
    ("spawn", NOISY, 0): 8,
    ("spawn", CALM, 0): 4,
    ("fork in turn", NOISY, 0): 7,
    ("fork in turn", CALM, 0): 4,
    ("fork", NOISY, 3): 1,
    ("fork", NOISY, 5): 4,
    ("fork", NOISY, 10): 3,
    ("fork", CALM, 3): 1,
    ("fork", CALM, 5): 2,
    ("fork", CALM, 10): 2,
    ("pytest-benchmark", NOISY, 0): 4,
    ("pytest-benchmark", CALM, 0): 2,
    ("pytest-benchmark", NOISY, 3): 1,
    ("pytest-benchmark", NOISY, 5): 2,
    ("pytest-benchmark", NOISY, 10): 1,
    ("pytest-benchmark", CALM, 3): 1,
    ("pytest-benchmark", CALM, 5): 1,
    ("pytest-benchmark", CALM, 10): 1,
    ("asv", NOISY, 0): 2,
    ("asv", CALM, 0): 1,
    ("asv", NOISY, 5): 1,
    ("asv", NOISY, 10): 1,
    ("asv", CALM, 5): 1,
    ("asv", CALM, 10): 1,
    ("pyperf", NOISY, 0): 1,
    ("pyperf", CALM, 0): 1,
    ("pyperf", NOISY, 5): 1,
    ("pyperf", CALM, 5): 1,
}
"""201 self-comparisons of ours, and the others beside them."""


def _full() -> Counts:
    """Enough for intervals of a few percent of every tool on every change."""
    own = {("fork", load, change): 120 if change == 0 else 40 for load in (NOISY, CALM) for change in (0, 3, 5, 10)}
    ways = {(way, load, 0): 34 for way in ("spawn", "fork in turn") for load in (NOISY, CALM)}
    planted = {("spawn", load, change): 10 for load in (NOISY, CALM) for change in (5, 10)}
    others = {
        (way, load, change): count
        for way, count in (("pytest-benchmark", 34), ("asv", 17), ("pyperf", 10))
        for load in (NOISY, CALM)
        for change in (0, 3, 5, 10)
    }
    return own | ways | planted | others


FORMS: Mapping[str, Counts] = {"short": SHORT, "usual": USUAL, "full": _full()}


@dataclass(frozen=True)
class Command:
    """One command of one cell. `turn` counts within the cell, from 0."""

    way: str
    load: str
    change: int
    turn: int

    @property
    def name(self) -> str:
        """As progress shows it."""
        return f"{self.way}, {self.load}, {f'{self.change} % more' if self.change else 'the same'}, {self.turn + 1}"


def commands_of(counts: Counts, ways: Sequence[str] = tuple(WAYS)) -> list[Command]:
    """All commands, the cells mixed in proportion: stopped anywhere, every cell has got its share.

    The machine's slow changes over an hour then fall on all cells alike, too.
    """
    placed = list(_placed(counts, ways))
    return [command for _, command in sorted(placed, key=lambda each: each[0])]


def _placed(counts: Counts, ways: Sequence[str]) -> Iterator[tuple[float, Command]]:
    for (way, load, change), count in counts.items():
        if way in ways:
            for turn in range(count):
                yield (turn + 0.5) / count, Command(way, load, change, turn)
