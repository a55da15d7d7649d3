"""Directories of packages in a cache: written once under a key that stands for their content, and never changed.

An entry is written beside its place and renamed into it, so that processes need no lock. It holds the packages in question
and nothing else that could be imported, and never our own harness.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from frostline.harness.contents import content_hash
from frostline.harness.outputs import why_not_writable_folder
from frostline.results.record import NothingMeasured, UsageError, content_id

OWN_ROOMS = ("frostline.harness", "frostline.results", "frostline.suites", "frostline.dashboards")
"""Never taken from a source: both sides are measured by the harness that runs, and answer the same questions."""

MODULE_SUFFIX = re.compile(r"\.(py|so|pyd|[\w-]+\.(so|pyd))")
"""Of a file that some interpreter imports: compiled code may be for another one than that which runs here."""

Files: TypeAlias = Mapping[PurePosixPath, Callable[[], bytes]]
"""Files by their place below a directory of packages; each is read by a call."""


@dataclass(frozen=True)
class Export:
    """An entry of the cache. `path` holds `targets` (dotted names); `content` is a hash of all files in it."""

    path: Path
    targets: tuple[str, ...]
    content: str


def cache_directory() -> Path:
    """`FROSTLINE_CACHE`, or the platform's directory for caches."""
    if chosen := os.environ.get("FROSTLINE_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/frostline"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "frostline/cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frostline"


def find_export(key: Any) -> Export | None:
    """The cache's entry for a key of JSON types, if there is one and it is intact."""
    return _read(_exports() / content_id(key))


def cached(key: Any, label: str, write: Callable[[Path, Path], Sequence[str]]) -> Export:
    """The cache's entry for a key, made now where it is missing.

    Args:
        key: JSON types that name the content.
        label: the source, for messages.
        write: gets an empty directory for its work and one to be for the packages; returns the packages' dotted names.

    Raises:
        UsageError: the cache cannot be written.
        NothingMeasured: the entry vanished, or whatever `write` raises.
    """
    if found := find_export(key):
        return found
    exports = _exports()
    place = exports / content_id(key)
    _make_writable(exports)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=exports, ignore_cleanup_errors=True) as scratch:
        work, new = Path(scratch, "work"), Path(scratch, "new")
        work.mkdir()
        packages = new / "packages"
        packages.mkdir(parents=True)
        targets = list(write(work, packages))
        (new / "export.json").write_text(json.dumps({"targets": targets, "content": content_hash(packages)}))
        _put(new, place)
    if found := _read(place):
        return found
    raise NothingMeasured(f"{label}: the export at {place} was removed while it was being made")


def _make_writable(exports: Path) -> None:
    try:
        exports.mkdir(parents=True, exist_ok=True)
        problem = why_not_writable_folder(exports)
    except OSError as error:
        problem = f"{exports}: {error.strerror or error}"
    if problem:
        raise UsageError(f"FROSTLINE_CACHE: nothing can be kept there: {problem}; name a folder that can be written")


def provided(directory: Path, prefix: str = "") -> Iterator[str]:
    """Dotted names of the packages and modules that a directory on the path offers, inside namespace packages too."""
    for entry in sorted(directory.iterdir()):
        name, _, suffix = entry.name.partition(".")
        if entry.is_file() and MODULE_SUFFIX.fullmatch(f".{suffix}"):
            yield prefix + name
        elif entry.is_dir() and entry.name.isidentifier() and entry.name != "__pycache__":
            if any(MODULE_SUFFIX.fullmatch(file.name.removeprefix("__init__")) for file in entry.glob("__init__.*")):
                yield prefix + name
            else:
                yield from provided(entry, f"{prefix}{name}.")


def _is_compiled(name: str) -> bool:
    suffix = "." + name.partition(".")[2]
    return suffix != ".py" and MODULE_SUFFIX.fullmatch(suffix) is not None


def _read(place: Path) -> Export | None:
    """The cache's entry, unless it is missing or is no longer what was written (then it must not pass for the revision)."""
    try:
        manifest: dict[str, Any] = json.loads((place / "export.json").read_text())
    except (OSError, ValueError):
        return None
    packages = place / "packages"
    if not packages.is_dir() or content_hash(packages) != manifest["content"]:
        return None
    return Export(packages, tuple(manifest["targets"]), manifest["content"])


def _put(new: Path, place: Path) -> None:
    """Rename a finished entry into its place. Where another process was first, its entry is as good; a damaged one goes."""
    if place.exists() and _read(place) is None:
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            place.rename(new.with_name("damaged"))
    try:
        new.rename(place)
    except OSError:
        if not place.exists():
            raise


def unpack_wheel(wheel: Path, into: Path, targets: Sequence[str], label: str) -> list[str]:
    """`keep_packages` of a wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        files = {
            path: (lambda member=member: archive.read(member))
            for member in archive.namelist()
            if (path := _installed_path(member)) is not None
        }
        return keep_packages(files, into, targets, f"{label}: its wheel")


def keep_packages(files: Files, into: Path, targets: Sequence[str], holder: str) -> list[str]:
    """Write the target packages, and the distribution's metadata where they are all that it has.

    Compiled modules at the top (`_thing.so` beside `thing`) go with them: left out, an installed one would run in their place.

    Args:
        files: everything there is.
        into: the directory of packages.
        targets: dotted names of the packages to keep; empty for all, less our own rooms.
        holder: what holds the files, for messages.

    Returns:
        The dotted names of what was kept.

    Raises:
        NothingMeasured: there is no such package, or no package at all.
    """
    code = {path: read for path, read in files.items() if not path.parts[0].endswith(".dist-info")}
    for target in targets:
        if not any(belongs(path, [target]) for path in code):
            names = ", ".join(sorted({path.parts[0] for path in code})) or "nothing"
            raise NothingMeasured(f"{holder} has no package {target}; it holds {names}")
    widened = [_whole_package(target, code) for target in targets]
    widened += [_dotted(path) for path in code if targets and len(path.parts) == 1 and _is_compiled(path.name)]
    kept = {path: read for path, read in code.items() if belongs(path, widened)}
    if not kept:
        raise NothingMeasured(f"{holder} holds no package to measure")
    # The metadata of a distribution that is here in part would hide that of the installed one.
    for path, read in (files if len(kept) == len(code) else kept).items():
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_bytes(read())
    return list(dict.fromkeys(widened)) or list(provided(into))


def _exports() -> Path:
    return cache_directory() / "exports"


def _whole_package(target: str, paths: Iterable[PurePosixPath]) -> str:
    """The outermost package around a target: one package cannot come from two places. A namespace package can."""
    packages = {".".join(path.parts[:-1]) for path in paths if path.name == "__init__.py"}
    parts = target.split(".")
    outwards = (".".join(parts[:length]) for length in range(1, len(parts)))
    return next((name for name in outwards if name in packages), target)


def _installed_path(member: str) -> PurePosixPath | None:
    """Where a file of a wheel goes below site-packages; None for what goes elsewhere (scripts, headers) and for directories."""
    path = PurePosixPath(member)
    if member.endswith("/") or path.is_absolute() or ".." in path.parts:
        return None
    if not path.parts[0].endswith(".data"):
        return path
    in_packages = len(path.parts) > 2 and path.parts[1] in ("purelib", "platlib")
    return PurePosixPath(*path.parts[2:]) if in_packages else None


def belongs(path: PurePosixPath, targets: Iterable[str]) -> bool:
    """Whether a file is part of a target package; with no targets, whether it is part of anything but our own rooms."""
    dotted = _dotted(path)

    def inside(package: str) -> bool:
        return dotted == package or dotted.startswith(f"{package}.")

    named = list(targets)
    return any(map(inside, named)) if named else not any(map(inside, OWN_ROOMS))


def _dotted(path: PurePosixPath) -> str:
    """The name of the module that a file would be."""
    return ".".join((*path.parts[:-1], path.name.partition(".")[0]))
