"""The tables of the store, their migrations, and the page that describes them.

What: migrations of sqlite-utils, each in a transaction of its own, and one sentence for every table and column.
Why here: `docs/schema.md` is generated from a database that these migrations made, so the page cannot drift from the code:

    python -m frostline.results.schema > docs/schema.md

Every table refuses UPDATE and DELETE by trigger: what was recorded stays, and a rerun adds rows. Ids are global (UUIDv7 or a
hash of the content), so that two files can be merged by inserting one's rows into the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from frostline.results.sqlite import Migrations, sqlite_utils

APPLICATION_ID = 0x46524F53  # "FROS", kept in the header of the file: tells our databases from others
MIGRATION_SET = "frostline"

migrations = Migrations(MIGRATION_SET)

_FIRST_TABLES = """
CREATE TABLE machine (
    id TEXT PRIMARY KEY NOT NULL,
    label TEXT NOT NULL,
    content TEXT NOT NULL
) STRICT;
CREATE TABLE metric (
    name TEXT PRIMARY KEY NOT NULL,
    title TEXT NOT NULL,
    unit TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('timing', 'exact', 'bytes')),
    direction TEXT NOT NULL CHECK (direction IN ('lower', 'higher')),
    description TEXT NOT NULL
) STRICT;
CREATE TABLE suite_case (
    id TEXT PRIMARY KEY NOT NULL,
    suite TEXT NOT NULL,
    suite_version TEXT NOT NULL,
    params TEXT NOT NULL
) STRICT;
CREATE TABLE session (
    id TEXT PRIMARY KEY NOT NULL,
    command TEXT NOT NULL,
    created_at TEXT NOT NULL,
    machine_id TEXT NOT NULL REFERENCES machine (id),
    device TEXT NOT NULL,
    plan TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE TABLE session_case (
    session_id TEXT NOT NULL REFERENCES session (id),
    case_id TEXT NOT NULL REFERENCES suite_case (id),
    ordinal INTEGER NOT NULL,
    PRIMARY KEY (session_id, case_id)
) STRICT;
CREATE TABLE side (
    session_id TEXT NOT NULL REFERENCES session (id),
    position INTEGER NOT NULL,
    implementation TEXT NOT NULL,
    source TEXT NOT NULL,
    source_kind TEXT NOT NULL,
    source_id TEXT NOT NULL,
    baseline INTEGER NOT NULL CHECK (baseline IN (0, 1)),
    detail TEXT NOT NULL,
    PRIMARY KEY (session_id, position)
) STRICT;
CREATE TABLE process (
    id TEXT PRIMARY KEY NOT NULL,
    session_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    case_id TEXT NOT NULL REFERENCES suite_case (id),
    role TEXT NOT NULL CHECK (role IN ('measure', 'verify', 'predict')),
    round INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('ok', 'wrong', 'oom', 'timeout', 'crash', 'error', 'skipped')),
    reason TEXT NOT NULL,
    counted INTEGER NOT NULL CHECK (counted IN (0, 1)),
    attempt INTEGER NOT NULL,
    interleave TEXT NOT NULL CHECK (interleave IN ('block', 'process')),
    isolation TEXT NOT NULL,
    started_at TEXT NOT NULL,
    seconds REAL NOT NULL,
    stderr TEXT NOT NULL,
    telemetry TEXT NOT NULL,
    environment TEXT NOT NULL,
    code_id TEXT NOT NULL,
    FOREIGN KEY (session_id, position) REFERENCES side (session_id, position)
) STRICT;
CREATE INDEX process_by_case ON process (session_id, case_id, position);
CREATE TABLE module (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    file TEXT NOT NULL,
    sha256 TEXT NOT NULL
) STRICT;
CREATE TABLE process_module (
    process_id TEXT NOT NULL REFERENCES process (id),
    module_id TEXT NOT NULL REFERENCES module (id),
    PRIMARY KEY (process_id, module_id)
) STRICT;
CREATE TABLE verification (
    process_id TEXT NOT NULL REFERENCES process (id),
    output TEXT NOT NULL,
    relative REAL,
    maximum REAL,
    allowed REAL,
    PRIMARY KEY (process_id, output)
) STRICT;
CREATE TABLE sample (
    process_id TEXT NOT NULL REFERENCES process (id),
    metric TEXT NOT NULL REFERENCES metric (name),
    block INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    t_ns INTEGER NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (process_id, metric, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE measurement (
    process_id TEXT NOT NULL REFERENCES process (id),
    metric TEXT NOT NULL REFERENCES metric (name),
    value REAL NOT NULL,
    PRIMARY KEY (process_id, metric)
) STRICT;
CREATE TABLE round_ratio (
    session_id TEXT NOT NULL,
    case_id TEXT NOT NULL REFERENCES suite_case (id),
    round INTEGER NOT NULL,
    metric TEXT NOT NULL REFERENCES metric (name),
    position INTEGER NOT NULL,
    baseline_position INTEGER NOT NULL,
    log_ratio REAL NOT NULL,
    cycles INTEGER NOT NULL,
    interleave TEXT NOT NULL CHECK (interleave IN ('block', 'process')),
    PRIMARY KEY (session_id, case_id, round, metric, position),
    FOREIGN KEY (session_id, position) REFERENCES side (session_id, position),
    FOREIGN KEY (session_id, baseline_position) REFERENCES side (session_id, position)
) STRICT;
CREATE TABLE verdict (
    id TEXT PRIMARY KEY NOT NULL,
    judged_at TEXT NOT NULL,
    session_id TEXT NOT NULL,
    case_id TEXT NOT NULL REFERENCES suite_case (id),
    metric TEXT NOT NULL REFERENCES metric (name),
    role TEXT NOT NULL CHECK (role IN ('measure', 'predict')),
    position INTEGER NOT NULL,
    baseline_session_id TEXT NOT NULL,
    baseline_position INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    sentence TEXT NOT NULL,
    effect REAL,
    low REAL,
    high REAL,
    delta REAL NOT NULL,
    rounds INTEGER NOT NULL,
    p_value REAL,
    flags TEXT NOT NULL,
    FOREIGN KEY (session_id, position) REFERENCES side (session_id, position),
    FOREIGN KEY (baseline_session_id, baseline_position) REFERENCES side (session_id, position)
) STRICT;
CREATE INDEX verdict_by_session ON verdict (session_id, case_id, metric, position);
"""


@migrations()
def m001_first_tables(db: sqlite_utils.Database) -> None:
    """The first schema. Migrations are history: a change of the schema is a new function below, never an edit of this one."""
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")  # part of the transaction, as all that is in the header
    for statement in _FIRST_TABLES.split(";\n"):
        if statement.strip():
            db.execute(statement)
    for table in _own_tables(db):
        for action in ("UPDATE", "DELETE"):
            db.execute(
                f"CREATE TRIGGER {table}_refuses_{action.lower()} BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table}: what was recorded is never changed; a rerun adds rows'); END"
            )


@migrations()
def m002_level_of_a_verdict(db: sqlite_utils.Database) -> None:
    """How confident a verdict's interval is. Until comparisons could take more than two looks, all were of 99 %."""
    db.execute("ALTER TABLE verdict ADD COLUMN level REAL NOT NULL DEFAULT 0.99")


@migrations()
def m003_cost_of_a_prediction(db: sqlite_utils.Database) -> None:
    """What a predicted peak and predicted FLOPs are made of."""
    db.execute("ALTER TABLE process ADD COLUMN cost TEXT NOT NULL DEFAULT '{}'")


@migrations()
def m004_origin_of_a_session(db: sqlite_utils.Database) -> None:
    """Sessions that other programs measured. All that were stored before are our own."""
    db.execute("ALTER TABLE session ADD COLUMN origin TEXT NOT NULL DEFAULT ''")


def _own_tables(db: sqlite_utils.Database) -> list[str]:
    return [name for name in db.table_names() if not name.startswith("_") and not name.startswith("sqlite_")]


def known_migrations() -> frozenset[str]:
    """The names of the migrations that this version of the code has."""
    empty = sqlite_utils.Database(memory=True)
    try:
        return frozenset(migration.name for migration in migrations.pending(empty))
    finally:
        empty.close()


TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "machine": (
        "Where sessions ran. Two machines of equal content are one row.",
        {
            "id": "hash of the content",
            "label": "a name to print: the GPU, or the CPU and its cores",
            "content": "JSON: cpu, cores, memory, gpu, driver, os, ...",
        },
    ),
    "metric": (
        "What was read, in which unit, and how it is judged.",
        {
            "name": "the name used everywhere",
            "title": "the name as tables and charts print it",
            "unit": "unit of every stored value: ns, B, FLOP or 1",
            "kind": "timing (by rounds), exact (by equality) or bytes (within a tolerance)",
            "direction": "which way is better: lower or higher",
            "description": "what exactly is read",
        },
    ),
    "suite_case": (
        "One point of a suite's axes. The suite's version is part of its identity.",
        {
            "id": "hash of suite, version and params",
            "suite": "name of the suite",
            "suite_version": "version given, or a hash of the suite's source",
            "params": "JSON object: the value of every axis, in the order of the axes",
        },
    ),
    "session": (
        "All that one command measured.",
        {
            "id": "UUIDv7: sorts by time; of an imported one UUIDv5 of its content",
            "command": "the command line",
            "created_at": "when it began (ISO 8601, UTC)",
            "machine_id": "the machine",
            "device": "the device that was measured (cpu, cuda:0, ...)",
            "plan": "JSON: what was to be measured, so that it can be resumed",
            "origin": "the form and file that it was imported from; empty for what was measured here",
            "detail": "JSON: version, commit and hash of the uncommitted changes of the folder that the command ran in",
        },
    ),
    "session_case": (
        "Which cases a session planned, in which order.",
        {"session_id": "the session", "case_id": "the case", "ordinal": "place in the plan, from 0"},
    ),
    "side": (
        "An implementation at a source, at a position of its session. Everything else points to positions.",
        {
            "session_id": "the session",
            "position": "0, 1, ...: identical code on two positions is two sides",
            "implementation": "what the suite was asked for",
            "source": "what the user typed: installed, a revision, a release, a directory",
            "source_kind": "installed, git, worktree, ... or imported",
            "source_id": "hash of the content that the source led to",
            "baseline": "1 for the side that the others are judged against",
            "detail": "JSON: commit, build inputs, ...",
        },
    ),
    "process": (
        "One operating-system process: one case on one side in one round.",
        {
            "id": "UUIDv7",
            "session_id": "the session",
            "position": "the side",
            "case_id": "the case",
            "role": "measure, verify (against the reference) or predict (the cost model: nothing was run)",
            "round": "from 0; -1 for verify and predict",
            "status": "ok, wrong, oom, timeout, crash, error or skipped",
            "reason": "why it is not ok, in a line",
            "counted": "1 for the attempt that stands for its round",
            "attempt": "0 for the first try",
            "interleave": "block: in short blocks with the other sides; process: one process after the other",
            "isolation": "spawn or fork; imported for a figure of another program",
            "started_at": "when it started (ISO 8601, UTC)",
            "seconds": "how long it lived",
            "stderr": "the end of its standard error",
            "telemetry": "JSON: clock, temperature, power, throttling before and after",
            "environment": "JSON: threads, affinity, seeds, versions",
            "cost": "JSON of a prediction: the tensors alive at the peak with their origin, and the operators with their work",
            "code_id": "hash of the target packages' code that it loaded; empty when none was",
        },
    ),
    "module": (
        "A module of a target package that processes imported: the proof of which code ran.",
        {"id": "hash of the three", "name": "dotted name", "file": "where it lay", "sha256": "hash of the file's bytes"},
    ),
    "process_module": (
        "Which process imported which module.",
        {"process_id": "the process", "module_id": "the module"},
    ),
    "verification": (
        "One output of a side against the suite's reference.",
        {
            "process_id": "the verifying process",
            "output": "name of the output",
            "relative": "norm of the error over the norm of the reference; empty for NaN",
            "maximum": "largest absolute error; empty for NaN",
            "allowed": "bound on `relative`; empty for NaN",
        },
    ),
    "sample": (
        "One reading of one metric in one timed step. Every one is kept.",
        {
            "process_id": "the process",
            "metric": "the metric",
            "block": "the process's own block, from 0: blocks 2k and 2k + 1 are cycle k",
            "seq": "place among the process's samples of this metric, from 0",
            "t_ns": "monotonic clock at the step's start: orders the samples of all processes of a machine; 0 where imported",
            "value": "the reading, in the metric's unit",
        },
    ),
    "measurement": (
        "One value for each process and metric: the median of its samples, the peak, or the count.",
        {"process_id": "the process", "metric": "the metric", "value": "in the metric's unit"},
    ),
    "round_ratio": (
        "One round's log ratio of a side to the baseline: the unit that verdicts are made of.",
        {
            "session_id": "the session",
            "case_id": "the case",
            "round": "the round",
            "metric": "a timing metric",
            "position": "the side",
            "baseline_position": "the baseline",
            "log_ratio": "natural log of side over baseline: the median over the round's cycles",
            "cycles": "how many cycles both sides have",
            "interleave": "block or process",
        },
    ),
    "verdict": (
        "What was concluded. A later verdict on the same thing is a later row, and is the one that counts.",
        {
            "id": "UUIDv7",
            "judged_at": "when (ISO 8601, UTC)",
            "session_id": "the session",
            "case_id": "the case",
            "metric": "the metric",
            "role": "measure, or predict for a verdict on the cost model's figures",
            "position": "the side",
            "baseline_session_id": "the baseline's session, mostly the same",
            "baseline_position": "the baseline",
            "outcome": "faster, slower, less, more, same, inconclusive, broken or incomparable",
            "reason": "a code",
            "sentence": "the same in a sentence",
            "effect": "ratio to the baseline; empty where there is none",
            "low": "lower end of the interval of the ratio",
            "high": "upper end",
            "delta": "smallest change worth a word, a fraction",
            "rounds": "rounds that it rests on (processes, for an exact metric)",
            "p_value": "exact signed-rank p, for the reader: it decides nothing",
            "flags": "JSON list of remarks that change no verdict",
            "level": "confidence of the interval, a fraction",
        },
    ),
}


def document() -> str:
    """The page `docs/schema.md`: every table and column of a database that the migrations made."""
    db = sqlite_utils.Database(memory=True)
    migrations.apply(db)
    try:
        return "\n".join(_page(db)) + "\n"
    finally:
        db.close()


def _page(db: sqlite_utils.Database) -> Iterator[str]:
    yield "# The tables of a Frostline database\n"
    yield "Generated: `python -m frostline.results.schema > docs/schema.md`.\n"
    yield (
        "SQLite in WAL mode. Every table refuses UPDATE and DELETE: a rerun adds rows. Ids are global, so that files can be\n"
        "merged. The file opens in Datasette, pandas or the `sqlite3` shell as it is.\n"
    )
    for name in _own_tables(db):
        about, columns = TABLES[name]
        references = {
            column: f"{other}.{target}"
            for _, _, other, column, target, *_ in db.execute(f"PRAGMA foreign_key_list({name})").fetchall()
        }
        yield f"## {name}\n\n{about}\n"
        yield "| column | type | key | refers to | what |\n|---|---|---|---|---|"
        for _, column, kind, not_null, _, key in db.execute(f"PRAGMA table_info({name})").fetchall():
            nullable = "" if not_null or key else ", may be empty"
            yield f"| {column} | {kind}{nullable} | {'yes' if key else ''} | {references.get(column, '')} | {columns[column]} |"
        yield ""


if __name__ == "__main__":
    print(document(), end="")
