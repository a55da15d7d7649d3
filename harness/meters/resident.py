"""Peak resident set of a step: the memory meter of suites that do not use torch, hence free of torch itself."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from frostline.harness.declare import Step
from frostline.results.record import PEAK_RESIDENT

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_HIGH_WATER = "5"  # proc(5): sets VmHWM back to the present resident set


def measure_resident(step: Step, repeats: int = 3) -> dict[str, float]:
    """Peak resident bytes of the process over `repeats` steps.

    On Linux the high-water mark is set back before the steps (proc(5), `clear_refs`), so that what was freed after building
    the step does not count. Where the kernel refuses that, and on macOS, it is the peak since the process began.

    Returns:
        `peak_resident` in bytes.

    Raises:
        ValueError: `repeats` below 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    gc.collect()
    _forget_peak()
    for _ in range(repeats):
        if step.reset is not None:
            step.reset()
        step.run()
    return {PEAK_RESIDENT.name: float(_peak())}


def _forget_peak() -> None:
    try:
        _CLEAR.write_text(_RESET_HIGH_WATER)
    except OSError:
        return  # no /proc, or not ours to reset: the peak of the whole process stands


def _peak() -> int:
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024  # the kernel writes kB
    import resource  # not on every platform, and needed only where there is no /proc

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB
