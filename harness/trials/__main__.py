"""Run the experiment and keep a line of JSON for each comparison; what is in the file already is not done again.

    python -m frostline.harness.trials [--form usual] [--out results/method.jsonl] [--minutes 40]

Nothing else should run on the machine meanwhile: what is called calm here is calm only then.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import time
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from frostline.harness.checkout import state_of
from frostline.harness.device import this_machine
from frostline.harness.trials.experiment import FORMS, NOISY, WAYS, Command, commands_of
from frostline.harness.trials.load import LoadPlan, background
from frostline.harness.trials.planted import CHANGES, PlantedRepository, tag_of
from frostline.harness.trials.tools.base import SCRATCH, Shell, Tool, ToolFailed
from frostline.results.record import NothingMeasured, UsageError
from frostline.results.trials import Calibration, SetUp, Trial, Trials, as_line

NEEDED = ("asv", "pyperf", "pytest_benchmark", "virtualenv")
VERSIONS = ("numpy", "asv", "pyperf", "pytest", "pytest-benchmark")
CALIBRATION_S, QUICK_CALIBRATION_S = 4.0, 0.2
SETTLE_S = 0.5  # from the load's start to the command's


@dataclass(frozen=True)
class Bench:
    """All that commands are run with."""

    tools: Mapping[str, Tool]
    load: LoadPlan
    out: Path

    def keep(self, items: Iterable[Trial | Calibration | SetUp]) -> None:
        """Write the lines of one command at once, so that an interruption leaves all of them or none."""
        with self.out.open("a") as file:
            file.write("".join(map(as_line, items)))
            file.flush()
            os.fsync(file.fileno())

    def run(self, command: Command) -> list[Trial]:
        """One command, under its load, as the trials it gave. The load of a command is the same whenever it is run."""
        tool = self.tools[command.way]
        seed = zlib.crc32(repr(command).encode())
        with background(seed, self.load) if command.load == NOISY else nullcontext():
            time.sleep(SETTLE_S)
            answer = tool.compare(tag_of(command.change))
        steps = {reading.step for reading in answer.readings}
        return [
            Trial(
                tool.name,
                reading.setting,
                command.load,
                command.change,
                command.turn,
                reading.step,
                reading.outcome,
                reading.ratio,
                answer.seconds / len(steps),
                tuple(reading.log_ratios),
            )
            for reading in answer.readings
        ]


def trials(
    form: Annotated[str, typer.Option("--form", help=f"How much: {', '.join(FORMS)}.")] = "usual",
    out: Annotated[Path, typer.Option("--out", help="Where the lines are kept.")] = Path("results/method.jsonl"),
    minutes: Annotated[float, typer.Option("--minutes", help="Begin no further command after so long.")] = float("inf"),
    only: Annotated[str, typer.Option("--only", help=f"Ways of comparing, with commas. Default: {', '.join(WAYS)}.")] = "",
    load_processes: Annotated[int, typer.Option("--load-processes", help="Processes of the background load.")] = 1,
    load_longest: Annotated[float, typer.Option("--load-longest", help="Longest stretch or pause of the load, s.")] = 5.0,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", help="For the planted repository. Default: a folder beside the lines.")
    ] = None,
) -> None:
    """Compare planted code by frostline and by other tools."""
    ways = _ways(form, only)
    todo = commands_of(FORMS[form], ways)
    kept = Trials.load(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = (workspace or out.with_suffix("")).absolute()
    repository = PlantedRepository.make(folder / "planted")
    shell = Shell(repository, {"FROSTLINE_CACHE": str(folder / "cache")}, *((("python",), True) if form == "short" else ()))
    bench = Bench({way: WAYS[way](shell) for way in ways}, LoadPlan(load_processes, longest_s=load_longest), out)
    pending = _pending(todo, bench, kept.trials)
    set_up = _set_up(bench, pending, {"processes": load_processes, "longest": load_longest})
    if any(earlier.identity != set_up.identity for earlier in kept.set_ups):
        raise UsageError(f"--out: {out} holds trials of another machine, other versions or another load; name another file")
    bench.keep([set_up])
    if not kept.calibrations:
        bench.keep(_calibrations(repository, QUICK_CALIBRATION_S if form == "short" else CALIBRATION_S))
    _run_all(bench, pending, minutes)


def _ways(form: str, only: str) -> list[str]:
    if form not in FORMS:
        raise UsageError(f"--form: got {form!r}, wanted {', '.join(FORMS)}")
    ways = [way.strip() for way in only.split(",")] if only else list(WAYS)
    if unknown := [way for way in ways if way not in WAYS]:
        raise UsageError(f"--only: got {', '.join(unknown)}, wanted some of {', '.join(WAYS)}")
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UsageError(f"not installed: {', '.join(missing)}; pip install 'frostline[method]'")
    return ways


def _set_up(bench: Bench, todo: Sequence[Command], load: Mapping[str, float]) -> SetUp:
    """Build what each tool needs once, and note what everything is run with."""
    took: dict[str, float] = {}
    for way, tool in bench.tools.items():
        tags = [tag_of(change) for change in CHANGES if any(one.way == way and one.change == change for one in todo)]
        if tool.name not in took and tags:
            print(f"setting up {tool.name}", file=sys.stderr)
            began = time.monotonic()
            tool.set_up(tags)
            took[tool.name] = time.monotonic() - began
    versions = {"python": sys.version.split()[0], **{name: version(name) for name in VERSIONS}}
    if any(tool.shell.quick for tool in bench.tools.values()):
        versions["readings"] = "the quickest of every tool: worth nothing, and not to be mixed with others"
    versions["load"] = f"{load['processes']:g} processes, stretches of up to {load['longest']:g} s"
    commands = {way: [_as_typed(command) for command in tool.commands("slow5")] for way, tool in bench.tools.items()}
    commit = state_of(Path(__file__).parent)
    return SetUp(
        machine=this_machine("cpu").label,
        versions=versions,
        commit=commit.get("commit", "") + ("+" if "dirty" in commit else ""),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        once_s=took,
        commands=commands,
    )


def _as_typed(command: Sequence[str]) -> str:
    """A command for the page: without the option that keeps its files out of the way."""
    shown = [word for word in command if not word.startswith("--benchmark-storage")]
    if "--db" in shown:
        shown = shown[: shown.index("--db")]
    return shlex.join(word.removeprefix(f"{SCRATCH}/") for word in shown)


def _calibrations(repository: PlantedRepository, seconds: float) -> list[Calibration]:
    """What the planted changes cost, each step in a process of its own."""
    print("calibrating", file=sys.stderr)
    folder = repository.path.parent / "calibration"
    folder.mkdir(exist_ok=True)
    files = {tag: folder / f"{tag}.py" for tag in ("base", *map(tag_of, CHANGES))}
    for tag, file in files.items():
        file.write_text(repository.source(tag))
    found = []
    for change in CHANGES:
        module = "frostline.harness.trials.calibrate"
        command = [sys.executable, "-P", "-m", module, str(files["base"]), str(files[tag_of(change)]), str(seconds)]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        found += [Calibration(step, change, ratio, step_ns) for step, (ratio, step_ns) in told.items()]
    return found


def _pending(todo: Sequence[Command], bench: Bench, done: Collection[Trial]) -> list[Command]:
    """The commands of which the file has nothing yet."""
    have = {(one.tool, one.setting, one.load, one.change, one.turn) for one in done}

    def key(command: Command) -> tuple[str, str, str, int, int]:
        tool = bench.tools[command.way]
        return tool.name, tool.settings[0], command.load, command.change, command.turn

    return [command for command in todo if key(command) not in have]


def _run_all(bench: Bench, todo: Sequence[Command], minutes: float) -> None:
    began = time.monotonic()
    for number, command in enumerate(todo, 1):
        spent = time.monotonic() - began
        if spent > 60 * minutes:
            print(f"{len(todo) - number + 1} commands left after {minutes:g} minutes; the same again goes on", file=sys.stderr)
            return
        found = bench.run(command)
        bench.keep(found)
        usual = [one for one in found if one.setting == found[0].setting]
        told = ", ".join(f"{one.step} {one.outcome}" for one in usual)
        left = (time.monotonic() - began) / number * (len(todo) - number) / 60
        print(f"[{number}/{len(todo)}] {command.name}: {told}  (about {left:.0f} min left)", file=sys.stderr, flush=True)


def main() -> None:
    """The command line. Exit code 2 for what was asked wrongly, 4 where a tool gave no answer."""
    try:
        typer.run(trials)
    except UsageError as error:
        sys.exit(_told(error, 2))
    except (ToolFailed, NothingMeasured, subprocess.CalledProcessError) as error:
        sys.exit(_told(error, 4))


def _told(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
