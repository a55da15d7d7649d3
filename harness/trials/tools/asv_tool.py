"""asv, by `asv continuous`: it checks both commits out into an environment of its own and runs them in two interleaved rounds.

Its usual rule asks for a change of 10 % (`--factor 1.1`) that its test calls significant. The same samples are read a second
time with the factor that is our delta, by `asv compare`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frostline.harness.trials.tools.base import FASTER, SLOWER, UNCHANGED, Answer, Done, Reading, Shell, ToolFailed

USUAL, AT_DELTA = "factor 1.1", "factor 1.03"
_ROW = re.compile(
    r"^\|\s*([-+]?)\s*\|[^|]*\|[^|]*\|\s*~?([\d.]+|n/a)\s*\|\s*bench_asv\.Steps\.time_step\('(\w+)'\)\s*\|", re.MULTILINE
)
_UNCHANGED = "BENCHMARKS NOT SIGNIFICANTLY CHANGED"
_WORDS = {"+": SLOWER, "-": FASTER, "": UNCHANGED}


def read_table(text: str) -> Mapping[str, tuple[str, float | None]]:
    """By step, the outcome and the ratio of a table of `asv continuous` or `asv compare`.

    A `+` before a benchmark is a slowdown, a `-` a speed-up; a ratio with `~` is not significant.
    """
    rows = _ROW.findall(text)
    return {step: (_WORDS[mark], None if ratio == "n/a" else float(ratio)) for mark, ratio, step in rows}


@dataclass(frozen=True)
class Asv:
    """asv with its own defaults."""

    shell: Shell
    name: str = "asv"
    settings: Sequence[str] = (USUAL, AT_DELTA)

    def commands(self, tag: str) -> Sequence[Sequence[str]]:
        """`asv continuous` measures and judges; `asv compare` judges again."""
        quick = ["--bench", "|".join(self.shell.steps), "--attribute", "rounds=1", "--attribute", "repeat=3"]
        return [
            ["asv", "continuous", *(quick if self.shell.quick else []), "base", tag],
            ["asv", "compare", "--factor", "1.03", "base", tag],
        ]

    def set_up(self, tags: Sequence[str]) -> None:
        """Its file about the machine, its environment, and a build of every revision."""
        self._run(["asv", "machine", "--yes"])
        for tag in () if self.shell.quick else tags:
            self._run(["asv", "continuous", "--quick", "--bench", "python", "base", tag])

    def compare(self, tag: str) -> Answer:
        """Run both; the time is that of the first."""
        first, second = self.commands(tag)
        done = self._run(first)
        usual, again = read_table(done.output), read_table(self._run(second).output)
        missing = set(self.shell.steps) - set(again)
        if missing or not (usual or _UNCHANGED in done.output):
            raise ToolFailed(f"asv continuous base {tag}: no answer for {', '.join(sorted(missing)) or 'any step'}")
        readings = []
        for step in self.shell.steps:
            outcome, ratio = again[step]
            readings.append(Reading(USUAL, step, usual.get(step, (UNCHANGED, None))[0], ratio))
            readings.append(Reading(AT_DELTA, step, outcome, ratio))
        return Answer(readings, done.seconds)

    def _run(self, command: Sequence[str]) -> Done:
        """With a home of its own, since it keeps what it knows of a machine there; pip's settings stay those of the user."""
        home = self.shell.repository.path / ".asv" / "home"
        home.mkdir(parents=True, exist_ok=True)
        settings = Path.home() / ".config/pip/pip.conf"
        extra = {"HOME": str(home)} | ({"PIP_CONFIG_FILE": str(settings)} if settings.is_file() else {})
        return self.shell.run(command, codes=(0, 1), extra=extra)
