"""What all tools have in common: commands as a user types them, run in the planted repository, and what was read from them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from frostline.harness.trials.planted import STEPS, PlantedRepository

SCRATCH = ".scratch"  # in the repository, ignored by git: what a comparison leaves behind
SLOWER, FASTER, UNCHANGED = "slower", "faster", "unchanged"
LINES_OF_A_FAILURE = 15

_PROGRAMS: Mapping[str, Sequence[str]] = {  # what a name on the command line stands for: the one of this environment
    "frostline": (sys.executable, "-P", "-m", "frostline.harness.cli"),
    "asv": (sys.executable, "-m", "asv"),
    "pyperf": (sys.executable, "-m", "pyperf"),
    "pytest": (sys.executable, "-m", "pytest"),
    "python": (sys.executable,),
}


class ToolFailed(Exception):
    """A tool ended in a way that is no answer; with the end of what it said."""


def _outside_pytest() -> dict[str, str]:
    """The environment without what a pytest around us leaves in it: pytest-benchmark measures nothing in a worker of xdist."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@dataclass(frozen=True)
class Reading:
    """What a tool says of a step in one of its settings. `ratio`: second over first, None where it does not say."""

    setting: str
    step: str
    outcome: str
    ratio: float | None = None
    log_ratios: Sequence[float] = ()


@dataclass(frozen=True)
class Answer:
    """The readings of one comparison of two revisions, and how long its commands took, s."""

    readings: Sequence[Reading]
    seconds: float


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    output: str
    code: int
    seconds: float


@dataclass(frozen=True)
class Shell:
    """Runs commands in the repository.

    Attributes:
        repository: where.
        variables: in addition to those of this process.
        steps: which steps are measured.
        quick: a trial of the program itself: as few readings as the tool allows. The answers are worth nothing.
    """

    repository: PlantedRepository
    variables: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[str] = STEPS
    quick: bool = False

    @property
    def scratch(self) -> Path:
        """The folder for what a comparison leaves behind."""
        return self.repository.path / SCRATCH

    def run(self, command: Sequence[str], *, codes: Sequence[int] = (0,), extra: Mapping[str, str] | None = None) -> Done:
        """Run one.

        Args:
            command: its first word is a program's name.
            codes: the exit codes that are an answer.
            extra: further variables.

        Raises:
            ToolFailed: another exit code.
        """
        began = time.monotonic()
        ended = subprocess.run(
            [*_PROGRAMS.get(command[0], (command[0],)), *command[1:]],
            cwd=self.repository.path,
            env={**_outside_pytest(), **self.variables, **(extra or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
        if ended.returncode not in codes:
            last = "\n".join(ended.stdout.rstrip().splitlines()[-LINES_OF_A_FAILURE:])
            raise ToolFailed(f"{' '.join(command)} ended with exit code {ended.returncode}:\n{last}")
        return Done(ended.stdout, ended.returncode, seconds)


class Tool(Protocol):
    """Compares two revisions of the planted repository."""

    @property
    def shell(self) -> Shell:
        """Where, and how much."""

    @property
    def name(self) -> str:
        """As its users call it."""

    @property
    def settings(self) -> Sequence[str]:
        """The ways in which its answer is read, the usual one first."""

    def commands(self, tag: str) -> Sequence[Sequence[str]]:
        """What a user types to compare the tag `base` with another one, a command after the other."""

    def set_up(self, tags: Sequence[str]) -> None:
        """What has to be done once for each revision: environments and builds, which no comparison pays for."""

    def compare(self, tag: str) -> Answer:
        """Compare `base` with another tag.

        Raises:
            ToolFailed: there is no answer.
        """
