"""The time of a step's kernels alone: replays of a CUDA graph of many runs, or the sum of their durations in a profile.

Both leave out what the host takes, and both begin with an L2 cache that has nothing of the step's tensors. In the graph the
runs take turns on tensors that together exceed the cache, which is what a training step finds: what one run reads was last
touched long ago, and what it writes displaces what others wrote. In a profile the cache is overwritten before each run, so that
a run also has that on its way to memory. A graph's figure has the gaps between two kernels (about 1 us), a profile's has not.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # public, and imported there for that

from frostline.harness.declare import Step
from frostline.harness.meters.clock import l2_bytes, no_collection

TURNS_OVER_L2 = 5.0  # the bytes that the runs of a graph take turns on, over those of the L2 cache: some are not touched again
TURNS_AT_LEAST, TURNS_AT_MOST = 2, 64
REPLAY_NS = 1e6  # that a replay takes at least: from an event to a graph's first kernel it is some us
MARKER = "spin_kernel"  # what `torch.cuda._sleep` launches

Run: TypeAlias = Callable[[], Any]


class Kernel(NamedTuple):
    """Something that a GPU did: a kernel, a copy or a fill. Times in ns."""

    name: str
    start: float
    duration: float


class Replays:
    """A clock that replays a CUDA graph of runs on tensors of their own. Made on the current device.

    Args:
        alike: makes one more run on tensors of its own. It and its runs are called on the stream that is captured, so that a
            backward, which autograd does on its forward's stream, is captured as well.

    Raises:
        RuntimeError: the runs cannot be captured, or do not exceed the cache.
    """

    def __init__(self, alike: Callable[[], Run]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._turns = make_turns(alike, torch.cuda.memory_allocated, TURNS_OVER_L2 * l2_bytes())
            torch.cuda.synchronize()
        self.runs = len(self._turns)
        self._graph = _capture(self._turns, self.runs, stream)
        once = min(value for _, value in self(Step(self._turns[0]), 3)[1:]) * self.runs
        if once < REPLAY_NS:
            self.runs *= math.ceil(REPLAY_NS / once)
            self._graph = _capture(self._turns, self.runs, stream)
            self(Step(self._turns[0]), 1)

    @property
    def how(self) -> str:
        """How the figure comes about, in words."""
        return f"replays of a CUDA graph, of runs on {len(self._turns)} sets of tensors in turn"

    def __call__(self, step: Step, steps: int, loops: int = 1) -> list[tuple[int, float]]:
        """Take `steps` readings, each a replay divided by the runs in it."""
        del step, loops
        readings = []
        with no_collection():
            torch.cuda.synchronize()
            for _ in range(steps):
                before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start = time.perf_counter_ns()
                before.record()
                self._graph.replay()
                after.record()
                readings.append((start, before, after))
            torch.cuda.synchronize()
        return [(start, before.elapsed_time(after) * 1e6 / self.runs) for start, before, after in readings]


def make_turns(alike: Callable[[], Run], allocated: Callable[[], int], enough: float) -> list[Run]:
    """Runs whose tensors and results together take at least `enough` bytes, each called once.

    Args:
        alike: makes a run.
        allocated: the bytes that are allocated now.
        enough: bytes.

    Raises:
        RuntimeError: `TURNS_AT_MOST` take less.
    """
    before = allocated()
    turns: list[Run] = []
    results = []
    while len(turns) < TURNS_AT_LEAST or allocated() - before < enough:
        if len(turns) == TURNS_AT_MOST:
            raise RuntimeError(f"{TURNS_AT_MOST} runs on tensors of their own fit in the L2 cache")
        turns.append(alike())
        results.append(turns[-1]())
    return turns


def _capture(turns: Sequence[Run], runs: int, stream: Any) -> Any:
    """A CUDA graph of `runs` runs in turn, none of which writes where the one before it did. Raises RuntimeError."""
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    kept: deque[Any] = deque(maxlen=len(turns))  # the memory of a result that is dropped is the next one's
    try:
        with no_collection(), torch.cuda.graph(graph, stream=stream):
            for turn in islice(cycle(turns), runs):
                kept.append(turn())
    except RuntimeError:
        torch.cuda.set_stream(current)  # a capture that failed leaves its own as the current stream
        raise
    return graph


class Profiles:
    """A clock that adds up the durations of a run's kernels, copies and fills in a profile.

    Args:
        flush: overwrites the L2 cache.
        because: why no graph is replayed.
    """

    def __init__(self, flush: Callable[[], object], because: str) -> None:
        self._flush = flush
        self.how = f"the sum of durations in a profile ({because})"

    def __call__(self, step: Step, steps: int, loops: int = 1) -> list[tuple[int, float]]:
        """Take `steps` readings of one run each.

        Raises:
            RuntimeError: the profile has not every run.
        """
        del loops
        starts = []
        with no_collection(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(steps):
                if step.reset is not None:
                    step.reset()
                self._flush()
                starts.append(time.perf_counter_ns())
                torch.cuda._sleep(1)
                step.run()
                torch.cuda._sleep(1)
            torch.cuda.synchronize()
        values = between_markers(_kernels(profile))
        if len(values) != steps:
            raise RuntimeError(f"kernel_time: the profile has {len(values)} runs, wanted {steps}")
        return list(zip(starts, values, strict=True))


def between_markers(kernels: Sequence[Kernel]) -> list[float]:
    """The time of what ran between the first and the second marker, the third and the fourth, and so on."""
    sums: list[float] = []
    inside = False
    for kernel in sorted(kernels, key=lambda one: one.start):
        if MARKER in kernel.name:
            inside = not inside
            if inside:
                sums.append(0.0)
        elif inside:
            sums[-1] += kernel.duration
    return sums[:-1] if inside else sums


def _kernels(profile: Any) -> list[Kernel]:
    def found() -> Iterator[Kernel]:
        for event in profile.events():
            if event.device_type == DeviceType.CUDA:
                yield Kernel(event.name, event.time_range.start * 1e3, event.time_range.elapsed_us() * 1e3)

    return list(found())
