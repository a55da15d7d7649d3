"""How a step is timed: `perf_counter_ns` on a CPU, CUDA events on a GPU. Every reading is kept; nothing is filtered.

A CUDA reading is the time between two events around the step on the current stream. It includes gaps in which the GPU
waits for the host to launch, as a training step would.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from frostline.harness.declare import Step


class Clock(Protocol):
    """Takes readings of a step; returns for each the monotonic start and the time of one run, both in ns."""

    def __call__(self, step: Step, steps: int, loops: int = 1) -> list[tuple[int, float]]:
        """Take `steps` readings, each over `loops` runs (over one where the step must be reset before every run)."""


def clock_for(device: str) -> Clock:
    """The clock of a device name (`cpu`, `cuda`, `cuda:1`)."""
    return time_on_cuda if device.startswith("cuda") else time_on_host


def time_on_host(step: Step, steps: int, loops: int = 1) -> list[tuple[int, float]]:
    """Wall time of each run, garbage collection held off as a collection would fall on one side by chance."""
    run, reset, runs = step.run, step.reset or _nothing, _runs(step, loops)
    readings = []
    with _no_collection():
        for _ in range(steps):
            reset()
            start = time.perf_counter_ns()
            for _ in runs:
                run()
            readings.append((start, (time.perf_counter_ns() - start) / len(runs)))
    return readings


def time_on_cuda(step: Step, steps: int, loops: int = 1) -> list[tuple[int, float]]:
    """Time between CUDA events around each run; one synchronisation at the end of the block."""
    import torch

    reset, runs = step.reset or _nothing, _runs(step, loops)
    events, starts = [], []
    with _no_collection():
        torch.cuda.synchronize()
        for _ in range(steps):
            reset()
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            starts.append(time.perf_counter_ns())
            before.record()
            for _ in runs:
                step.run()
            after.record()
            events.append((before, after))
        torch.cuda.synchronize()
    return [
        (start, before.elapsed_time(after) * 1e6 / len(runs)) for start, (before, after) in zip(starts, events, strict=True)
    ]


def warm_up(step: Step, clock: Clock, *, at_least: int = 3, for_ns: float = 50e6, at_most: int = 20) -> float:
    """Run until warm (compilation happens here and never counts); returns the shortest run's time in ns."""
    times: list[float] = []
    while len(times) < at_least or (sum(times) < for_ns and len(times) < at_most):
        times += [value for _, value in clock(step, 1)]
    return min(times)


def _runs(step: Step, loops: int) -> range:
    return range(1 if step.reset else loops)


def _nothing() -> None:
    pass


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
