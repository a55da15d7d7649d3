"""What a planted change really costs: both revisions in one process, forth and back in single steps.

    python -m frostline.harness.trials.calibrate BASE_FILE CHANGED_FILE SECONDS

Prints for each step the ratio of times (the median over many A B B A) and the base's median time. Between steps that follow one
another within a millisecond the machine hardly changes, so this is far more precise than any tool here; but it sees one process
alone, one memory layout, and knows nothing of how processes differ.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

STEPS_AT_LEAST = 20  # A B B A


def module_of(path: Path) -> ModuleType:
    """The module in a file, whatever the file's name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ratio_of(first: Callable[[], Any], second: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Second over first in time, and the time of the first in ns: medians over as many A B B A as `seconds` hold."""
    ratios: list[float] = []
    times: list[int] = []
    until = time.monotonic() + seconds
    while len(ratios) < STEPS_AT_LEAST or time.monotonic() < until:
        a, b, c, d = (_time(step) for step in (first, second, second, first))
        ratios.append((b + c) / (a + d))
        times += [a, d]
    return median(ratios), median(times)


def _time(step: Callable[[], Any]) -> int:
    began = time.perf_counter_ns()
    step()
    return time.perf_counter_ns() - began


def main() -> None:
    """Print a line of JSON: by step, the ratio and the base's time in ns."""
    base, changed = (module_of(Path(name)) for name in sys.argv[1:3])
    steps = ("gemm", "norm", "python")
    print(json.dumps({name: ratio_of(getattr(base, name)(), getattr(changed, name)(), float(sys.argv[3])) for name in steps}))


if __name__ == "__main__":
    main()
