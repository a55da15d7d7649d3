"""The interpreter that measures: the command's own, or that of an environment of the user's (`--python`).

Another environment need not have frostline. The few rooms that a measured process needs are put on its path, and nothing else
of the command's own environment: what a suite imports comes from its side or from the user's environment.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from frostline.harness import facts
from frostline.harness.contents import content_hash, file_state
from frostline.harness.exports import cached
from frostline.results.record import UsageError, content_id

LEAST_PYTHON = (3, 11)
IN_ENVIRONMENT = ("bin/python", "bin/python3", "Scripts/python.exe")
TIMEOUT_S = 60.0
WORD = "frostline"  # in the first answer: another program prints something else
FIRST_ANSWER = re.compile(rf"{WORD} (\d+\.\d+\.\d+) ([^\0]+)")
# Understood by every Python there is, so that an old one can say how old it is.
FIRST_QUESTION = f"import sys; print('{WORD} %d.%d.%d %s' % (sys.version_info[:3] + (sys.prefix,)))"
WORKER_ROOMS: Mapping[str, Sequence[str]] = {"harness": (), "results": ("__init__.py", "record.py")}
"""What a measured process imports of ours: a room's files, or all of them. They need the standard library alone, and torch
where the suite does.
"""
BUNDLED_ROOMS: Mapping[str, Sequence[str]] = {"suites": (), "kernels": ()}
"""What a bundled suite needs besides: itself, and the kernels that it measures."""


@dataclass(frozen=True)
class Interpreter:
    """A Python, and what is installed for it.

    executable: as it is started; the links of a virtual environment are not followed.
    implementation, version: `CPython`, `3.12.4`.
    tags: what compiled code must fit.
    markers: the variables of requirements' markers (PEP 508).
    packages: versions by normalized name; empty for the command's own, which is asked when a version is needed.
    harness: the directory with our rooms for its path; None for the command's own, which has them.
    """

    executable: str
    implementation: str
    version: str
    tags: str
    markers: Mapping[str, str]
    packages: Mapping[str, str] = field(default_factory=dict)
    harness: Path | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is the one that runs the command."""
        return self.harness is None

    @property
    def identity(self) -> str:
        """A hash of what it is and of what is installed for it."""
        return content_id([self.executable, self.version, self.tags, dict(self.packages)])

    @property
    def place(self) -> str:
        """Where something happened, for a message: ` in the environment of ...`; empty for the command's own."""
        return "" if self.is_own else f" in the environment of {self.executable}"

    @property
    def has_pip(self) -> bool:
        """Whether pip can be run in it."""
        return importlib.util.find_spec("pip") is not None if self.is_own else "pip" in self.packages

    def version_of(self, distribution: str) -> str | None:
        """The version of what is installed; None where it is not."""
        if not self.is_own:
            return self.packages.get(facts.normalized(distribution))
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return None

    def path_variable(self, side: Path | None = None) -> dict[str, str]:
        """`PYTHONPATH` with a side's directory and our rooms in front of the user's own; empty where there is neither."""
        front = [str(path) for path in (side, self.harness) if path is not None]
        return {"PYTHONPATH": os.pathsep.join([*front, *filter(None, [os.environ.get("PYTHONPATH")])])} if front else {}

    def contents(self, targets: Sequence[str]) -> dict[str, list[str]]:
        """Hashes of the files of installed packages, by dotted name. Raises UsageError where one is not installed."""
        found = facts.contents(targets) if self.is_own else _ask(self, "--python", targets)["contents"]
        for target in targets:
            if found[target] is None:
                raise UsageError(f"target {target}: no such package is installed{self.place}")
        return {target: found[target] or [] for target in targets}

    def serving(self, suite: str) -> Interpreter:
        """The interpreter with all of ours on its path that this suite (as it was named) needs."""
        is_file = suite.partition("::")[0].endswith(".py") or "/" in suite
        return self if self.is_own or is_file else replace(self, harness=_rooms({**WORKER_ROOMS, **BUNDLED_ROOMS}))

    def to_json(self) -> dict[str, Any]:
        """As a plan keeps it; empty for the command's own."""
        return {} if self.is_own else asdict(self) | {"harness": str(self.harness)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Interpreter:
        """What `to_json` wrote. It may have changed or gone: see `find_again`."""
        return cls(**{**stored, "harness": Path(stored["harness"])}) if stored else OWN


OWN = Interpreter(sys.executable, **facts.about())
"""The command's own."""


def find_interpreter(given: str, argument: str = "--python") -> Interpreter:
    """The interpreter at a path, or that of the virtual environment there.

    Args:
        given: an interpreter, or the directory of an environment; a plain name is looked up as a shell does.
        argument: what the user would call it, for messages.

    Raises:
        UsageError: it is not there, cannot be run, is no Python, or one that is too old.
    """
    executable = _executable(given, argument)
    said = _run([str(executable), "-c", FIRST_QUESTION], {}, argument, given)
    answer = FIRST_ANSWER.fullmatch((said.stdout.strip().splitlines() or [""])[-1])
    if said.returncode or answer is None:
        raise UsageError(f"{argument}: {executable} is no Python interpreter{_last_word(said)}")
    version, prefix = answer.groups()
    if tuple(map(int, version.split("."))) < LEAST_PYTHON:
        wanted = ".".join(map(str, LEAST_PYTHON))
        raise UsageError(f"{argument}: {executable} is Python {version}, wanted {wanted} or newer")
    if Path(prefix).resolve() == Path(sys.prefix).resolve():
        return OWN
    found = replace(OWN, executable=str(executable), harness=_rooms(WORKER_ROOMS))
    told = _ask(found, argument)
    return replace(found, **told["about"], packages=told["packages"])


def find_again(stored: Interpreter, suite: str, argument: str = "--resume") -> Interpreter:
    """The interpreter of a stored plan, serving its suite.

    Raises:
        UsageError: it is gone, or no longer what it was.
    """
    if stored.is_own:
        return OWN
    found = find_interpreter(stored.executable, argument)
    if found.identity != stored.identity:
        changes = [f"{name} {was or 'none'} is {now or 'none'} now" for name, was, now in _differences(stored, found)]
        raise UsageError(
            f"{argument}: the environment of {stored.executable} is no longer what was measured "
            f"({', '.join(changes[:3])}); start a new session"
        )
    return found.serving(suite)


def _differences(stored: Interpreter, found: Interpreter) -> list[tuple[str, str | None, str | None]]:
    before, now = ({"Python": one.version, "its build": one.tags, **one.packages} for one in (stored, found))
    names = sorted({*before, *now})
    return [(name, before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)]


def _executable(given: str, argument: str) -> Path:
    """The file to start. It is not resolved: the link's own place is how a virtual environment's Python finds its packages."""
    path = Path(os.path.expanduser(given)).absolute()  # noqa: PTH111  # Path's own raises where there is no such user
    if path.is_dir():
        inside = [path / name for name in IN_ENVIRONMENT]
        found = next((one for one in inside if one.is_file()), None)
        if found is None:
            raise UsageError(f"{argument}: {given} has no {IN_ENVIRONMENT[0]}; wanted an interpreter or a virtual environment")
        path = found
    elif not path.exists():
        named = None if os.sep in given else shutil.which(given)
        if named is None:
            raise UsageError(f"{argument}: {given} is not there; wanted an interpreter or a virtual environment's directory")
        path = Path(named).absolute()
    if not os.access(path, os.X_OK):
        raise UsageError(f"{argument}: {path} may not be executed; wanted an interpreter or a virtual environment's directory")
    return path


def _ask(python: Interpreter, argument: str, targets: Sequence[str] = ()) -> dict[str, Any]:
    """What the interpreter says of itself, as `facts` prints it."""
    command = [python.executable, "-P", "-m", "frostline.harness.facts", *targets]
    said = _run(command, python.path_variable(), argument, python.executable)
    try:
        answer: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
        parts = {name: dict(answer[name]) for name in ("about", "packages", "contents")}
    except (ValueError, IndexError, KeyError, TypeError):
        parts = {"about": {}}
    if parts["about"].keys() != facts.about().keys():
        raise UsageError(f"{argument}: {python.executable} does not tell what it is{_last_word(said)}")
    return parts


def _run(command: Sequence[str], variables: Mapping[str, str], argument: str, given: str) -> subprocess.CompletedProcess[str]:
    try:
        with tempfile.TemporaryDirectory(prefix="frostline-") as nowhere:  # what lies where we stand must not be imported
            return subprocess.run(
                command,
                cwd=nowhere,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
    except OSError as error:
        raise UsageError(f"{argument}: {given} is no Python interpreter ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{argument}: {given} gave no answer within {TIMEOUT_S:g} s; wanted a Python interpreter") from None


def _last_word(said: subprocess.CompletedProcess[str]) -> str:
    lines = said.stderr.strip().splitlines()
    return f" ({lines[-1][:200]})" if lines else ""


def _rooms(wanted: Mapping[str, Sequence[str]]) -> Path:
    """A directory with copies of our rooms, or of some of their files, as packages."""
    rooms = {name: _room(name) for name in wanted}
    content = {
        name: {file: file_state(rooms[name] / file) for file in files} or content_hash(rooms[name])
        for name, files in wanted.items()
    }

    def write(_: Path, packages: Path) -> list[str]:
        for name, files in wanted.items():
            place = packages / "frostline" / name
            if not files:
                shutil.copytree(rooms[name], place, ignore=shutil.ignore_patterns("__pycache__"))
            for file in files:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy2(rooms[name] / file, place / file)
        return [f"frostline.{name}" for name in wanted]

    return cached(["rooms", content], "frostline", write).path


def _room(name: str) -> Path:
    spec = importlib.util.find_spec(f"frostline.{name}")
    if spec is None or not spec.origin:
        raise UsageError(f"frostline.{name}: not installed here, and a suite by that name needs it")
    return Path(spec.origin).parent
