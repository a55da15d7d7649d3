"""A neighbour that comes and goes: burns a core or streams memory for random stretches, with pauses.

    python -m frostline.harness.trials.load SEED

Runs until its standard input is closed, which the death of whoever started it does as well. The same seed gives the same
stretches in the same order.
"""

from __future__ import annotations

import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

STREAMED_FLOATS = 2**22  # 32 MiB in float64: more than a core's own caches
SLICE_S = 0.05  # of work between two looks at the input


@dataclass(frozen=True)
class LoadPlan:
    """How the neighbour behaves.

    Attributes:
        processes: how many come and go independently.
        shortest_s, longest_s: a stretch of work lasts between these, and so does a pause; uniform in the log.
    """

    processes: int = 1
    shortest_s: float = 0.2
    longest_s: float = 5.0


def stretches(seed: int, plan: LoadPlan) -> Iterator[tuple[str, float]]:
    """What is done and for how long, s, without end: `burn` or `stream`, then `pause`, and again."""
    chance = random.Random(seed)
    while True:
        for what in (chance.choice(("burn", "stream")), "pause"):
            yield what, plan.shortest_s * (plan.longest_s / plan.shortest_s) ** chance.random()


@contextmanager
def background(seed: int, plan: LoadPlan) -> Iterator[None]:
    """The neighbours, while the block lasts."""
    command = [sys.executable, "-P", "-m", "frostline.harness.trials.load"]
    lengths = [str(plan.shortest_s), str(plan.longest_s)]
    running = [
        subprocess.Popen([*command, str(seed + number), *lengths], stdin=subprocess.PIPE) for number in range(plan.processes)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    """Work and pause until the input is closed."""
    seed, shortest, longest = sys.argv[1:]
    source = np.ones(STREAMED_FLOATS)
    target = np.empty_like(source)
    for what, seconds in stretches(int(seed), LoadPlan(1, float(shortest), float(longest))):
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            wait = left if what == "pause" else 0.0
            if select.select([sys.stdin], [], [], wait)[0]:
                return
            stop = time.monotonic() + min(SLICE_S, left)
            while what != "pause" and time.monotonic() < stop:
                if what == "stream":
                    np.copyto(target, source)
                else:
                    sum(range(10_000))


if __name__ == "__main__":
    main()
