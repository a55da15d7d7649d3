"""The files that frostline itself leaves where one stands: its database, with what SQLite and our lock keep beside it.

They are no part of the code that is measured. Were they taken for new files of the working tree, every comparison would make
another tree of it, and build anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

MAGIC = b"SQLite format 3\0"
ID_AT, ID_BYTES = 68, 4  # the application's id in the first page (sqlite.org/fileformat2.html, 1.3)
LOG = "-wal"
BESIDE = (LOG, "-shm", "-journal", ".lock")
LOOKED_AT = 1 << 20  # bytes of a log: its first page is among them, or has been written to the database since


def without_own(paths: Iterable[Path]) -> list[Path]:
    """The paths without those of our databases, by whatever name, and of what lies beside them."""
    given = list(paths)
    own = {path.with_name(path.name + suffix) for path in given if _is_own(path) for suffix in ("", *BESIDE)}
    return [path for path in given if path not in own]


def _is_own(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first = file.read(ID_AT + ID_BYTES)
    except OSError:
        return False
    if not first.startswith(MAGIC):
        return False
    from frostline.results.schema import APPLICATION_ID  # with sqlite_utils, which takes longer to load than all of this

    return APPLICATION_ID.to_bytes(ID_BYTES, "big") in (first[ID_AT:], *_logged(path.with_name(path.name + LOG)))


def _logged(log: Path) -> Iterator[bytes]:
    """The ids in the first pages that a log of SQLite's holds: a new database is nowhere else until it is closed."""
    try:
        with log.open("rb") as file:
            content = file.read(LOOKED_AT)
    except OSError:
        return
    _, *pages = content.split(MAGIC)
    yield from (page[ID_AT - len(MAGIC) :][:ID_BYTES] for page in pages)
