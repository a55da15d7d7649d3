"""The front door: `frostline run`, `compare`, `report`, `chart`, `site`, `gate`, `import`, ... It parses, calls and prints.

The commands are in `front/`. Those of `chart` and `site` are here, since nothing else of the harness reaches the dashboards.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from frostline.harness.front.data import db_app, export, import_
from frostline.harness.front.doctor import doctor
from frostline.harness.front.gate import gate
from frostline.harness.front.history import MetricsOption, StoredSuite, history
from frostline.harness.front.measure import compare, cost, report, run
from frostline.harness.front.options import DEFAULT_DB, DbOption, ImplementationsOption, RepoOption, SetOption, make_request
from frostline.harness.front.plan import plan
from frostline.harness.front.printing import command_line, progress
from frostline.harness.leaving import end_all
from frostline.results.record import Interrupted, NothingMeasured, UsageError

USAGE_ERROR, NOTHING_MEASURED, INTERNAL_ERROR, INTERRUPTED = 2, 4, 70, 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Measure, chart and guard what freezing a parameter saves.",
    epilog="Start with: frostline run grpo",
)
COMMANDS: Sequence[Callable[..., None]] = (run, compare, report, history, cost, plan, gate, doctor)
for command in COMMANDS:
    app.command()(command)

app.command("import")(import_)
app.command()(export)
app.add_typer(db_app, name="db")

chart_app = typer.Typer(no_args_is_help=True, help="Draw a chart from what is stored.")
app.add_typer(chart_app, name="chart")

site_app = typer.Typer(no_args_is_help=True, help="Make a static site of what is stored, or look at it.")
app.add_typer(site_app, name="site")


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
    request = make_request(suite or ("" if session else "grpo"), preset, settings, implementations)
    wanted = [] if session else plans_to_draw(request, metrics, against, predicted=predicted)
    filled = fill is not False
    if filled and not session:
        picture_folder(out)  # before anything is measured for it
    with Store.open(db, create=filled and not session) as store:
        if session:
            shown = stored_sessions(session, request, store)
        else:
            shown = sessions_to_draw(wanted, against, store, progress(), command_line(), fill=filled)
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
        ((evidence, _),) = stored_sessions([ref], make_request("", settings=settings), store)
        picture = floor_picture(evidence, out)
    print("\n".join([*picture.sentences, f"Chart: {picture.path}"]))


@chart_app.command("norms")
def chart_norms(
    out: Annotated[Path, typer.Option("--out", help="The folder for the picture.")] = Path(),
    settings: SetOption = None,
    session: Annotated[
        str | None, typer.Option("--session", help="A stored session. Default: the last one of the suite norms.")
    ] = None,
    db: DbOption = DEFAULT_DB,
) -> None:
    """How much of the bandwidth bound does each norm's backward reach, shape by shape? From a stored session, as PNG.

    Draws the time of the side `bound`, which moves the bytes alone, over that of each other side, frozen and trained. Measure
    first: frostline run norms.
    """
    from frostline.dashboards.bound import bound_picture
    from frostline.harness.crossover import last_session_of, stored_sessions
    from frostline.results.store import Store

    with Store.open(db, create=False) as store:
        ref = session or last_session_of("norms", store)
        ((evidence, _),) = stored_sessions([ref], make_request("", settings=settings), store)
        picture = bound_picture(evidence, out)
    print("\n".join([*picture.sentences, f"Chart: {picture.path}"]))


@chart_app.command("history")
def chart_history(
    suite: StoredSuite,
    out: Annotated[Path, typer.Option("--out", help="The folder for the picture.")] = Path(),
    metric: MetricsOption = None,
    settings: SetOption = None,
    implementations: ImplementationsOption = None,
    repo: RepoOption = Path(),
    db: DbOption = DEFAULT_DB,
) -> None:
    """How did a suite's figures change over commits? From stored sessions, as PNG; steps are marked, and said."""
    from frostline.dashboards.history import history_picture
    from frostline.harness.history import history_of
    from frostline.results.store import Store

    request = make_request(suite, None, settings, implementations)
    with Store.open(db, create=False) as store:
        lines = history_of(request, [name for name in (metric or "").split(",") if name], repo, store)
    picture = history_picture(suite, lines, out)
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


@site_app.command("build")
def site_build(
    out: Annotated[Path, typer.Option("--out", help="The folder for the site: an empty one, or one to replace.")],
    db: DbOption = DEFAULT_DB,
) -> None:
    """Write the site: pages that open from a file, from a web server or as an artifact of CI, with nothing fetched."""
    from frostline.dashboards.site.build import build_site
    from frostline.harness.commands import verdicts_of
    from frostline.results.store import Store

    with Store.open(db, create=False) as store:
        site = build_site(store, out, lambda session: verdicts_of(session, store))
    print(f"Site: {site.index} ({site.pages} pages)")


@site_app.command("serve")
def site_serve(
    port: Annotated[int, typer.Option("--port", help="The port; 0 for any that is free.")] = 8765,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Build the site into a temporary folder and serve it to this machine alone, until Ctrl-C."""
    from frostline.dashboards.site.build import build_site
    from frostline.dashboards.site.serve import serve
    from frostline.harness.commands import verdicts_of
    from frostline.results.store import Store

    with tempfile.TemporaryDirectory(prefix="frostline-site-") as folder:
        with Store.open(db, create=False) as store:
            build_site(store, Path(folder), lambda session: verdicts_of(session, store))
        serve(Path(folder), port, lambda address: print(f"Site: {address} (Ctrl-C ends it)", flush=True))


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
        _fail("interrupted", INTERRUPTED)
    except Interrupted as stopped:
        _fail(f"interrupted; {stopped}", INTERRUPTED)
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
    if code == INTERRUPTED:  # at once, whatever threads there are
        end_all()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
