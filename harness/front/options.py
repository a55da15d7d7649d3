"""What the commands have in common: options that are typed alike, and the request that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frostline.harness.describe import Request
from frostline.harness.interpreters import OWN, find_interpreter
from frostline.harness.planning import parse_bytes
from frostline.results.duration import parse_duration

SuiteArgument = Annotated[
    str, typer.Argument(help="A bundled suite (grpo), a file (bench.py) or bench.py::name.", metavar="SUITE")
]
SuiteOption = Annotated[str, typer.Option("--suite", help="A bundled suite (grpo), a file (bench.py) or bench.py::name.")]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="A named selection of the suite. Default: paper with a GPU, small without.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="AXIS=VALUE[,VALUE...]: replace an axis' values. May be repeated.")
]
ImplementationsOption = Annotated[
    str | None, typer.Option("--implementations", help="Which implementations, with commas. Default: the preset's, else all.")
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Rounds of a look: fresh processes of each side.")]
MaxRoundsOption = Annotated[
    int | None, typer.Option("--max-rounds", help="Rounds of a case in all: inconclusive times get more, look by look.")
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget", metavar="TIME", help="Time for checks and rounds (90s, 10m, 1h30m); then what is there is judged."
    ),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N. Default: cuda where there is one.")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", help="Threads of each measured process. Default: all cores.")]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seeds inputs and hashing, alike on all sides; moves on with the round.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="Seconds that a process may take to answer before it is ended.")
]
IsolationOption = Annotated[
    str,
    typer.Option("--isolation", help="spawn: each process a new interpreter; fork: a copy of one that has imported the suite."),
]
PythonOption = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Measure and build in another environment: its interpreter or its directory. Default: frostline's own.",
    ),
]
DbOption = Annotated[Path, typer.Option("--db", envvar="FROSTLINE_DB", help="The database that keeps every sample.")]
RepoOption = Annotated[Path, typer.Option("--repo", help="The git repository whose revisions are compared.")]
MarkdownOption = Annotated[
    Path | None,
    typer.Option(
        "--markdown", metavar="FILE", help="Also write it as Markdown, as a pull request takes it; -: print that instead."
    ),
]

MemoryLimitOption = Annotated[
    str | None,
    typer.Option("--memory-limit", help="Memory like 80GB that a process may have of the GPU, as if the card had no more."),
]

DEFAULT_DB = Path("frostline.db")


def make_request(
    suite: str,
    preset: str | None = None,
    settings: list[str] | None = None,
    implementations: str | None = None,
    rounds: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    seed: int = 0,
    timeout: float = 600.0,
    isolation: str = "spawn",
    max_rounds: int | None = None,
    budget: str | None = None,
    python: str | None = None,
    memory_limit: str | None = None,
) -> Request:
    """What was typed, as a request: `implementations` has commas between them. Raises UsageError for what cannot be."""
    names = [name for name in (implementations or "").split(",") if name]
    return Request(
        suite,
        preset,
        settings or [],
        names,
        rounds,
        device,
        threads,
        seed,
        timeout,
        isolation,
        max_rounds,
        seconds(budget),
        OWN if python is None else find_interpreter(python).serving(suite),
        None if memory_limit is None else parse_bytes(memory_limit, "--memory-limit"),
    )


def seconds(budget: str | None) -> float | None:
    """What `--budget` allows; None without it. Raises UsageError for what is no time."""
    return None if budget is None else parse_duration(budget, "--budget")
