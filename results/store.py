"""The store: one SQLite file that keeps everything that was measured.

Writers take `BEGIN IMMEDIATE` (a deferred transaction that turns into a writer fails at once under several writers, whatever
the busy timeout) and a file lock around creation and migration, so that any number of processes may open one new file at the
same time. Rows are only ever added: the schema refuses anything else. A transaction holds whole processes, so a writer that
dies leaves either all of a process or nothing of it.

The tables are in `schema.py`, the conversion between rows and records in `rows.py`.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from frostline.results import rows
from frostline.results.record import (
    METRICS,
    Case,
    Imported,
    Machine,
    Metric,
    Module,
    ProcessRecord,
    Role,
    RoundRatio,
    Sample,
    Session,
    SideRecord,
    Status,
    UsageError,
    Verdict,
)
from frostline.results.schema import APPLICATION_ID, known_migrations, migrations
from frostline.results.sqlite import sqlite_utils

if TYPE_CHECKING:
    import pandas as pd

BUSY_SECONDS = 60.0  # a writer waits this long for another's transaction, which lasts milliseconds


class Store:
    """An open database. Use `Store.open`, as a context manager or with `close`. Not to be shared between threads."""

    def __init__(self, db: sqlite_utils.Database, path: Path) -> None:
        self._db = db
        self.path = path

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True) -> Store:
        """Open a database, making or migrating it as needed.

        Args:
            path: the file. Its folder is made when `create`.
            create: whether a file that is not there is made.

        Raises:
            UsageError: nothing there and not `create`; not a SQLite file; a database of something else; a database that a
                newer version of Frostline wrote; or a place that cannot be written.
        """
        path = Path(path)
        if not create and not path.is_file():
            raise UsageError(f"--db: no database at {path}; measure something first (frostline run), or name another file")
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
            db = _connect(path)
            if not _is_current(db):
                with _lock(path):
                    _prepare(db, path, create)
        except (OSError, sqlite3.OperationalError) as problem:
            raise UsageError(f"--db: cannot open {path} as a database: {problem}") from problem
        except sqlite3.DatabaseError as problem:
            raise UsageError(f"--db: {path} is not a database ({problem}); wanted a Frostline database") from problem
        return cls(db, path)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Writing

    def add_session(self, session: Session, machine: Machine, sides: Sequence[SideRecord], cases: Sequence[Case]) -> None:
        """Add a session with its machine, sides and planned cases, in one transaction."""
        with self._transaction():
            self._add_session(session, machine, sides, cases)

    def add_cases(self, session_id: str, cases: Sequence[Case]) -> None:
        """Plan further cases for a session (those it already has stay as they are)."""
        with self._transaction():
            self._plan_cases(session_id, cases)

    def add_metrics(self, metrics: Iterable[Metric]) -> None:
        """Name metrics beyond the built-in ones; a name that is known already keeps its first meaning."""
        with self._transaction():
            self._insert("metric", map(rows.metric_row, metrics), ignore=True)

    def add_processes(self, records: Sequence[ProcessRecord], ratios: Sequence[RoundRatio] = ()) -> None:
        """Add finished processes with all that belongs to them, and the rounds' ratios, in one transaction.

        Raises:
            sqlite3.IntegrityError: an unknown session, side, case or metric, or an id or ratio that is there already; then
                nothing of the call is stored.
        """
        with self._transaction():
            self._add_processes(records, ratios)

    def add_imported(self, found: Sequence[Imported]) -> list[Imported]:
        """Add whole sessions of other programs, all in one transaction; those that are there already stay as they are.

        Returns:
            Those that were new.

        Raises:
            UsageError: a metric that the file has with another unit; then nothing is added.
        """
        with self._transaction():
            known = {row["id"] for row in self._query("SELECT id FROM session")}
            new = list({one.session.id: one for one in found if one.session.id not in known}.values())
            for one in new:
                self.check_metrics(one.metrics)
                self._insert("metric", map(rows.metric_row, one.metrics), ignore=True)
                self._add_session(one.session, one.machine, one.sides, one.cases)
                self._add_processes(one.processes)
        return new

    def check_metrics(self, metrics: Iterable[Metric]) -> None:
        """Make sure that a name means here what it means elsewhere. Raises UsageError where units differ."""
        known = self.metrics()
        for metric in metrics:
            if metric.name in known and known[metric.name].unit != metric.unit:
                raise UsageError(
                    f"{self.path}: metric {metric.name} is kept here in {known[metric.name].unit}, "
                    f"and would come in {metric.unit}; import it into another database"
                )

    def add_rows_of(self, other: Path) -> dict[str, int]:
        """Add the rows of another database of the same schema that are not here, in one transaction; how many, by table."""
        connection, added = self._db.conn, {}
        connection.execute("ATTACH ? AS other", [str(other)])
        try:
            with self._transaction():
                for table in rows.TABLES_IN_ORDER:
                    columns = ", ".join(row["name"] for row in self._query(f"PRAGMA main.table_info({table})"))
                    before = connection.total_changes
                    connection.execute(
                        f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM other.{table} "
                        "WHERE true ON CONFLICT DO NOTHING"
                    )
                    if connection.total_changes > before:
                        added[table] = connection.total_changes - before
        finally:
            connection.execute("DETACH other")
        return added

    def add_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts. Where one on the same thing is there, both stay, and the newer counts."""
        judged_at = datetime.now(UTC).isoformat()
        with self._transaction():
            self._insert("verdict", [rows.verdict_row(verdict, judged_at) for verdict in verdicts])

    # Reading

    def sessions(self) -> list[Session]:
        """All sessions, the oldest first."""
        return [rows.session(row) for row in self._query("SELECT * FROM session ORDER BY created_at, rowid")]

    def session(self, ref: str = "last") -> Session:
        """One session by its id, the beginning of its id that no other shares, or `last`: the last that was not imported.

        Raises:
            UsageError: nothing or several by that name, or no session at all.
        """
        named = self._query("SELECT * FROM session WHERE id = ?", [ref])
        if named:  # without reading the plans of all the others
            return rows.session(named[0])
        known = self.sessions()
        if not known:
            raise UsageError(f"SESSION: {self.path} holds no session yet")
        if ref == "last":
            return next((one for one in reversed(known) if not one.origin), known[-1])
        found = [one for one in known if ref and one.id.startswith(ref)]
        if len(found) == 1:
            return found[0]
        if not found:
            last = known[-1].id
            raise UsageError(
                f"SESSION: no session {ref!r} in {self.path}; the last one is {last}, frostline report --list has all"
            )
        raise UsageError(
            f"SESSION: {ref!r} names {len(found)} sessions ({', '.join(one.id for one in found[-4:])}); give more of the id"
        )

    def machine(self, machine_id: str) -> Machine:
        """The machine with this id. KeyError where there is none."""
        for row in self._query("SELECT * FROM machine WHERE id = ?", [machine_id]):
            return rows.machine(row)
        raise KeyError(machine_id)

    def metrics(self) -> dict[str, Metric]:
        """Every metric that the file knows, by name."""
        return {row["name"]: rows.metric(row) for row in self._query("SELECT * FROM metric ORDER BY rowid")}

    def sides(self, session_id: str) -> list[SideRecord]:
        """A session's sides by position."""
        return [
            rows.side(row) for row in self._query("SELECT * FROM side WHERE session_id = ? ORDER BY position", [session_id])
        ]

    def cases(self, session_id: str) -> list[Case]:
        """The cases that a session planned, in the order of the plan."""
        sql = "SELECT c.* FROM suite_case c JOIN session_case s ON s.case_id = c.id WHERE s.session_id = ? ORDER BY s.ordinal"
        return [rows.case(row) for row in self._query(sql, [session_id])]

    def processes(self, session_id: str, *, role: Role | None = None) -> list[ProcessRecord]:
        """A session's processes in the order they were stored, without their samples (see `samples`)."""
        children: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
        for table, select in rows.CHILD_QUERIES.items():
            grouped = children.setdefault(table, {})
            for row in self._query(select, [session_id]):
                grouped.setdefault(row["process_id"], []).append(row)
        modules = self._modules(session_id)
        found = self._query("SELECT * FROM process WHERE session_id = ? ORDER BY rowid", [session_id])
        return [
            rows.process(
                row,
                **{table: grouped.get(row["id"], []) for table, grouped in children.items()},
                modules=modules.get(row["id"], ()),
            )
            for row in found
            if role is None or row["role"] == role
        ]

    def _modules(self, session_id: str) -> dict[str, tuple[Module, ...]]:
        """The modules of each process. Processes that loaded the same share them: there may be hundreds, in thousands."""
        links = (
            "SELECT l.process_id, l.module_id FROM process_module l JOIN process p ON p.id = l.process_id "
            "WHERE p.session_id = ? ORDER BY l.rowid"
        )
        loaded: dict[str, list[str]] = {}
        for process_id, module_id in self._db.execute(links, [session_id]):
            loaded.setdefault(process_id, []).append(module_id)
        sets = {tuple(ids) for ids in loaded.values()}
        wanted = {one for ids in sets for one in ids}
        known = {row["id"]: rows.module(row) for row in self._query("SELECT * FROM module") if row["id"] in wanted}
        shared = {ids: tuple(known[one] for one in ids) for ids in sets}
        return {process_id: shared[tuple(ids)] for process_id, ids in loaded.items()}

    def samples(self, process_id: str) -> list[Sample]:
        """Every sample of a process, by metric and in the order they were taken."""
        sql = "SELECT metric, block, t_ns, value FROM sample WHERE process_id = ? ORDER BY metric, seq"
        return [Sample(row["metric"], row["block"], row["t_ns"], row["value"]) for row in self._query(sql, [process_id])]

    def ratios(self, session_id: str) -> list[RoundRatio]:
        """Every round's log ratios, by case in the order they were stored, and by round."""
        return [
            rows.ratio(row)
            for row in self._query("SELECT * FROM round_ratio WHERE session_id = ? ORDER BY rowid", [session_id])
        ]

    def verdicts(self, session_id: str) -> list[Verdict]:
        """The latest verdict for each case, metric, role and position (and baseline) of a session."""
        latest: dict[tuple[object, ...], Verdict] = {}
        for row in self._query("SELECT * FROM verdict WHERE session_id = ? ORDER BY judged_at, rowid", [session_id]):
            one = rows.verdict(row)
            key = (one.case_id, one.metric, one.role, one.position, one.baseline_session_id, one.baseline_position)
            latest[key] = one
        return list(latest.values())

    def rounds_of(self, session_id: str) -> dict[str, int]:
        """How many rounds each case has that count, by its id; without those that have none."""
        sql = (
            "SELECT case_id, COUNT(DISTINCT round) AS rounds FROM process "
            "WHERE session_id = ? AND role = ? AND counted = 1 GROUP BY case_id"
        )
        return {row["case_id"]: row["rounds"] for row in self._query(sql, [session_id, Role.MEASURE])}

    def failed_cases(self, session_id: str) -> set[str]:
        """The ids of the cases in which a process that counts was not ok."""
        sql = "SELECT DISTINCT case_id FROM process WHERE session_id = ? AND counted = 1 AND status != ?"
        return {row["case_id"] for row in self._query(sql, [session_id, Status.OK])}

    def judged_since_measured(self, session_id: str) -> bool:
        """Whether the newest verdict of a session is newer than its newest process; not so where there is none."""
        measured = self._newest("SELECT started_at FROM process WHERE session_id = ?", session_id)
        judged = self._newest("SELECT judged_at FROM verdict WHERE session_id = ?", session_id)
        return judged is not None and (measured is None or measured <= judged)

    def _newest(self, sql: str, session_id: str) -> datetime | None:
        """The latest of some times as they are stored, which have more digits or fewer."""
        times = (text for row in self._query(sql, [session_id]) for text in row.values() if text)
        return max(map(datetime.fromisoformat, times), default=None)

    def rounds_done(self, session_id: str) -> set[tuple[str, int]]:
        """The (case id, round) pairs that `--resume` need not measure again.

        A round of a case is done when every side of the session has a counted measuring process in it, or was left out of it:
        a side is left out after a counted process of it failed on that case, in verification or in an earlier round.
        """
        present: dict[tuple[str, int], set[int]] = {}
        left_out_after: dict[tuple[str, int], int] = {}
        sql = "SELECT case_id, position, round, status FROM process WHERE session_id = ? AND counted = 1 AND role != ?"
        for row in self._query(sql, [session_id, Role.PREDICT]):
            case_id, position, number = row["case_id"], row["position"], row["round"]
            if number >= 0:
                present.setdefault((case_id, number), set()).add(position)
            if row["status"] != Status.OK:
                earliest = left_out_after.get((case_id, position), number)
                left_out_after[case_id, position] = min(earliest, number)
        positions = [side.position for side in self.sides(session_id)]
        return {
            (case_id, number)
            for (case_id, number), measured in present.items()
            if all(p in measured or left_out_after.get((case_id, p), number) < number for p in positions)
        }

    def measurements(self, *session_ids: str) -> pd.DataFrame:
        """Every counted process as a tidy table, for charts: one row for each process and metric.

        Columns: session, machine, device, suite, suite_version, case, one for every axis (NaN where a suite has no such axis;
        `axis.NAME` where NAME is one of these words), position, implementation, source, baseline, role, round, status, reason,
        metric, unit, value (NaN with metric None for a process that measured nothing, such as one that ran out of memory).
        """
        from frostline.results.frame import measurement_frame  # pandas takes half a second to import: only who charts pays

        return measurement_frame(self._query, session_ids)

    def sample_frame(self, *session_ids: str) -> pd.DataFrame:
        """Every sample as a tidy table: the columns of `measurements`, and process, block, seq and t_ns."""
        from frostline.results.frame import measurement_frame

        return measurement_frame(self._query, session_ids, samples=True)

    # Inside

    def _add_session(self, session: Session, machine: Machine, sides: Sequence[SideRecord], cases: Sequence[Case]) -> None:
        self._insert("metric", map(rows.metric_row, METRICS.values()), ignore=True)
        self._insert("machine", [rows.machine_row(machine)], ignore=True)
        self._insert("session", [rows.session_row(session)])
        self._insert("side", [rows.side_row(session.id, side) for side in sides])
        self._plan_cases(session.id, cases)

    def _add_processes(self, records: Sequence[ProcessRecord], ratios: Sequence[RoundRatio] = ()) -> None:
        modules = {rows.module_id(module): module for record in records for module in record.modules}
        self._insert("module", [rows.module_row(module) for module in modules.values()], ignore=True)
        self._insert("process", map(rows.process_row, records))
        for table, children in rows.PROCESS_CHILDREN.items():
            self._insert(table, (row for record in records for row in children(record)))
        self._insert("round_ratio", map(rows.ratio_row, ratios))

    def _plan_cases(self, session_id: str, cases: Sequence[Case]) -> None:
        planned = self._query("SELECT COUNT(*) AS n FROM session_case WHERE session_id = ?", [session_id])[0]["n"]
        self._insert("suite_case", map(rows.case_row, cases), ignore=True)
        links = [{"session_id": session_id, "case_id": case.id, "ordinal": planned + i} for i, case in enumerate(cases)]
        self._insert("session_case", links, ignore=True)

    def _query(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        return list(self._db.query(sql, list(parameters)))

    def _insert(self, table: str, records: Iterable[Mapping[str, Any]], *, ignore: bool = False) -> None:
        """Insert rows of equal keys. `ignore` keeps a row that is there: for things whose id is a hash of their content."""
        iterator = iter(records)
        first = next(iterator, None)
        if first is None:
            return
        columns = list(first)
        conflict = f" ON CONFLICT ({rows.CONTENT_KEYS[table]}) DO NOTHING" if ignore else ""
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(':' + c for c in columns)}){conflict}"
        self._db.conn.execute(sql, first)
        self._db.conn.executemany(sql, iterator)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._db.conn
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


def _connect(path: Path) -> sqlite_utils.Database:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    return sqlite_utils.Database(connection)


def _is_current(db: sqlite_utils.Database) -> bool:
    """Whether the file is ours and holds exactly the migrations that we know. No lock needed: each is one transaction."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        return False
    return {migration.name for migration in migrations.applied(db)} == known_migrations()


def _prepare(db: sqlite_utils.Database, path: Path, create: bool) -> None:
    """Under the file lock: refuse what is not ours or too new, then bring the tables up to date."""
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    tables = [name for name in db.table_names() if name != migrations.migrations_table]
    if (tables or application_id) and application_id != APPLICATION_ID:
        raise UsageError(
            f"--db: {path} is a database of something else (tables {', '.join(tables[:5])}); wanted a Frostline database"
        )
    if not tables and not create:
        raise UsageError(f"--db: {path} is empty; measure something first (frostline run), or name another file")
    unknown = {migration.name for migration in migrations.applied(db)} - known_migrations()
    if unknown:
        raise UsageError(
            f"--db: {path} was written by a newer version of Frostline (it has {', '.join(sorted(unknown))}); upgrade it"
        )
    db.execute("PRAGMA journal_mode = WAL")  # kept in the file
    migrations.apply(db)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """An exclusive lock beside the database. The lock file stays: removing it would let two holders in."""
    with path.with_name(path.name + ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
