"""From what the user typed to a plan: the suite is asked for its declaration, the sides get their sources.

The suite is loaded by a worker, not here: a suite file may need packages that only a side provides, and what it imports
must not be in the command's own process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frostline.harness.checkout import installed_source
from frostline.harness.device import usable_cores
from frostline.harness.interpreters import OWN, Interpreter
from frostline.harness.isolation import Ended, Process
from frostline.harness.plan import Plan
from frostline.harness.selection import split_setting
from frostline.harness.side import Side, Source
from frostline.results.looks import LOOK_ROUNDS
from frostline.results.record import Bar, Case, UsageError

DESCRIBE_TIMEOUT_S = 300.0
ISOLATIONS = ("spawn", "fork")
NO_SIDE_MENDS = ("SyntaxError", "IndentationError", "TabError")  # of what a suite's file can raise
LOOKS = 2  # of a comparison: a second one where the first could not tell


@dataclass(frozen=True)
class Request:
    """What a command was asked to measure, as typed; `None` and empty mean the suite's own choice.

    python: the interpreter that measures, serving the suite.
    memory_limit: bytes of a GPU's memory that each process may allocate.
    """

    suite: str
    preset: str | None = None
    settings: Sequence[str] = ()
    implementations: Sequence[str] = ()
    rounds: int | None = None
    device: str | None = None
    threads: int | None = None
    seed: int = 0
    timeout_s: float = 600.0
    isolation: str = "spawn"
    max_rounds: int | None = None
    budget_s: float | None = None
    python: Interpreter = OWN
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        for setting in self.settings:
            split_setting(setting)
        if self.isolation not in ISOLATIONS:
            raise UsageError(f"--isolation: expected {' or '.join(ISOLATIONS)}, got {self.isolation!r}")
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise UsageError(f"--device: expected cpu, cuda or cuda:N, got {self.device!r}")
        for name, value, least, most in (
            ("--rounds", self.rounds, 1, 1000),
            ("--max-rounds", self.max_rounds, 1, 10_000),
            ("--threads", self.threads, 1, 4096),
            ("--timeout", self.timeout_s, 0.01, 1e6),
            ("--seed", self.seed, 0, 2**31),
        ):
            if value is not None and not least <= value <= most:
                raise UsageError(f"{name}: expected {least:g} to {most:,.0f}, got {value:g}")
        if self.rounds and self.max_rounds and self.max_rounds < self.rounds:
            raise UsageError(f"--max-rounds: got {self.max_rounds}, wanted at least the {self.rounds} of --rounds")


class SuiteNotLoaded(UsageError):
    """The suite's file raised something while it was loaded: perhaps it needs a package that only a side provides.

    reason: what it raised.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Declared:
    """What a suite says of itself, and the cases selected of it, with the rounds of each implementation in each case."""

    suite: str
    version: str
    baseline: str
    compared: str
    implementations: Sequence[str]
    all_implementations: Sequence[str]
    targets: tuple[str, ...]
    delta: Mapping[str, float]
    rounds: int
    rounds_of: Sequence[Mapping[str, int]]
    axes: Sequence[str]
    device: str
    cases: Sequence[Case] = field(default_factory=list)
    bars: Sequence[Bar] = ()


def declared(request: Request, source: Source | None = None, process: Process | None = None) -> Declared:
    """Ask a worker for the suite's declaration and the selected cases, with `source` on its path if there is one.

    `process` is one that is there already, of the installed source, and is left as it is.

    Raises:
        UsageError: no such suite, axis, value, preset or implementation, an empty selection, or a suite file that fails.
    """
    path, targets = (source.path, source.targets) if source else (None, ())
    start: dict[str, Any] = {"path": path, "targets": targets, "device": "cpu", "seed": 0, "threads": 1}
    with (
        nullcontext(process) if process is not None else Process(**start, timeout_s=DESCRIBE_TIMEOUT_S, python=request.python)
    ) as asked:
        try:
            reply = asked.ask(
                "describe",
                suite=request.suite,
                preset=request.preset,
                settings=list(request.settings),
                implementations=list(request.implementations),
                device=request.device,
            )
        except Ended as end:
            message = f"SUITE: {request.suite!r} could not be loaded{request.python.place}: {end.reason}"
            if end.reason.startswith(NO_SIDE_MENDS):
                raise UsageError(message) from None
            raise SuiteNotLoaded(message, end.reason) from None
    reply.pop("modules")
    cases = [Case(reply["suite"], reply["version"], params) for params in reply.pop("cases")]
    bars = tuple(Bar(**bar) for bar in reply.pop("bars"))
    return Declared(**reply | {"cases": cases, "targets": tuple(reply["targets"]), "bars": bars})


def plan_run(request: Request, process: Process | None = None) -> Plan:
    """A plan that varies the implementation over the installed code. A number of rounds that was typed holds for all.

    `process`: as of `declared`.
    """
    suite = declared(request, process=process)
    source = installed_source(suite.targets, request.python)
    baseline = suite.baseline if suite.baseline in suite.implementations else suite.implementations[0]
    sides = [Side(at, name, source, name == baseline) for at, name in enumerate(suite.implementations)]
    rounds = request.rounds or max(rounds for by_name in suite.rounds_of for rounds in by_name.values())
    fewer = {
        case.id: {name: own for name, own in by_name.items() if own == 0 or (own < rounds and request.rounds is None)}
        for case, by_name in zip(suite.cases, suite.rounds_of, strict=True)
    }
    return replace(_plan(request, replace(suite, rounds=rounds), sides, looks=1), fewer_rounds=fewer, bars=suite.bars)


def plan_compare(
    request: Request,
    make_sources: Callable[[Sequence[str]], Sequence[Source]],
    looks: int = LOOKS,
    say: Callable[[str], None] = lambda _: None,
) -> Plan:
    """A plan that varies the source, the first being the baseline, with the implementation fixed to the suite's `compared`.

    `make_sources` turns the suite's target packages into the sources. A suite whose file needs a package that only a side
    provides is asked for its declaration again with the last source on its path; `say` is told what is checked that late.

    Raises:
        UsageError: what was asked for is not there.
        NothingMeasured: a source cannot be built.
    """
    try:
        suite = declared(request)
        sources = make_sources(suite.targets)
    except SuiteNotLoaded as failed:
        if late := _checked_late(request):
            file = request.suite.partition("::")[0]
            say(f"{file} needs what a side provides ({failed.reason}): both are built before {late} can be checked")
        sources = make_sources(())
        suite = declared(request, sources[-1])
    if len(request.implementations) > 1:
        raise UsageError(
            f"--implementations: compare varies the source, so it takes one, got {', '.join(request.implementations)}"
        )
    implementation = request.implementations[0] if request.implementations else suite.compared
    sides = [Side(at, implementation, source, at == 0) for at, source in enumerate(sources)]
    rounds = max(suite.rounds, LOOK_ROUNDS)  # what the verdicts' error rates in docs/method.md were simulated for
    return _plan(request, replace(suite, rounds=rounds), sides, looks)


def _checked_late(request: Request) -> str:
    """What was typed that only the suite's declaration can show to be a mistake."""
    typed = {
        "the suite's name": "::" in request.suite,
        "--preset": request.preset,
        "--set": request.settings,
        "--implementation": request.implementations,
    }
    return ", ".join(name for name, given in typed.items() if given)


def _plan(request: Request, suite: Declared, sides: Sequence[Side], looks: int) -> Plan:
    if request.memory_limit is not None and not suite.device.startswith("cuda"):
        raise UsageError(f"--memory-limit: limits the memory of a GPU, and the device is {suite.device}; leave it out")
    suite_file = request.suite.partition("::")[0]
    absolute = (
        str(Path(suite_file).resolve()) + request.suite[len(suite_file) :] if suite_file.endswith(".py") else request.suite
    )
    rounds = request.rounds or suite.rounds
    most = request.max_rounds or looks * rounds
    selection: dict[str, Any] = {"preset": request.preset, "settings": list(request.settings), "axes": list(suite.axes)}
    return Plan(
        suite=absolute,
        cases=suite.cases,
        sides=sides,
        rounds=min(rounds, most),
        device=suite.device,
        threads=request.threads or usable_cores(),
        delta=suite.delta,
        max_rounds=most,
        budget_s=request.budget_s,
        seed=request.seed,
        timeout_s=request.timeout_s,
        isolation=request.isolation,
        python=request.python,
        selection=selection,
        memory_limit=request.memory_limit,
    )
