"""Running pip: for the measuring interpreter, with the user's own configuration, away from where we stand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from frostline.harness.interpreters import OWN, Interpreter
from frostline.results.record import UsageError

LINES_OF_A_FAILURE = 12
QUIET = ("--no-input", "--disable-pip-version-check", "--no-color")


def run_pip(
    arguments: Sequence[str], label: str, cwd: Path | None = None, python: Interpreter = OWN
) -> subprocess.CompletedProcess[str]:
    """Run one command of pip's; its stdout holds all that it printed.

    Args:
        arguments: the command with its options.
        label: what it is for, in a message.
        cwd: where to run it.
        python: whose environment it is about. Its own pip is run, or where it has none the command's own on its behalf.

    Raises:
        UsageError: there is no pip in either environment.
    """
    if python.has_pip:
        pip = [python.executable, "-P", "-m", "pip"]
    elif OWN.has_pip:
        pip = [sys.executable, "-P", "-m", "pip", "--python", python.executable]
    else:
        raise UsageError(f"{label}: needs pip in this environment: {python.executable} -m ensurepip")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return subprocess.run(
        [*pip, *arguments[:1], *QUIET, *arguments[1:]],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def last_lines(said: str) -> str:
    """The end of what a command printed, each line indented."""
    return "\n".join([f"  {line.rstrip()}" for line in said.splitlines() if line.strip()][-LINES_OF_A_FAILURE:])
