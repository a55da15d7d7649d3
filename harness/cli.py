"""The front door: `frostline run`, `compare`, `report`, `chart`, `gate`, `cost`, `plan`, ... It parses, calls and prints."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from frostline.harness.describe import Request
from frostline.harness.outputs import check_outputs
from frostline.harness.progress import Progress
from frostline.results.record import NothingMeasured, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frostline.results.record import Session, Verdict
    from frostline.results.store import Store
    from frostline.results.table import Table

USAGE_ERROR, NOTHING_MEASURED, INTERNAL_ERROR, INTERRUPTED = 2, 4, 70, 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Measure, chart and guard what freezing a parameter saves.",
    epilog="Start with: frostline run grpo",
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"frostline {version('frostline')}")
        raise typer.Exit


@app.callback()
def frostline(
    _: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Measure, chart and guard what freezing a parameter saves."""


chart_app = typer.Typer(no_args_is_help=True, help="Draw a chart from what is stored.")
app.add_typer(chart_app, name="chart")

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
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N. Default: cuda where there is one.")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", help="Threads of each measured process. Default: all cores.")]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seeds inputs and hashing, alike on all sides; moves on with the round.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="Seconds that a process may take to answer before it is ended.")
]
DbOption = Annotated[Path, typer.Option("--db", envvar="FROSTLINE_DB", help="The database that keeps every sample.")]
RepoOption = Annotated[Path, typer.Option("--repo", help="The git repository whose revisions are compared.")]
MarkdownOption = Annotated[Path | None, typer.Option("--markdown", help="Also write the table as Markdown to this file.")]

DEFAULT_DB = Path("frostline.db")
REPORT_WIDTH = 128  # of a table of sentences where there is no terminal to ask


@app.command()
def run(
    context: typer.Context,
    suite: SuiteArgument = "",
    preset: PresetOption = None,
    settings: SetOption = None,
    implementations: ImplementationsOption = None,
    rounds: RoundsOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    timeout: TimeoutOption = 600.0,
    db: DbOption = DEFAULT_DB,
    resume: Annotated[str | None, typer.Option("--resume", help="Finish an interrupted session: its id, or last.")] = None,
    markdown: MarkdownOption = None,
) -> None:
    """Measure a suite's implementations against its baseline and print the table.

    Every process is stored as soon as it ends; stop with Ctrl-C and finish later with --resume last.
    """
    from frostline.harness import commands
    from frostline.harness.describe import plan_run
    from frostline.results.store import Store

    check_outputs({"--markdown": markdown})
    if bool(suite) == bool(resume):
        raise UsageError("SUITE: name one suite (frostline run grpo), or an interrupted session (--resume last), not both")
    if resume:
        _nothing_but_resume(context)
    request = _request(suite, preset, settings, implementations, rounds, device, threads, seed, timeout)
    plan = plan_run(request) if suite else None
    with Store.open(db, create=plan is not None) as store:
        if plan is not None:
            done = commands.measure(plan, store, _progress(), _command_line())
        else:
            done = commands.resume(resume or "last", store, _progress())
        if len({side.source.label for side in done.plan.sides}) > 1:  # a comparison that was finished
            _print_comparison(store, done.session, done.verdicts, markdown)
        else:
            _print_figures(store, done.session, done.verdicts, markdown)
            _kept(store, done.session.id)


@app.command()
def compare(
    base: Annotated[str | None, typer.Argument(metavar="BASE", help="A branch, tag or commit. Default: HEAD.")] = None,
    head: Annotated[str | None, typer.Argument(metavar="HEAD", help="Another one. Default: the working tree.")] = None,
    repo: RepoOption = Path(),
    suite: SuiteOption = "grpo",
    preset: PresetOption = None,
    settings: SetOption = None,
    implementation: Annotated[
        str | None, typer.Option("--implementation", help="The implementation to fix. Default: the suite's own choice.")
    ] = None,
    rounds: RoundsOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    timeout: TimeoutOption = 600.0,
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit as a gate does: 1 when something got worse, 3 inconclusive.")
    ] = False,
) -> None:
    """Compare two revisions of a repository: the same suite, the same machine, interleaved.

    Each revision is built once and cached; the checkout is not touched. Ends with the verdicts and the Markdown for a
    pull request.
    """
    from frostline.harness import commands
    from frostline.results.gate import exit_code_for
    from frostline.results.store import Store

    check_outputs({"--markdown": markdown})
    request = _request(suite, preset, settings, implementation, rounds, device, threads, seed, timeout)
    plan = commands.comparison(request, base, head, repo, _progress())
    with Store.open(db) as store:
        done = commands.measure(plan, store, _progress(), _command_line())
        _print_comparison(store, done.session, done.verdicts, markdown)
        if check:
            raise typer.Exit(exit_code_for(done.verdicts))


@app.command()
def report(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="An id, the beginning of one, or last.")] = "last",
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
) -> None:
    """Print the table and the verdicts of a stored session."""
    from frostline.harness import commands
    from frostline.results.evidence import Evidence
    from frostline.results.report import verdict_table
    from frostline.results.store import Store

    check_outputs({"--markdown": markdown})
    with Store.open(db, create=False) as store:
        found = store.session(session)
        verdicts = commands.verdicts_of(found, store)
        _print_figures(store, found, verdicts, markdown)
        _show(verdict_table(Evidence.load(store, found.id), verdicts))
        _kept(store, found.id)


@app.command()
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
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
) -> None:
    """Predict peak memory and FLOPs at any size without a GPU: the suite's own step on tensors that hold no data."""
    from frostline.harness.predictors import planned_early

    check_outputs({"--markdown": markdown})
    request = _request(suite, preset, settings, implementations, device=target)
    with planned_early(request, device) as (plan, early):
        from frostline.harness import commands
        from frostline.results.cost_report import cost_tables
        from frostline.results.evidence import Evidence
        from frostline.results.store import Store
        from frostline.results.validation import validation_table

        with Store.open(db) as store:
            done = commands.predict(plan, store, _progress(), _command_line(), early)
            evidence = Evidence.load(store, done.session.id)
            tables = list(cost_tables(evidence, done.verdicts, device, top if detail else 0))
            if measured:
                commands.measure_beside(plan, done.session, store, _progress())
                tables.append(validation_table(Evidence.load(store, done.session.id)))
            for table in tables:
                _show(table)
            if markdown is not None:
                markdown.write_text("\n\n".join(table.markdown() for table in tables) + "\n")
            _kept(store, done.session.id)


@app.command("plan")
def print_plan(
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of a step, those alone that are computed.")],
    hidden: Annotated[int, typer.Option("--hidden", help="Width of the hidden states.")],
    vocab: Annotated[int, typer.Option("--vocab", help="Rows of the lm_head's weight.")],
    lm_head: Annotated[str, typer.Option("--lm-head", help="frozen or trainable.")] = "frozen",
    bias: Annotated[bool, typer.Option("--bias", help="The lm_head has a bias.")] = False,
    loss: Annotated[str, typer.Option("--loss", help="known in the forward (a fused loss), or unknown.")] = "known",
    dtype: Annotated[str, typer.Option("--dtype", help="bfloat16, float16 or float32.")] = "bfloat16",
    entropy: Annotated[bool, typer.Option("--entropy", help="The loss has a gradient through entropies.")] = False,
    masked: Annotated[bool, typer.Option("--masked", help="Some of the tokens may not count.")] = False,
    group: Annotated[int, typer.Option("--group", help="Tokens that are judged together: a completion's length, or 1.")] = 1,
    memory_budget: Annotated[
        str | None,
        typer.Option("--memory-budget", help="Memory above the inputs, like 512MiB. Default: what unfused code takes."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Whose branches are taken: cuda or cpu.")] = "cuda",
    suite: SuiteOption = "grpo",
    markdown: MarkdownOption = None,
) -> None:
    """Print how the head would compute a step of this size, what else was weighed, and why it was not chosen."""
    from frostline.harness.plan_report import ask_plan, plan_table
    from frostline.harness.planning import PlanQuestion, parse_bytes

    check_outputs({"--markdown": markdown})
    budget = None if memory_budget is None else parse_bytes(memory_budget, "--memory-budget")
    question = PlanQuestion(tokens, hidden, vocab, lm_head, bias, loss, dtype, entropy, masked, group, budget, device)
    table = plan_table(question, ask_plan(suite, question))
    _show(table, width=REPORT_WIDTH)
    if markdown is not None:
        markdown.write_text(table.markdown() + "\n")


@chart_app.command("crossover")
def chart_crossover(
    suite: Annotated[
        str | None,
        typer.Argument(help="A bundled suite, a file (bench.py) or bench.py::name. Default: grpo.", metavar="SUITE"),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder for the pictures.")] = Path(),
    metric: Annotated[
        str | None, typer.Option("--metric", help="peak_allocated, step_time, or both with a comma. Default: what there is.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", help="What is drawn. Default: crossover; without a GPU crossover_small is measured."),
    ] = None,
    settings: SetOption = None,
    implementations: ImplementationsOption = None,
    against: Annotated[
        str | None,
        typer.Option("--against", help="The side that the others are compared with. Default: torch, else the baseline."),
    ] = None,
    predicted: Annotated[
        bool, typer.Option("--predicted", help="The cost model's peak memory alone: nothing is measured, no GPU is needed.")
    ] = False,
    fill: Annotated[
        bool | None, typer.Option("--fill/--no-fill", help="Measure and predict what is not stored yet. Default: --fill.")
    ] = None,
    session: Annotated[
        list[str] | None,
        typer.Option("--session", help="Draw this stored session instead, wherever measured. May be repeated."),
    ] = None,
    db: DbOption = DEFAULT_DB,
) -> None:
    """From which sequence length does a side save memory, and from which is it faster? Both over seq_len, as PNG.

    Draws peak memory as the cost model has it at full size and as measured on this machine (one chart where both are of the
    same sizes), and the step time as measured, with the lm_head frozen and trainable; and says where the lines cross.
    """
    from frostline.dashboards.charts import chosen_metrics, crossover_pictures, picture_folder
    from frostline.harness.crossover import plans_to_draw, sessions_to_draw, stored_sessions
    from frostline.results.store import Store

    metrics = chosen_metrics(metric)
    for option, given in (("--preset", preset is not None), ("--fill", fill is True), ("--predicted", predicted)):
        if session and given:
            raise UsageError(f"{option}: with --session what is stored is drawn, nothing else; leave one of the two out")
    request = _request(suite or ("" if session else "grpo"), preset, settings, implementations)
    wanted = [] if session else plans_to_draw(request, metrics, against, predicted=predicted)
    filled = fill is not False
    if filled and not session:
        picture_folder(out)  # before anything is measured for it
    with Store.open(db, create=filled and not session) as store:
        if session:
            shown = stored_sessions(session, request, store)
        else:
            shown = sessions_to_draw(wanted, against, store, _progress(), _command_line(), fill=filled)
        named = metrics if metric else None
        for picture in crossover_pictures(shown, out, against, metrics=named, samples=store.samples):
            print("\n".join([*picture.sentences, f"Chart: {picture.path}"]))


@chart_app.command("floor")
def chart_floor(
    out: Annotated[Path, typer.Option("--out", help="The folder for the picture.")] = Path(),
    settings: SetOption = None,
    session: Annotated[
        str | None, typer.Option("--session", help="A stored session. Default: the last one of the suite head_floor.")
    ] = None,
    db: DbOption = DEFAULT_DB,
) -> None:
    """How close is each side to the least that a step can cost, and at what memory? From a stored session, as PNG.

    Draws the time over that of the session's baseline (of head_floor: the matrix products alone) against the peak above the
    inputs, with the lm_head frozen and trainable. Measure first: frostline run head_floor.
    """
    from frostline.dashboards.floor import floor_picture
    from frostline.harness.crossover import last_session_of, stored_sessions
    from frostline.results.store import Store

    with Store.open(db, create=False) as store:
        ref = session or last_session_of("head_floor", store)
        ((evidence, _),) = stored_sessions([ref], _request("", settings=settings), store)
        picture = floor_picture(evidence, out)
    print("\n".join([*picture.sentences, f"Chart: {picture.path}"]))


@chart_app.command("validation")
def chart_validation(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="An id, the beginning of one, or last.")] = "last",
    out: Annotated[Path, typer.Option("--out", help="The folder for the picture.")] = Path(),
    db: DbOption = DEFAULT_DB,
) -> None:
    """How far are the cost model's peaks from the measured ones? From a session of frostline cost SUITE --measure, as PNG."""
    from frostline.dashboards.validation import validation_picture
    from frostline.results.evidence import Evidence
    from frostline.results.store import Store

    with Store.open(db, create=False) as store:
        picture = validation_picture(Evidence.load(store, store.session(session).id), out)
    print("\n".join([*picture.sentences, f"Chart: {picture.path}"]))


@app.command()
def gate(
    base: Annotated[
        str | None, typer.Option("--base", help="Default: the policy's, or where HEAD left the main branch.")
    ] = None,
    head: Annotated[str | None, typer.Option("--head", help="Default: the working tree.")] = None,
    repo: RepoOption = Path(),
    db: DbOption = DEFAULT_DB,
    markdown: MarkdownOption = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the decision as JSON to this file.")] = None,
) -> None:
    """Judge the working tree under the table tool.frostline.gate of the repository's pyproject.toml.

    Exit codes: 0 pass, 1 something got worse or is broken, 2 a mistake in what was asked, 3 no answer, 4 nothing measured,
    70 a fault of frostline, 130 interrupted. Without a GPU the cost model's exact figures decide, at full size.
    """
    from frostline.harness import commands
    from frostline.harness.checkout import find_project
    from frostline.results.evidence import Evidence
    from frostline.results.gate import decide
    from frostline.results.gate_report import gate_json, gate_junit, gate_markdown
    from frostline.results.policy import load_policy
    from frostline.results.report import verdict_table
    from frostline.results.store import Store

    summary = Path(os.environ["GITHUB_STEP_SUMMARY"]) if os.environ.get("GITHUB_STEP_SUMMARY") else None
    check_outputs({"--markdown": markdown, "--junit": junit, "--json": json_file, "GITHUB_STEP_SUMMARY": summary})
    policy = load_policy(find_project(repo).root / "pyproject.toml")
    with Store.open(db) as store:
        policy, done = commands.gate(policy, base, head, repo, store, _progress(), _command_line())
        evidence = [Evidence.load(store, one.session.id) for one in done]
    verdicts = [verdict for one in done for verdict in one.verdicts]
    result = decide(verdicts, policy, [case for one in done for case in one.plan.cases])
    for seen in evidence:
        gated = [item.verdict for item in result.items if item.verdict.session_id == seen.session.id]
        _show(verdict_table(seen, gated))
    print("\n".join(result.sentences))
    for path, text, mode in (
        (markdown, gate_markdown(result, evidence), "w"),
        (summary, gate_markdown(result, evidence), "a"),
        (junit, gate_junit(result), "w"),
        (json_file, gate_json(result), "w"),
    ):
        if path is not None:
            with path.open(mode) as file:
                file.write(text)
    raise typer.Exit(result.exit_code)


@app.command()
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
        raise typer.Exit(_measure_noise(device, threads, rounds, db))
    from frostline.harness.doctor import checkup_json, checkup_table, examine

    checkup = examine(db)
    _show(checkup_table(checkup), width=REPORT_WIDTH)
    if json_file is not None:
        json_file.write_text(checkup_json(checkup))
    raise typer.Exit(checkup.exit_code)


def _measure_noise(device: str | None, threads: int | None, rounds: int | None, db: Path) -> int:
    from frostline.harness import commands
    from frostline.results.noise import load_self_comparison
    from frostline.results.noise_report import noise_table
    from frostline.results.store import Store

    plan = commands.self_comparison(device, threads, rounds)
    with Store.open(db) as store:
        session = commands.measure_noise(plan, store, _progress(), _command_line()).session
        found = load_self_comparison(store, session)
        _show(noise_table(found, store.machine(session.machine_id)))
        _kept(store, session.id)
    return found.exit_code


def _nothing_but_resume(context: typer.Context) -> None:
    """Refuse options that would change what is resumed: they would be left out without a word."""
    names = ("preset", "settings", "implementations", "rounds", "device", "threads", "seed", "timeout")
    typed = [name for name in names if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if typed:
        options = ", ".join("--set" if name == "settings" else f"--{name}" for name in typed)
        raise UsageError(f"--resume finishes what was planned: leave out {options}")


def _request(
    suite: str,
    preset: str | None = None,
    settings: list[str] | None = None,
    implementations: str | None = None,
    rounds: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    seed: int = 0,
    timeout: float = 600.0,
) -> Request:
    names = [name for name in (implementations or "").split(",") if name]
    return Request(suite, preset, settings or [], names, rounds, device, threads, seed, timeout)


def _progress() -> Progress:
    return Progress(Console(stderr=True))


def _show(table: Table, width: int | None = None) -> None:
    """Print a table for the terminal, or as text; `width` is that of a text whose sentences are to be wrapped."""
    console = Console()
    if console.is_terminal:
        console.print(table.rich(console.width))
    else:
        print(table.text(width))
    print()


def _print_figures(store: Store, session: Session, verdicts: Sequence[Verdict], markdown: Path | None) -> None:
    from frostline.results.bars_report import bars_table
    from frostline.results.evidence import Evidence
    from frostline.results.report import bench_table

    evidence = Evidence.load(store, session.id)
    bars = bars_table(evidence)
    tables = [bench_table(evidence, verdicts), *([] if bars is None else [bars])]
    for table in tables:
        _show(table)
    if markdown is not None:
        markdown.write_text("\n\n".join(table.markdown() for table in tables) + "\n")


def _print_comparison(store: Store, session: Session, verdicts: Sequence[Verdict], markdown: Path | None) -> None:
    from frostline.results.evidence import Evidence
    from frostline.results.report import markdown_comparison, verdict_table

    evidence = Evidence.load(store, session.id)
    _show(verdict_table(evidence, verdicts))
    _offer_markdown(markdown_comparison(evidence, verdicts), markdown)
    _kept(store, session.id)


def _offer_markdown(text: str, path: Path | None) -> None:
    if path is not None:
        path.write_text(text)
        print(f"Markdown for a pull request: {path}")
    else:
        print(f"Markdown for a pull request:\n\n{text}")


def _kept(store: Store, session_id: str) -> None:
    print(f"Kept in {store.path} as session {session_id}; again: frostline report {session_id} --db {store.path}")


def _command_line() -> str:
    return shlex.join(["frostline", *sys.argv[1:]])


def main() -> None:
    """Run the command line. Exit codes: 0 done, 2 a mistake in what was typed, 4 nothing measured, 70 our fault, 130 stop."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except UsageError as error:
        _fail(str(error), USAGE_ERROR)
    except NothingMeasured as error:
        _fail(str(error), NOTHING_MEASURED)
    except (KeyboardInterrupt, typer.Abort):
        _fail(
            "interrupted; everything measured so far is kept, and frostline run --resume last (same --db) finishes the rest",
            INTERRUPTED,
        )
    except Exception as error:
        if hasattr(error, "format_message"):  # what the parser refused; typer may bring a click of its own, so not by class
            _fail(error.format_message(), USAGE_ERROR)
        traceback.print_exc()
        _fail("this is a fault of frostline, not a verdict", INTERNAL_ERROR)


def _fail(message: str, code: int) -> None:
    sys.stdout.flush()
    if message:  # none where the parser has printed the help
        print(f"frostline: {message}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code) if code == INTERRUPTED else sys.exit(code)


if __name__ == "__main__":
    main()
