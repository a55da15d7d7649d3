"""Peak memory of a step: the CUDA allocator's own figures, and on a CPU (or of fake tensors) the bytes of live tensors.

A CPU has no allocator statistics, and the resident set moves with malloc's caching by more than what a pruned gradient
saves. So the peak there is that of live tensor bytes, followed operator by operator (`LiveBytes`): exact, the same in every
run, and the same for fake tensors, which makes a prediction comparable with a measurement. What an operator allocates and
frees inside itself is not seen. Under a dispatch mode, as for fake tensors, autograd adds the gradients of a tensor that was
used more than once out of place, where it otherwise may add in place: one such gradient more for a moment.

torch has a tracker of its own, `torch.distributed._tools.mem_tracker.MemTracker`, and it finds the same bytes (a test holds one
against the other). It is not the base here for three reasons: it rounds as the CUDA allocator does by the tensor's
device, and the cost model's fake tensors live on `cpu`; while entered it replaces `torch.UntypedStorage.resize_` and hooks
every module and optimizer of the process, which the measured code could notice; and it imports `torch.distributed`.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from frostline.harness.declare import Step
from frostline.harness.meters.dispatch import OperatorWatch, tensors_in
from frostline.results.record import PEAK_ABOVE_INPUTS, PEAK_ALLOCATED, PEAK_RESERVED

# Of the CUDA caching allocator (c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp), in bytes.
_GRANULE = 512  # kMinBlockSize: every request is rounded up to a multiple of it
_LARGE = 10 * 2**20  # kMinLargeAlloc: from here on a request has a segment of its own
_SEGMENT = 2 * 2**20  # kRoundLarge: such a segment is a multiple of this
_SPLIT = 2**20  # kSmallSize: what is left of a segment is split off where it is more than this, else the block takes it in


def cuda_block(size: int) -> int:
    """The bytes that the CUDA caching allocator counts for a tensor of `size` bytes, where no larger block lay free."""
    rounded = -(-size // _GRANULE) * _GRANULE
    segment = -(-rounded // _SEGMENT) * _SEGMENT
    return segment if rounded >= _LARGE and segment - rounded <= _SPLIT else rounded


class LiveBytes:
    """A context that follows the bytes of live tensor storages: `current` now, `peak` since the last `reset_peak`.

        tracker = LiveBytes()
        with tracker:
            step = build()                      # the inputs count
        measure_peaks(step, "cpu", tracker=tracker)

    A storage counts once, however many views share it, from the first operator that returns it or takes it until it is
    freed, also when that happens after the context was left; it can be entered again. A storage that changes its size
    (`resize_`, an `out=` that was too small) is counted anew. Operators of other threads are not seen (on a CPU, autograd runs
    the backward in the calling thread). `meta` tensors have no memory, and sparse ones no storage: they do not count.

    Args:
        block: the bytes that a storage of so many bytes counts as: `cuda_block` predicts the CUDA allocator.
    """

    def __init__(self, block: Callable[[int], int] = int) -> None:
        self.current = 0
        self.peak = 0
        self._block = block
        self._sizes: dict[int, int] = {}  # of the storages, as they count
        self._given: dict[int, int] = {}  # and as they are
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        # Arguments are looked at too: a tensor may have been made where no mode sees it (`torch.from_numpy`, another thread).
        self._watch = OperatorWatch(before=self._see, after=self._see)

    def __enter__(self) -> LiveBytes:
        self._watch.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._watch.__exit__(*exception)

    def reset_peak(self) -> None:
        """Let `peak` start from what is alive now."""
        self.peak = self.current

    def _see(self, value: Any) -> None:
        for tensor in tensors_in(value):
            if tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            key, size = id(storage), storage.nbytes()  # stable: torch keeps a storage's Python object as long as the storage
            if self._given.get(key) == size or tensor.device.type == "meta":
                continue
            if key not in self._alive:
                self._alive[key] = weakref.ref(storage, partial(self._release, key))
            self._given[key] = size
            self._resize(key, self._block(size), tensor)
        self.peak = max(self.peak, self.current)

    def _resize(self, key: int, size: int, _tensor: Tensor) -> None:
        """A storage is new or has another size, as an operator shows it: as the storage of this tensor."""
        self.current += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _release(self, key: int, _: object) -> None:
        del self._alive[key], self._given[key]
        self.current -= self._sizes.pop(key)


def measure_peaks(
    step: Step, device: str, repeats: int = 3, tracker: LiveBytes | None = None, *, warm: bool = False
) -> dict[str, float]:
    """Peak bytes of one step: the maximum over `repeats` steps, after one that warms caches up.

    Garbage is collected before each step and not during it. Otherwise the moment at which a reference cycle is freed, and
    with it the peak, would depend on how many Python objects were made before.

    Args:
        step: what is measured; `reset` runs before each step, and what `run` returns is dropped.
        device: `cuda` (or `cuda:1`) reads the allocator's statistics, any other device follows live tensors. A caller's own
            buffers on the device (one that flushes the cache, say) count, so free them first.
        repeats: how many steps, at least 1.
        tracker: one that was active while the step was built, so that every input counts. Without it an input counts when
            an operator of the step takes it.
        warm: the step has already run in the tracker's sight: do without the one that warms up.

    Returns:
        Bytes by metric name: `peak_allocated`, `peak_above_inputs` (above what was live before the step), and on CUDA
        `peak_reserved`.

    Raises:
        ValueError: `repeats` below 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    read: Callable[[Step], dict[str, float]]
    if torch.device(device).type == "cuda":
        read = partial(_cuda_peaks, device=torch.device(device))
    else:
        read = partial(_live_peaks, tracker=tracker or LiveBytes())
    if not warm:
        read(step)
    figures = [read(step) for _ in range(repeats)]
    return {name: max(figure[name] for figure in figures) for name in figures[0]}


def _live_peaks(step: Step, tracker: LiveBytes) -> dict[str, float]:
    with tracker, collected(step):
        tracker.reset_peak()
        before = tracker.current
        step.run()
    return {PEAK_ALLOCATED.name: tracker.peak, PEAK_ABOVE_INPUTS.name: tracker.peak - before}


def _cuda_peaks(step: Step, device: torch.device) -> dict[str, float]:
    with collected(step):
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # or blocks that earlier steps left in the cache would count as reserved by this one
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step.run()
        torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    return {
        PEAK_ALLOCATED.name: peak,
        PEAK_ABOVE_INPUTS.name: peak - before,
        PEAK_RESERVED.name: torch.cuda.max_memory_reserved(device),
    }


@contextmanager
def collected(step: Step) -> Iterator[None]:
    """Reset the step and collect garbage; inside, the collector keeps still."""
    if step.reset is not None:
        step.reset()
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
