"""`frostline import`, `export` and `db`: data that moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from frostline.harness.front.options import DEFAULT_DB, DbOption
from frostline.harness.front.printing import command_line
from frostline.harness.outputs import check_outputs

db_app = typer.Typer(no_args_is_help=True, help="Join databases, and open one in Datasette.")


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSON of pytest-benchmark or Google Benchmark, asv's results (a file or the folder), Liger-Kernel's benchmark "
            "CSV, or the word published: the tables that come with frostline.",
        ),
    ],
    db: DbOption = DEFAULT_DB,
) -> None:
    """Keep what another program measured, as sessions that are marked as imported. No verdict ever rests on them."""
    from frostline.results.exchange.readers import read_file
    from frostline.results.store import Store

    found = read_file(file, command_line())
    with Store.open(db) as store:
        new = store.add_imported(found)
    for one in new:
        suite, cases = one.cases[0].suite, len(one.cases)
        print(f"{one.session.id}  {suite}: {cases} case{'s' * (cases > 1)}, {len(one.sides)} side{'s' * (len(one.sides) > 1)}")
    print(f"Imported {len(new)} of {len(found)} sessions into {db}; the others were there already.")


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: .csv, .json or .parquet.")],
    what: Annotated[
        str, typer.Option("--what", help="measurements (one value a process and metric) or samples.")
    ] = "measurements",
    session: Annotated[
        list[str] | None, typer.Option("--session", help="Only this session: an id or last. May be repeated.")
    ] = None,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Write what a database holds as one flat table."""
    from frostline.results.exchange.export import export as write
    from frostline.results.store import Store

    check_outputs({"FILE": file})
    with Store.open(db, create=False) as store:
        count = write(store, file, what, [store.session(ref).id for ref in session or ()])
    print(f"Wrote {count:,} {what} to {file}")


@db_app.command("merge")
def db_merge(
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Another database; it is only read.")],
    db: DbOption = DEFAULT_DB,
) -> None:
    """Add what another database holds and this one does not."""
    from frostline.results.exchange.merge import merge
    from frostline.results.store import Store

    with Store.open(db) as store:
        added = merge(store, other)
    told = ", ".join(f"{added.get(table, 0):,} {table}" for table in ("session", "process", "sample", "verdict"))
    print(f"Added to {db} from {other} (rows): {told}")


@db_app.command("metadata")
def db_metadata(db: DbOption = DEFAULT_DB) -> None:
    """Print titles, units, facets and queries for Datasette: datasette DB --metadata FILE."""
    from frostline.results.exchange.export import datasette_metadata

    print(json.dumps(datasette_metadata(db.stem), indent=1))
