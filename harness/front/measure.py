"""`frostline run`, `compare`, `report` and `cost`: measure or predict, and print what is stored of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frostline.harness.front.options import (
    DEFAULT_DB,
    BudgetOption,
    DbOption,
    DeviceOption,
    ImplementationsOption,
    IsolationOption,
    MarkdownOption,
    MaxRoundsOption,
    MemoryLimitOption,
    PresetOption,
    PythonOption,
    RepoOption,
    RoundsOption,
    SeedOption,
    SetOption,
    SuiteArgument,
    SuiteOption,
    ThreadsOption,
    TimeoutOption,
    make_request,
)
from frostline.harness.front.printing import command_line, deliver, print_session, progress, say_kept
from frostline.harness.outputs import check_outputs
from frostline.results.record import UsageError

if TYPE_CHECKING:
    from frostline.harness.describe import Request

BESIDE_RESUME = ("resume", "db", "markdown", "budget")  # what a session that is finished later may be given anew


def run(
    context: typer.Context,
    suite: SuiteArgument = "",
    preset: PresetOption = None,
    settings: SetOption = None,
    implementations: ImplementationsOption = None,
    rounds: RoundsOption = None,
    max_rounds: MaxRoundsOption = None,
    budget: BudgetOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    timeout: TimeoutOption = 600.0,
    isolation: IsolationOption = "spawn",
    python: PythonOption = None,
    memory_limit: MemoryLimitOption = None,
    db: DbOption = DEFAULT_DB,
    resume: Annotated[str | None, typer.Option("--resume", help="Finish an interrupted session: its id, or last.")] = None,
    markdown: MarkdownOption = None,
) -> None:
    """Measure a suite's implementations against its baseline and print the table.

    Every process is stored as soon as it ends; stop with Ctrl-C, or after a --budget, and finish later with --resume last.
    """
    from frostline.harness import commands
    from frostline.harness.describe import plan_run
    from frostline.results.store import Store

    check_outputs({"--markdown": markdown})
    if bool(suite) == bool(resume):
        wanted = "name one suite (frostline run grpo), or an interrupted session (--resume last)"
        raise UsageError(f"SUITE: {suite!r} and --resume {resume}: {wanted}, not both" if suite else f"SUITE: {wanted}")
    if resume:
        _nothing_but_resume(context)
    request = make_request(
        suite, preset, settings, implementations, rounds, device, threads, seed, timeout, isolation, max_rounds, budget, python,
        memory_limit,
    )  # fmt: skip
    plan = plan_run(request) if suite else None
    with Store.open(db, create=plan is not None) as store:
        if plan is not None:
            done = commands.measure(plan, store, progress(), command_line())
        else:
            done = commands.resume(resume or "last", store, progress(), request.budget_s)
        print_session(store, done.session, done.verdicts, markdown)


def compare(
    base: Annotated[
        str | None,
        typer.Argument(metavar="BASE", help="A branch, tag or commit, pypi:NAME==VERSION or path:DIR. Default: HEAD."),
    ] = None,
    head: Annotated[str | None, typer.Argument(metavar="HEAD", help="Another one. Default: the working tree.")] = None,
    repo: RepoOption = Path(),
    extras: Annotated[
        list[str] | None, typer.Option("--with", help="NAME==VERSION that both sides are to have besides. May be repeated.")
    ] = None,
    base_extras: Annotated[list[str] | None, typer.Option("--with-base", help="The same for BASE alone.")] = None,
    head_extras: Annotated[list[str] | None, typer.Option("--with-head", help="The same for HEAD alone.")] = None,
    suite: SuiteOption = "grpo",
    preset: PresetOption = None,
    settings: SetOption = None,
    implementation: Annotated[
        str | None, typer.Option("--implementation", help="The implementation to fix. Default: the suite's own choice.")
    ] = None,
    rounds: RoundsOption = None,
    max_rounds: MaxRoundsOption = None,
    budget: BudgetOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    timeout: TimeoutOption = 600.0,
    isolation: IsolationOption = "spawn",
    python: PythonOption = None,
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit as a gate does: 1 when something got worse, 3 inconclusive.")
    ] = False,
) -> None:
    """Compare two revisions of a repository, releases or directories: the same suite and machine, interleaved.

    Each source is built or downloaded once and cached; the checkout is not touched. Ends with the verdicts; --markdown has
    them, and every figure, for a pull request.
    """
    from frostline.harness import commands
    from frostline.harness.sources import Asked
    from frostline.results.gate import exit_code_for
    from frostline.results.store import Store

    check_outputs({"--markdown": markdown})
    request = make_request(
        suite, preset, settings, implementation, rounds, device, threads, seed, timeout, isolation, max_rounds, budget, python
    )
    first = Asked(base, "BASE", [*(extras or []), *(base_extras or [])])
    second = Asked(head, "HEAD", [*(extras or []), *(head_extras or [])])
    plan = commands.comparison(request, first, second, repo, progress())
    with Store.open(db) as store:
        done = commands.measure(plan, store, progress(), command_line())
        print_session(store, done.session, done.verdicts, markdown)
        if check:
            raise typer.Exit(exit_code_for(done.verdicts))


def report(
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="An id, the beginning of one, or last, which is the default.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Every stored session instead, the newest first: when, what, on what, how far.")
    ] = False,
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
) -> None:
    """Print the table and the verdicts of a stored session, or with --list what sessions there are."""
    from frostline.harness import commands
    from frostline.results.listing import sessions_table
    from frostline.results.store import Store

    check_outputs({"--markdown": markdown})
    if session is not None and listed:
        raise UsageError("--list names every session; leave SESSION out")
    with Store.open(db, create=False) as store:
        if listed:
            deliver([sessions_table(store)], markdown)
            return
        found = store.session(session or "last")
        print_session(store, found, commands.verdicts_of(found, store), markdown, every_verdict=True)


def cost(
    suite: SuiteArgument,
    preset: PresetOption = None,
    settings: SetOption = None,
    implementations: ImplementationsOption = None,
    target: Annotated[str, typer.Option("--target", help="The device whose branches are taken: cuda or cpu.")] = "cuda",
    device: Annotated[
        str | None, typer.Option("--device", help="A GPU (h200, a100, rtx4090, ...): its branches, and the time at best on it.")
    ] = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="What is alive at each peak and where it was made, and the operators' work.")
    ] = False,
    top: Annotated[int, typer.Option("--top", min=1, max=24, help="How many tensors and operators --detail names.")] = 8,
    measured: Annotated[
        bool, typer.Option("--measure", help="Measure the same peaks and FLOPs here too, and say how far predictions are off.")
    ] = False,
    fits: Annotated[
        str | None, typer.Option("--fits", help="A memory like 80GiB: tells the largest size whose peak fits it.")
    ] = None,
    axis: Annotated[
        str | None, typer.Option("--axis", help="The axis whose largest size --fits tells; by default seq_len.")
    ] = None,
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
) -> None:
    """Predict peak memory and FLOPs at any size without a GPU: the suite's own step on tensors that hold no data."""
    from frostline.harness.predictors import planned_early

    check_outputs({"--markdown": markdown})
    request = make_request(suite, preset, settings, implementations, device=target)
    if fits is not None:
        if measured or detail:
            raise UsageError("--fits tells sizes alone: leave out --measure and --detail")
        _fits(request, device, fits, axis, markdown)
        return
    if axis is not None:
        raise UsageError(f"--axis {axis}: says of which axis --fits tells the largest size; add --fits 80GiB")
    with planned_early(request, device) as (plan, early):
        from frostline.harness import commands
        from frostline.results.cost_report import cost_tables
        from frostline.results.evidence import Evidence
        from frostline.results.store import Store
        from frostline.results.validation import validation_table

        with Store.open(db) as store:
            done = commands.predict(plan, store, progress(), command_line(), early)
            evidence = Evidence.load(store, done.session.id)
            tables = list(cost_tables(evidence, done.verdicts, device, top if detail else 0))
            if measured:
                commands.measure_beside(plan, done.session, store, progress())
                tables.append(validation_table(Evidence.load(store, done.session.id)))
            deliver(tables, markdown)
            say_kept(store, done.session.id, markdown)


def _fits(request: Request, device: str | None, memory: str, axis: str | None, markdown: Path | None) -> None:
    """Print what fits. Nothing is stored: the sizes on the way are no cases of a session."""
    from frostline.harness.planning import parse_bytes
    from frostline.harness.predictors import planned_early

    limit = parse_bytes(memory, "--fits")
    with planned_early(request, device) as (plan, early):
        from frostline.harness.fitting import Fitting, axis_of, largest_sizes
        from frostline.results.fits import fits_table

        asked = Fitting.on(device, axis, limit)
        table = fits_table(largest_sizes(plan, asked, progress(), early), axis_of(plan, axis), limit, asked.notes)
    deliver([table], markdown)


def _nothing_but_resume(context: typer.Context) -> None:
    """Refuse options that would change what is resumed: they would be left out without a word."""
    typed = [
        one
        for one in context.command.params
        if getattr(context.get_parameter_source(one.name or ""), "name", "") == "COMMANDLINE"
    ]
    options = [one.opts[0] for one in typed if one.name not in BESIDE_RESUME]
    if options:
        raise UsageError(f"--resume finishes what was planned: leave out {', '.join(options)}")
