"""`frostline doctor`: the machine, and with `--noise` how far identical code differs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frostline.harness.front.options import DEFAULT_DB, DbOption, DeviceOption, RoundsOption, ThreadsOption
from frostline.harness.front.printing import REPORT_WIDTH, command_line, progress, say_kept, show
from frostline.harness.outputs import check_outputs
from frostline.results.record import UsageError


def doctor(
    noise: Annotated[
        bool, typer.Option("--noise", help="Compare the installed code with itself (an A/A) and judge the machine by it.")
    ] = False,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    rounds: RoundsOption = None,
    db: DbOption = DEFAULT_DB,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write what was read and found as JSON.")] = None,
) -> None:
    """Check the machine: environment, versions, GPUs, and what could disturb a measurement. Exits 1 when a check fails.

    With --noise, measure how far the installed code differs from itself: minutes instead of a second, exit 1 when the machine
    is noisy and 3 when nothing could be told. Reports of a noisy machine's times say so until an A/A passes.
    """
    if not noise and any(option is not None for option in (device, threads, rounds)):
        raise UsageError("--device, --threads and --rounds are of --noise: frostline doctor --noise")
    if noise and json_file:
        raise UsageError("--json: the A/A of --noise is kept in the database; leave --json out, or --noise")
    check_outputs({"--json": json_file})
    if noise:
        raise typer.Exit(measure_noise(device, threads, rounds, db))
    from frostline.harness.doctor import checkup_json, checkup_table, examine

    checkup = examine(db)
    show(checkup_table(checkup), width=REPORT_WIDTH)
    if json_file is not None:
        json_file.write_text(checkup_json(checkup))
    raise typer.Exit(checkup.exit_code)


def measure_noise(device: str | None, threads: int | None, rounds: int | None, db: Path) -> int:
    """Compare the installed code with itself, show and keep what was found; the exit code says whether the machine passed."""
    from frostline.harness import commands
    from frostline.results.noise import load_self_comparison
    from frostline.results.noise_report import noise_table
    from frostline.results.store import Store

    plan = commands.self_comparison(device, threads, rounds)
    with Store.open(db) as store:
        session = commands.measure_noise(plan, store, progress(), command_line()).session
        found = load_self_comparison(store, session)
        show(noise_table(found, store.machine(session.machine_id)))
        say_kept(store, session.id)
    return found.exit_code
