"""pyperf: a script run in each checkout, each of its benchmarks in twenty processes, and `pyperf compare_to`.

Its usual rule calls every change that a t test finds significant. The same files are read a second time with `--min-speed` at
our delta.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frostline.harness.trials.tools.base import SCRATCH, UNCHANGED, Answer, Reading, Shell, ToolFailed

USUAL, AT_DELTA = "t test", "t test, min-speed 3"
_CHANGED = re.compile(r"^(?:(\w+): )?Mean \+- std dev: .*: ([\d.]+)x (slower|faster)$", re.MULTILINE)
_HIDDEN = re.compile(r"^Benchmark hidden because not significant \(\d+\): (.*)$", re.MULTILINE)


def read_comparison(text: str, steps: Sequence[str]) -> Mapping[str, tuple[str, float | None]]:
    """By step, the outcome and the ratio that `pyperf compare_to` prints; of those that it hides no ratio is known.

    Raises:
        ToolFailed: a step of which it says nothing.
    """
    found: dict[str, tuple[str, float | None]] = {}
    for name, times, word in _CHANGED.findall(text):
        found[name or steps[0]] = (word, float(times) if word == "slower" else 1 / float(times))
    for names in _HIDDEN.findall(text):
        found |= dict.fromkeys(names.split(", "), (UNCHANGED, None))
    if missing := set(steps) - set(found):
        raise ToolFailed(f"pyperf compare_to says nothing of {', '.join(sorted(missing))}:\n{text}")
    return found


@dataclass(frozen=True)
class Pyperf:
    """pyperf with its own defaults."""

    shell: Shell
    name: str = "pyperf"
    settings: Sequence[str] = (USUAL, AT_DELTA)

    def commands(self, tag: str) -> Sequence[Sequence[str]]:
        """A checkout and a run for each side, then the comparison, twice."""
        quick = ["--processes", "2", "--values", "2", "--min-time", "0.005"] if self.shell.quick else []
        files = [f"{SCRATCH}/base.json", f"{SCRATCH}/{tag}.json"]
        return [
            ["git", "checkout", "base"],
            ["python", "bench_pyperf.py", *quick, "-o", files[0]],
            ["git", "checkout", tag],
            ["python", "bench_pyperf.py", *quick, "-o", files[1]],
            ["pyperf", "compare_to", *files],
            ["pyperf", "compare_to", "--min-speed", "3", *files],
        ]

    def set_up(self, tags: Sequence[str]) -> None:
        """Nothing: it runs what is checked out."""

    def compare(self, tag: str) -> Answer:
        """Run all; the time is that of all but the second comparison."""
        shutil.rmtree(self.shell.scratch, ignore_errors=True)
        self.shell.scratch.mkdir()
        done = [self.shell.run(command) for command in self.commands(tag)]
        readings = []
        for setting, one in zip(self.settings, done[-2:], strict=True):
            found = read_comparison(one.output, ("gemm", "norm", "python"))
            readings += [Reading(setting, step, *found[step]) for step in self.shell.steps]
        return Answer(readings, sum(one.seconds for one in done[:-1]))
