"""What does a measured process cost beyond the work that is timed in it?

The step is the whole life of one process of an empty suite, driven through the harness's own isolation as a round drives it:
started, built and warmed up, asked for as many blocks as a round has at most, for peaks, counts and provenance, and closed.
`spawn` is a new interpreter; `fork` a copy of a zygote that is there already (it imports once a round, which is not in
the step). `imports` is what no harness can do without: a bare interpreter that imports what the empty suite imports, and goes
as a worker does, without tearing down. With `torch`, the files of torch are proved as those of a side would be.

The bars are for the CPU, where a process is cheapest and the harness's part in it is largest.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from frostline.harness import Bar, Preset, Step, skip, suite
from frostline.harness.forks import Refused, Zygote
from frostline.harness.isolation import Launch, Process, environment, spawn
from frostline.harness.plan import CYCLES_AT_MOST
from frostline.harness.zygote import TASKS
from frostline.suites import empty

_FOLDER = Path(empty.__path__[0])
_SUITES = {"nothing": str(_FOLDER / "nothing.py"), "torch": str(_FOLDER / "with_torch.py")}
_TARGETS: dict[str, tuple[str, ...]] = {"nothing": (), "torch": ("torch",)}
_BARE = {"nothing": "frostline.harness", "torch": "torch, frostline.harness"}
_BLOCKS = 1 + 2 * CYCLES_AT_MOST  # a probe, then forth and back in each cycle
_SEED, _THREADS, _TIMEOUT_S = 1, 1, 120.0

_BARS = [
    bar
    for imports in _SUITES
    for bar in (
        Bar(f"fork, {imports} imported: a process", "fork", "step_time", at_most=0.15e9, where={"imports": imports}),
        Bar(
            f"spawn, {imports} imported: time over the imports alone",
            "spawn",
            "step_time",
            at_most=1.5,
            against="imports",
            where={"imports": imports},
        ),
    )
]


@suite(
    axes={"imports": list(_SUITES)},
    implementations=["imports", "spawn", "fork"],
    presets={"small": Preset(rounds=6), "paper": Preset(rounds=6)},
    sources=[empty],
    bars=_BARS,
)
def overhead(implementation: str, device: str, *, imports: str) -> Step:
    """One process from its start to its end; see the module for which."""
    if device != "cpu":
        skip("a process on a GPU spends its time on the driver: --device cpu")
    # The memory of the process that starts others says nothing of theirs.
    return Step(run=_life(implementation, imports), omit=["peak_resident"])


def _life(implementation: str, imports: str) -> Callable[[], None]:
    if implementation == "imports":
        return lambda: _import_alone(imports)
    if implementation == "spawn":
        return lambda: _measured_process(imports, spawn)
    zygote = _zygote(imports)
    return lambda: _measured_process(imports, zygote.fork)


def _import_alone(imports: str) -> None:
    code = f"import os, {_BARE[imports]}; os._exit(0)"
    subprocess.run([sys.executable, "-P", "-c", code], env=environment(None, _SEED, _THREADS), check=True)


def _zygote(imports: str) -> Zygote:
    """One that has imported the empty suite, and is gone when this process leaves."""
    if not TASKS.is_dir():
        skip(f"this system does not tell a process' threads ({TASKS}), so nothing is forked")
    zygote = Zygote(suite=_SUITES[imports], path=None, targets=_TARGETS[imports], hash_seed=_SEED, timeout_s=_TIMEOUT_S)
    atexit.register(zygote.close)
    try:
        _measured_process(imports, zygote.fork)  # waits until it has imported
    except Refused as refusal:
        skip(str(refusal))
    return zygote


def _measured_process(imports: str, launch: Launch) -> None:
    with Process(
        path=None,
        targets=_TARGETS[imports],
        device="cpu",
        seed=_SEED,
        threads=_THREADS,
        timeout_s=_TIMEOUT_S,
        launch=launch,
    ) as process:
        process.ask("build", suite=_SUITES[imports], implementation="default", params={})
        for _ in range(_BLOCKS):
            process.ask("block", steps=1)
        process.ask("finish")
