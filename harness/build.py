"""From a source tree to a directory of packages: build a wheel once, unpack what is in question, keep it in a cache.

A wheel, and not the tree itself on the path, since only the project's own build backend knows what it ships: `src` layouts,
mapped packages, compiled extensions, generated version files. The cache is keyed by what goes in (the tree and the build's
inputs), so an entry never changes; it is written beside its place and renamed into it, so that processes need no lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from frostline.results.record import NothingMeasured, UsageError, content_id

OWN_ROOMS = ("frostline.harness", "frostline.results", "frostline.suites", "frostline.dashboards")
"""Never taken from a source: both sides are measured by the harness that runs, and answer the same questions."""

LEGACY_REQUIREMENTS = ("setuptools>=40.8.0",)
"""What a project without a `[build-system]` table is built with (PEP 518 leaves it to the installer; this is pip's choice)."""

MODULE_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
LINES_OF_A_FAILED_BUILD = 12


@dataclass(frozen=True)
class Export:
    """An unpacked wheel. `path` holds `targets` (dotted names) and nothing else that could be imported."""

    path: Path
    targets: tuple[str, ...]


def cache_directory() -> Path:
    """`FROSTLINE_CACHE`, or the platform's directory for caches."""
    if chosen := os.environ.get("FROSTLINE_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/frostline"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "frostline/cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frostline"


def export(
    tree_identity: Sequence[str], pyproject: str, label: str, targets: Sequence[str], fill: Callable[[Path], Path]
) -> Export:
    """The target packages of a source tree, from the cache or built now.

    Args:
        tree_identity: what names the tree's content (commit, hash of a difference, subdirectory, ...).
        pyproject: the text of the tree's pyproject.toml, empty where it has none: it says what the build needs.
        label: the source, for messages.
        targets: dotted names of the packages to keep; empty for all that the wheel provides, less our own rooms.
        fill: writes the tree into an empty directory and returns the directory of the project in it. Called only to build.

    Raises:
        NothingMeasured: the build failed, or the wheel has not the target packages.
    """
    requirements = _build_requirements(pyproject, label)
    isolated = not all(map(_satisfied, requirements))
    key = content_id(
        {
            "tree": list(tree_identity),
            "targets": list(targets),
            "python": f"{sys.implementation.cache_tag} {sysconfig.get_platform()}",
            "build": "isolated"
            if isolated
            else [f"{each.name} {importlib.metadata.version(each.name)}" for each in requirements],
        }
    )
    exports = cache_directory() / "exports"
    place = exports / key
    if found := _read(place):
        return found
    exports.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=exports, ignore_cleanup_errors=True) as scratch:
        tree, new = Path(scratch, "tree"), Path(scratch, "new")
        tree.mkdir()
        wheel = _build_wheel(fill(tree), Path(scratch, "wheel"), isolated, label)
        kept = _unpack(wheel, new / "packages", targets, label)
        (new / "export.json").write_text(json.dumps({"targets": kept, "content": content_hash(new / "packages")}))
        _put(new, place)
    if found := _read(place):
        return found
    raise NothingMeasured(f"{label}: the export at {place} was removed while it was being made")


def provided(directory: Path, prefix: str = "") -> Iterator[str]:
    """Dotted names of the packages and modules that a directory on the path offers, inside namespace packages too."""
    for entry in sorted(directory.iterdir()):
        name, _, suffix = entry.name.partition(".")
        if entry.is_file() and f".{suffix}" in MODULE_SUFFIXES:
            yield prefix + name
        elif entry.is_dir() and entry.name.isidentifier() and entry.name != "__pycache__":
            is_package = any((entry / f"__init__{suffix}").is_file() for suffix in MODULE_SUFFIXES)
            if is_package:
                yield prefix + name
            else:
                yield from provided(entry, f"{prefix}{name}.")


def content_hash(directory: Path) -> str:
    """A hash of every file's path and bytes below a directory, compiled bytecode aside."""
    digest = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(directory).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _read(place: Path) -> Export | None:
    """The cache's entry, unless it is missing or is no longer what was written (then it must not pass for the revision)."""
    try:
        manifest: dict[str, Any] = json.loads((place / "export.json").read_text())
    except (OSError, ValueError):
        return None
    packages = place / "packages"
    if not packages.is_dir() or content_hash(packages) != manifest["content"]:
        return None
    return Export(packages, tuple(manifest["targets"]))


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


def _build_requirements(pyproject: str, label: str) -> list[Requirement]:
    """What the build needs in this environment. Raises NothingMeasured where pyproject.toml cannot be read."""
    try:
        table = tomllib.loads(pyproject).get("build-system", {})
        every = [Requirement(text) for text in table.get("requires", LEGACY_REQUIREMENTS)]
    except (tomllib.TOMLDecodeError, InvalidRequirement, AttributeError, TypeError) as error:
        raise NothingMeasured(f"{label}: its pyproject.toml cannot be read: {error}") from None
    return [each for each in every if each.marker is None or each.marker.evaluate()]


def _satisfied(requirement: Requirement) -> bool:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.url is None and requirement.specifier.contains(version, prereleases=True)


def _build_wheel(project: Path, into: Path, isolated: bool, label: str) -> Path:
    """Build with the project's own backend, in this environment where it has what the build needs: it is quicker, and an
    extension is compiled against the torch that it will be measured with.
    """
    if not any((project / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise NothingMeasured(f"{label}: cannot be built, it has neither pyproject.toml nor setup.py")
    if importlib.util.find_spec("pip") is None:
        raise UsageError(f"{label}: building it needs pip in this environment: {sys.executable} -m ensurepip")
    options = ["--no-deps", "--use-pep517", "--no-input", "--disable-pip-version-check", "--wheel-dir", str(into)]
    if not isolated:
        options.append("--no-build-isolation")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    result = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(project)],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = list(into.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        said = result.stdout.partition("[end of output]")[0]  # after that come pip's own explanations
        last = [line.rstrip() for line in said.splitlines() if line.strip()][-LINES_OF_A_FAILED_BUILD:]
        raise NothingMeasured("\n".join([f"{label}: the build failed; its last lines:", *(f"  {line}" for line in last)]))
    return wheels[0]


def _unpack(wheel: Path, into: Path, targets: Sequence[str], label: str) -> list[str]:
    """Write the target packages of a wheel, and its metadata where they are all that it has. Returns the targets."""
    with zipfile.ZipFile(wheel) as archive:
        files = {member: path for member in archive.namelist() if (path := _installed_path(member)) is not None}
        code = {member: path for member, path in files.items() if not path.parts[0].endswith(".dist-info")}
        for target in targets:
            if not any(_belongs(path, [target]) for path in code.values()):
                names = ", ".join(sorted({path.parts[0] for path in code.values()})) or "nothing"
                raise NothingMeasured(f"{label}: its wheel has no package {target}; it holds {names}")
        widened = [_whole_package(target, code.values()) for target in targets]
        kept = {member: path for member, path in code.items() if _belongs(path, widened)}
        if not kept:
            raise NothingMeasured(f"{label}: its wheel holds no package to measure")
        # The metadata of a distribution that is here in part would hide that of the installed one.
        for member, path in (files if len(kept) == len(code) else kept).items():
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_bytes(archive.read(member))
    return list(dict.fromkeys(widened)) or list(provided(into))


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


def _belongs(path: PurePosixPath, targets: Iterable[str]) -> bool:
    """Whether a file is part of a target package; with no targets, whether it is part of anything but our own rooms."""
    dotted = ".".join((*path.parts[:-1], path.name.partition(".")[0]))

    def inside(package: str) -> bool:
        return dotted == package or dotted.startswith(f"{package}.")

    named = list(targets)
    return any(map(inside, named)) if named else not any(map(inside, OWN_ROOMS))
