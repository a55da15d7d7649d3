"""Joining databases of several machines: ids are global, so the rows of one are put beside those of the other.

The other file is read through a copy, which may be migrated; the file itself is never written to.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from frostline.results.record import UsageError
from frostline.results.store import Store


def merge(store: Store, other: Path) -> dict[str, int]:
    """Add everything of another database that is not there yet, in one transaction.

    Returns:
        How many rows were new, by table, those alone that got any.

    Raises:
        UsageError: no such file, no Frostline database, the same file, or a metric of another unit; then nothing is added.
    """
    if not other.is_file():
        raise UsageError(f"OTHER: no database at {other}")
    if other.samefile(store.path):
        raise UsageError(f"OTHER: {other} is the database itself; wanted another one")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "other.db"
        try:
            with (
                closing(sqlite3.connect(f"{other.absolute().as_uri()}?mode=ro", uri=True)) as read,
                closing(sqlite3.connect(copy)) as kept,
            ):
                read.backup(kept)
        except sqlite3.DatabaseError as problem:
            raise UsageError(f"OTHER: cannot read {other} as a database: {problem}; wanted a Frostline database") from None
        try:
            with Store.open(copy, create=False) as second:
                store.check_metrics(second.metrics().values())
        except UsageError as problem:
            raise UsageError(str(problem).replace(str(copy), str(other)).replace("--db:", "OTHER:")) from None
        return store.add_rows_of(copy)
