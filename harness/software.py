"""What is installed and how it is set up: versions, variables, interpreter, tools, database. Nothing is imported for it.

Versions come from the packages' metadata: importing torch takes seconds, and some peers ask for a GPU when they are imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import runpy
import shutil
import sqlite3
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frostline.harness.outputs import why_not_writable_folder
from frostline.results.schema import APPLICATION_ID, MIGRATION_SET, known_migrations

NEEDED = ("frostline", "torch", "triton", "numpy", "pandas", "scipy")
LIBRARIES = ("frostline", "triton", "numpy", "pandas", "scipy", "sqlite")
PEERS = ("liger-kernel", "trl", "cut-cross-entropy", "transformers", "peft", "quack-kernels")
BUILD_TOOLS = ("pip", "setuptools", "wheel", "build")
COMPILERS = ("cc", "gcc", "clang")

VARIABLES = re.compile(
    "(PYTORCH|TORCH|TORCHINDUCTOR|TRITON|CUDA|CUBLAS|NVIDIA|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR|ATEN|MALLOC|DNNL|ONEDNN)_"
    "|(PYTHON(MALLOC|DEVMODE|OPTIMIZE|JIT|PERFSUPPORT|PROFILEIMPORTTIME|TRACEMALLOC|ASYNCIODEBUG|GIL|BREAKPOINT)"
    "|LD_PRELOAD|GLIBC_TUNABLES|COVERAGE_PROCESS_START|COV_CORE_SOURCE)$"
)
PLACES = re.compile("(_|^)(HOME|PATH|DIR|ROOT|VERSION|CACHE|LOGS?|TAG|REVISION|ARCH_LIST|CAPABILITIES|REQUIRE_.*)$")
"""Ends of names that say where something lies, or what it was built as: nothing runs otherwise for them."""

SET_BY_US = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
"""What `isolation.py` gives every measured process itself, whatever the user's shell has."""


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs, and what slows it. `hooks` names tools that trace or profile this process or those it starts."""

    version: str
    executable: str
    debug: bool = False
    dev_mode: bool = False
    hooks: Sequence[str] = ()


@dataclass(frozen=True)
class Database:
    """The database file. `schema` is its newest migration; `problem` says why it cannot be used."""

    path: Path
    exists: bool = False
    size: int = 0
    schema: str | None = None
    problem: str = ""


@dataclass(frozen=True)
class Software:
    """All of it. `versions` has None for a package that is not here; `tools` None for a program that is not."""

    interpreter: Interpreter
    versions: Mapping[str, str | None] = field(default_factory=dict)
    torch_cuda: str | None = None
    torch_debug: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str | None] = field(default_factory=dict)


def read_software(environ: Mapping[str, str] = os.environ) -> Software:
    """What this environment has."""
    torch = _torch_build()
    versions = {name: installed_version(name) for name in (*NEEDED, *PEERS, *BUILD_TOOLS)}
    return Software(
        interpreter=_interpreter(environ),
        versions={**versions, "sqlite": sqlite3.sqlite_version},
        torch_cuda=torch.get("cuda"),
        torch_debug=bool(torch.get("debug")),
        variables=telling_variables(environ),
        tools={"C compiler": _compiler(environ), "git": shutil.which("git")},
    )


def installed_version(name: str) -> str | None:
    """The version of a distribution, None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def telling_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how torch, Triton, CUDA, BLAS or Python run; not those that only say where something lies."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if VARIABLES.match(name) and not PLACES.search(name) and name not in SET_BY_US
    }


def read_database(path: Path) -> Database:
    """The state of a database file, without making, migrating or locking it."""
    if not path.exists():
        folder = next((parent for parent in path.absolute().parents if parent.exists()), Path())
        problem = why_not_writable_folder(folder) if folder.is_dir() else f"{folder} is no folder"
        return Database(path, problem=f"it cannot be made: {problem}" if problem else "")
    try:
        size = path.stat().st_size
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)
        try:
            schema, problem = _schema(connection)
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        return Database(path, True, problem=f"it cannot be read: {error}")
    if not problem and not (os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)):
        problem = "it cannot be written"
    return Database(path, True, size, schema, problem)


def _schema(connection: sqlite3.Connection) -> tuple[str | None, str]:
    """The newest migration of a database, and what is wrong with it."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables:
        return None, ""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        return None, "it is a database of something else"
    rows = connection.execute(
        "SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY applied_at, name", [MIGRATION_SET]
    )
    names = [row[0] for row in rows]
    newer = set(names) - known_migrations()
    return names[-1] if names else None, f"a newer frostline wrote it ({', '.join(sorted(newer))})" if newer else ""


def _interpreter(environ: Mapping[str, str]) -> Interpreter:
    return Interpreter(
        version=f"{platform.python_implementation()} {platform.python_version()}",
        executable=sys.executable,
        debug=bool(sysconfig.get_config_var("Py_DEBUG")),
        dev_mode=sys.flags.dev_mode,
        hooks=_hooks(environ),
    )


def _hooks(environ: Mapping[str, str]) -> list[str]:
    """The tools that watch every call or line: of this process, or by variables and .pth files of all that it starts."""
    found = [f"sys.set{kind}" for kind, hook in (("trace", sys.gettrace()), ("profile", sys.getprofile())) if hook is not None]
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    if monitoring is not None:
        found += [f"sys.monitoring: {name}" for tool in range(6) if (name := monitoring.get_tool(tool))]
    return found + [name for name in ("COVERAGE_PROCESS_START", "COV_CORE_SOURCE") if environ.get(name)]


def _torch_build() -> dict[str, Any]:
    """What torch's own version file says of its build (a few assignments: torch itself is not imported)."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    try:
        return runpy.run_path(str(file)) if file is not None and file.is_file() else {}
    except Exception:  # an unusual build: its version is known from the metadata all the same
        return {}


def _compiler(environ: Mapping[str, str]) -> str | None:
    """The C compiler that Triton and torch.compile would find."""
    candidates = [environ["CC"]] if environ.get("CC") else COMPILERS
    return next((path for name in candidates if (path := shutil.which(name))), None)
