"""What a database holds: a row for each session, the newest first, with the least of its id that names it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from frostline.results.evidence import side_names
from frostline.results.flags import OUT_OF_TIME
from frostline.results.looks import Looks
from frostline.results.record import Session
from frostline.results.store import Store
from frostline.results.table import Cell, Column, Table

LEAST_OF_AN_ID = 13  # characters: the milliseconds of a UUIDv7
HEADERS = ("session", "begun (UTC)", "command", "suite", "sides, the baseline first", "device", "machine", "rounds")


def sessions_table(store: Store) -> Table:
    """Every session of a database, the newest first. Raises UsageError where there is none."""
    store.session("last")
    known = store.sessions()
    length = _least_length([session.id for session in known])
    rows = [_row(store, session, session.id[:length]) for session in reversed(known)]
    count = f"{len(known)} session{'s' if len(known) > 1 else ''}"
    return Table(f"{count} in {store.path}", [Column(header) for header in HEADERS], rows)


def _least_length(ids: Sequence[str]) -> int:
    longest = max(map(len, ids))
    return next((n for n in range(LEAST_OF_AN_ID, longest) if len({one[:n] for one in ids}) == len(ids)), longest)


def _row(store: Store, session: Session, name: str) -> list[Cell]:
    sides = store.sides(session.id)
    named = side_names(sides)
    suites = dict.fromkeys(case.suite for case in store.cases(session.id))
    cells = (
        name,
        session.created_at[:16].replace("T", " "),
        _command(session.command),
        ", ".join(suites) or "-",
        ", ".join(named[side.position] for side in sorted(sides, key=lambda side: (not side.baseline, side.position))),
        session.device,
        store.machine(session.machine_id).label,
        _rounds(store, session),
    )
    return [(cell,) for cell in cells]


def _command(line: str) -> str:
    """What was asked for: `compare`, `chart crossover`."""
    _, *words = [*shlex.split(line), ""]
    return " ".join(words[: 2 if words[0] == "chart" else 1]) or "-"


def _rounds(store: Store, session: Session) -> str:
    """How many rounds the cases have, and why not all that were planned, where they have fewer."""
    if session.origin:
        return "imported"
    if session.detail.get("predicted"):
        return "predicted"
    of_case, planned = store.rounds_of(session.id), Looks.of_plan(session.plan).rounds
    counts = sorted({of_case.get(case.id, 0) for case in store.cases(session.id)} or {0})
    had = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    if store.judged_since_measured(session.id):
        cut = any(OUT_OF_TIME in verdict.flags for verdict in store.verdicts(session.id))
        return f"{had}, the time ended it" if cut else had
    if len(store.sides(session.id)) == 1:  # of which nothing is ever concluded
        short = {case.id for case in store.cases(session.id) if of_case.get(case.id, 0) < planned}
        if short <= store.failed_cases(session.id):
            return had
    return f"{had} of {planned}, not finished"
