"""How often does the gate alarm at nothing? This repository's gate, run again and again on a change of comments only.

    python -m frostline.harness.trials.alarms [--runs 50] [--out results/alarms.jsonl] [--minutes 60]

The gate's base is this repository's HEAD, its head the same with a comment more in a file of the kernels, and a background load
comes and goes meanwhile. Times are measured, whatever the machine: predicted figures are exact and cannot alarm by chance. One
line of JSON is kept for each run; what is in the file already is not done again. `results/alarms.py` counts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from frostline.harness.checkout import find_project, resolve
from frostline.harness.device import this_machine
from frostline.harness.trials.load import LoadPlan, background
from frostline.harness.trials.planted import IDENTITY
from frostline.harness.trials.tools.base import ToolFailed
from frostline.results.alarms import Run, load_runs
from frostline.results.gate import ExitCode
from frostline.results.policy import TABLE
from frostline.results.record import UsageError

CHANGED = "kernels/norm/autograd.py"
POLICY = f"""\
[{TABLE}]
predicted = false
isolation = "fork"
[{TABLE}.suites.norms]
preset = "small"
axes = {{ op = ["rms_norm"], parameters = ["frozen"] }}
[{TABLE}.metrics]
step_time = {{ delta = 0.03 }}
peak_allocated = {{ byte_tolerance = 1048576 }}
flops = {{}}
"""
"""One case of the kernels, under the metrics and thresholds of the repository's own policy."""


@dataclass(frozen=True)
class Gate:
    """The gate of a copy of a repository, whose HEAD differs from the parent in a comment alone."""

    copy: Path
    commit: str

    @classmethod
    def make(cls, root: Path, folder: Path) -> Gate:
        """Copy a repository's HEAD into a folder; a copy of the same commit that is there already is taken."""
        commit = resolve("HEAD", root).sha
        gate = cls(folder / commit[:12], commit)
        if not gate.copy.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            making = folder / "making"
            shutil.rmtree(making, ignore_errors=True)  # of a run that was interrupted
            _git(folder, "clone", "--quiet", "--no-hardlinks", str(root), str(making))
            project = making / "pyproject.toml"
            project.write_text(project.read_text().partition(f"[{TABLE}]")[0] + POLICY)
            _git(making, "commit", "--quiet", "--all", "--message", "Measure times")
            changed = making / CHANGED
            changed.write_text(changed.read_text() + "\n# A remark that changes nothing.\n")
            _git(making, "commit", "--quiet", "--all", "--message", "Add a remark")
            making.rename(gate.copy)
        return gate

    def run(self, turn: int, load: LoadPlan) -> Run:
        """Run it once, under a load of its own.

        Raises:
            ToolFailed: it gave no decision.
        """
        folder = self.copy.parent
        decision = folder / "decision.json"
        decision.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "frostline.harness", "gate", "--repo", str(self.copy), "--base", "HEAD~1"]
        command += ["--head", "HEAD", "--db", str(folder / "alarms.db"), "--json", str(decision)]
        environment = {name: value for name, value in os.environ.items() if name != "GITHUB_STEP_SUMMARY"}
        environment["FROSTLINE_CACHE"] = str(folder / "cache")
        began = time.monotonic()
        with background(turn, load):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in list(ExitCode) or not decision.is_file():
            raise ToolFailed(f"the gate gave no decision (exit {done.returncode}):\n{done.stderr[-2000:]}")
        verdicts = json.loads(decision.read_text())["verdicts"]
        told = [[one["suite"], one["metric"], one["outcome"], one["effect"]] for one in verdicts]
        return Run(
            turn=turn,
            exit_code=done.returncode,
            verdicts=told,
            seconds=time.monotonic() - began,
            commit=self.commit,
            machine=this_machine("cpu").label,
            load=f"{load.processes} processes, stretches of up to {load.longest_s:g} s",
            busy=os.getloadavg()[0],
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def alarms(
    runs: Annotated[int, typer.Option("--runs", min=1, help="How often, those in the file included.")] = 50,
    out: Annotated[Path, typer.Option("--out", help="Where the lines are kept.")] = Path("results/alarms.jsonl"),
    minutes: Annotated[float, typer.Option("--minutes", help="Begin no further run after so long.")] = float("inf"),
    load_processes: Annotated[int, typer.Option("--load-processes", help="Processes of the background load.")] = 1,
) -> None:
    """Run the gate on a change of comments only, under a load."""
    done = {one.turn for one in load_runs(out)}
    out.parent.mkdir(parents=True, exist_ok=True)
    gate = Gate.make(find_project(Path(__file__).resolve().parent).root, out.with_suffix("").absolute())
    began = time.monotonic()
    for turn in (turn for turn in range(runs) if turn not in done):
        if time.monotonic() - began > 60 * minutes:
            print(f"no further run after {minutes:g} minutes; the same again goes on", file=sys.stderr)
            return
        run = gate.run(turn, LoadPlan(load_processes))
        with out.open("a") as file:
            file.write(run.line)
        print(f"[{turn + 1}/{runs}] exit {run.exit_code} after {run.seconds:.0f} s", file=sys.stderr, flush=True)


def _git(folder: Path, *arguments: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *arguments], cwd=folder, env=kept | IDENTITY, check=True, capture_output=True)


def main() -> None:
    """The command line. Exit code 2 for what was asked wrongly, 4 where the gate gave no decision."""
    try:
        typer.run(alarms)
    except UsageError as error:
        sys.exit(_told(error, 2))
    except (ToolFailed, subprocess.CalledProcessError) as error:
        sys.exit(_told(error, 4))


def _told(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
