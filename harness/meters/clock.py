"""How a step is timed: `perf_counter_ns` on a CPU, CUDA events on a GPU. Every reading is kept; nothing is filtered.

A CUDA reading is the time between two events around the step on the current stream. It includes gaps in which the GPU
waits for the host to launch, as a training step would. `time_calls` is the host's part of that, `ColdEvents` the same
without what an earlier step left in the L2 cache; `kernels.py` has the kernels' own time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from frostline.harness.declare import Step

FLUSH_OVER_L2 = 4  # what is written to displace a cache, over its size


class Clock(Protocol):
    """Takes readings of a step; returns for each the monotonic start and the time of one run, both in ns."""

    def __call__(self, step: Step, steps: int, loops: int = 1) -> list[tuple[int, float]]:
        """Take `steps` readings, each over `loops` runs (over one where the step must be reset before every run)."""


def clock_for(device: str) -> Clock:
    """The clock of a device name (`cpu`, `cuda`, `cuda:1`)."""
    return time_on_cuda if device.startswith("cuda") else time_on_host


def time_on_host(step: Step, steps: int, loops: int = 1, after: Callable[[], object] | None = None) -> list[tuple[int, float]]:
    """Wall time of each run, garbage collection held off as a collection would fall on one side by chance.

    `after` is called after every reading, outside of it.
    """
    run, reset, runs = step.run, step.reset or _nothing, _runs(step, loops)
    after, readings = after or _nothing, []
    with no_collection():
        for _ in range(steps):
            reset()
            start = time.perf_counter_ns()
            for _ in runs:
                run()
            readings.append((start, (time.perf_counter_ns() - start) / len(runs)))
            after()
    return readings


def time_calls(step: Step, steps: int, loops: int = 1) -> list[tuple[int, float]]:
    """What the host takes to call a step whose work a GPU does: it goes from call to call and waits for nothing.

    Only where the GPU is more than a whole reading behind does the host wait for it, between two readings: its queue would fill
    (at about a thousand launches), and the host's wait in a launch would count.
    """
    import torch

    torch.cuda.synchronize()
    return time_on_host(step, steps, loops, after=_Queue(torch.cuda.Event).keep_short)


class _Queue:
    """What the GPU was given and has not done yet, in readings."""

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event = event
        self._last: Any = None

    def keep_short(self) -> None:
        """Wait for the reading before the last, if it is not done."""
        if self._last is not None and not self._last.query():
            self._last.synchronize()
        self._last = self._event()
        self._last.record()


def time_on_cuda(
    step: Step, steps: int, loops: int = 1, before_each: Callable[[], object] | None = None
) -> list[tuple[int, float]]:
    """Time between CUDA events around each run; one synchronisation at the end of the block.

    `before_each` is called before every reading, outside of it.
    """
    import torch

    reset, runs = step.reset or _nothing, _runs(step, loops)
    before_each = before_each or _nothing
    events, starts = [], []
    with no_collection():
        torch.cuda.synchronize()
        for _ in range(steps):
            reset()
            before_each()
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


class ColdEvents:
    """`time_on_cuda` with the L2 cache overwritten before each run, as `triton.testing.do_bench` does.

    While the GPU overwrites it the host goes ahead and launches, so less of the host's time is in a reading. What was written
    is on its way to memory while the step runs: a step that is bound by bandwidth takes longer than it otherwise would.

    Args:
        flush: overwrites the cache, see `flusher`.
    """

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush

    def __call__(self, step: Step, steps: int, loops: int = 1) -> list[tuple[int, float]]:
        """Take `steps` readings of one run each: a second one would find the cache warm."""
        del loops
        return time_on_cuda(step, steps, 1, before_each=self._flush)


def l2_bytes() -> int:
    """The size of the current GPU's L2 cache."""
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def flusher() -> Callable[[], object]:
    """A function that overwrites the current GPU's L2 cache. Its memory lasts as long as it does."""
    import torch

    return torch.empty(FLUSH_OVER_L2 * l2_bytes(), dtype=torch.int8, device="cuda").zero_


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
def no_collection() -> Iterator[None]:
    """Collect garbage now, and none inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
