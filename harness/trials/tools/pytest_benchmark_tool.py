"""pytest-benchmark: the tests run in each checkout, the first run saved, the second compared with it.

Its help's example of `--benchmark-compare-fail` is the minimum by 5 %; of the fields that it offers the median is judged here,
as it stands noise best. A run takes one limit for a field; what the same medians come to at our delta is worked out here.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frostline.harness.trials.tools.base import SCRATCH, SLOWER, UNCHANGED, Answer, Reading, Shell, ToolFailed

USUAL_PERCENT, DELTA_PERCENT = 5, 3
_FAILED = re.compile(r"test_step\[(\w+)\].*'median' has failed PercentageRegressionCheck")
_REGRESSED = "Performance has regressed"


def read_failures(text: str) -> set[str]:
    """The steps whose check failed."""
    return set(_FAILED.findall(text))


def read_medians(saved: Path) -> Mapping[str, float]:
    """By step, the median of a saved run, s."""
    runs = json.loads(saved.read_text())["benchmarks"]
    return {run["params"]["step"]: float(run["stats"]["median"]) for run in runs}


@dataclass(frozen=True)
class PytestBenchmark:
    """pytest-benchmark with its own defaults."""

    shell: Shell
    name: str = "pytest-benchmark"
    settings: Sequence[str] = (f"median:{USUAL_PERCENT}%", f"median:{DELTA_PERCENT}%")

    def commands(self, tag: str) -> Sequence[Sequence[str]]:
        """A checkout and a run for each side."""
        chosen = ["-k", " or ".join(self.shell.steps), "--benchmark-max-time=0.05"] if self.shell.quick else []
        run = ["pytest", "test_planted.py", *chosen, f"--benchmark-storage={SCRATCH}", "--benchmark-autosave"]
        return [
            ["git", "checkout", "base"],
            run,
            ["git", "checkout", tag],
            [*run, "--benchmark-compare=0001", f"--benchmark-compare-fail={self.settings[0]}"],
        ]

    def set_up(self, tags: Sequence[str]) -> None:
        """Nothing: it runs what is checked out."""

    def compare(self, tag: str) -> Answer:
        """Run all four; the last fails where something has regressed."""
        shutil.rmtree(self.shell.scratch, ignore_errors=True)
        self.shell.scratch.mkdir()
        *before, last = self.commands(tag)
        done = [self.shell.run(command) for command in before]
        done.append(self.shell.run(last, codes=(0, 1)))
        if done[-1].code == 1 and _REGRESSED not in done[-1].output:
            raise ToolFailed(f"pytest-benchmark, base and {tag}: the tests did not pass:\n{done[-1].output[-2000:]}")
        failed = read_failures(done[-1].output)
        base, head = (read_medians(saved) for saved in sorted(self.shell.scratch.glob("*/000[12]_*.json")))
        readings = []
        for step in self.shell.steps:
            ratio = head[step] / base[step]
            told = (step in failed, ratio > 1 + DELTA_PERCENT / 100)
            for setting, slower in zip(self.settings, told, strict=True):
                readings.append(Reading(setting, step, SLOWER if slower else UNCHANGED, ratio))
        return Answer(readings, sum(one.seconds for one in done))
