"""A directory as a source: a project that is built like a revision, or packages that are taken as they are.

In a git checkout it is what git would keep of it (HEAD and every change that is not ignored), so that files which a build
has left behind stay out, and version files are made from tags as ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from frostline.harness import build
from frostline.harness.checkout import copy_changes, find_project, try_git, worktree_source
from frostline.harness.contents import file_state
from frostline.harness.exports import OWN_ROOMS, cached, keep_packages, provided
from frostline.harness.interpreters import OWN, Interpreter
from frostline.harness.own_files import without_own
from frostline.harness.side import Source
from frostline.results.record import UsageError, content_id

PROJECT_FILES = ("pyproject.toml", "setup.py")


def path_source(directory: Path, targets: Sequence[str], argument: str, python: Interpreter = OWN) -> Source:
    """The project or the packages in a directory, as they are now.

    Args:
        directory: holds a pyproject.toml or setup.py; or else importable packages.
        targets: dotted names of the packages in question; empty for all that it provides.
        argument: what the user would call it, for messages.
        python: builds a project, and will run it.

    Raises:
        UsageError: no such directory, or nothing in it that could be imported.
        NothingMeasured: the project cannot be built, or a target package is not there.
    """
    place = check_directory(directory, argument)
    label = f"path:{directory}"
    detail = {"directory": str(place), "asked_targets": list(targets)}
    if not _is_project(place):
        return _packages(place, Source(label, "path", "", None, tuple(targets), detail))
    if _kept_by_git(place):
        made = worktree_source(place, targets, label, python)
        return replace(made, kind="path", detail={**made.detail, **detail})
    files = {path.relative_to(place).as_posix(): file_state(path) for path in without_own(_project_files(place))}
    identity = content_id(["path", sorted(files.items())])

    def fill(tree: Path) -> Path:
        copy_changes(files, place, tree)
        return tree

    pyproject = place / "pyproject.toml"
    text = pyproject.read_text("utf-8") if pyproject.is_file() else ""
    export = build.export([identity], text, label, targets, fill, python)
    return Source(label, "path", identity, export.path, export.targets, detail)


def check_directory(directory: Path, argument: str) -> Path:
    """The directory, made absolute. Raises UsageError where it is none, or holds nothing that can be imported."""
    place = directory.expanduser().resolve()
    if not place.is_dir():
        raise UsageError(f"{argument}: path:{directory} is no directory")
    if not _is_project(place) and next(provided(place), None) is None:
        wanted = f"neither {' nor '.join(PROJECT_FILES)} nor a package"
        raise UsageError(f"{argument}: path:{directory} holds {wanted}; name a directory with a project or packages in it")
    return place


def _is_project(place: Path) -> bool:
    return any((place / name).is_file() for name in PROJECT_FILES)


def _kept_by_git(place: Path) -> bool:
    """Whether it is part of a checkout that has a commit, and not ignored there."""
    try:
        root = find_project(place).root
    except UsageError:
        return False
    return try_git(root, "check-ignore", "--quiet", str(place)).returncode != 0


def _packages(place: Path, asked: Source) -> Source:
    """Packages as they lie there, copied to the cache so that they stay what they are while they are measured."""
    wanted = asked.targets or [name for name in provided(place) if name not in OWN_ROOMS]
    tops = {name.partition(".")[0] for name in wanted}
    entries = [entry for entry in sorted(place.iterdir()) if entry.name.partition(".")[0] in tops]
    lying = without_own(path for entry in entries for path in _importable_files(entry))
    states = {path: file_state(path.resolve()) for path in lying}
    names = {path: path.relative_to(place).as_posix() for path in states}
    identity = content_id(["path", sorted((names[path], state) for path, state in states.items()), sorted(wanted)])
    files = {PurePosixPath(names[path]): partial(_read_unchanged, path, state) for path, state in states.items()}

    def write(_: Path, packages: Path) -> list[str]:
        return keep_packages(files, packages, wanted, f"{asked.label}: it")

    export = cached(["path", identity], asked.label, write)
    return replace(asked, identity=identity, path=export.path, targets=export.targets)


def _read_unchanged(path: Path, state: str) -> bytes:
    """A file's bytes. Raises UsageError where they are not those of the state."""
    content = path.read_bytes()
    if file_state(path.resolve()) != state:
        raise UsageError(f"{path} changed while it was being exported; try again when the files are at rest")
    return content


def _project_files(place: Path) -> Iterator[Path]:
    """A project's files and links, without what no build reads: hidden folders, environments, what setuptools built."""
    for folder, folders, files in os.walk(place):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        built = here == place and any(next((place / "build").glob(left), None) for left in ("lib*", "bdist.*"))
        folders[:] = [name for name in folders if _is_source_folder(here / name) and not (built and name == "build")]
        yield from (here / name for name in (*files, *links) if not name.endswith(".pyc"))


def _importable_files(entry: Path) -> Iterator[Path]:
    """The files at or below an entry, links followed as an import does; one that leads back to where it lies is not."""
    if not entry.is_dir():
        yield entry
        return
    for folder, folders, files in os.walk(entry, followlinks=True):
        here = Path(folder)
        folders[:] = [
            name
            for name in folders
            if _is_source_folder(here / name) and not here.resolve().is_relative_to((here / name).resolve())
        ]
        yield from (here / name for name in files if not name.endswith(".pyc"))


def _is_source_folder(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name != "__pycache__" and not (folder / "pyvenv.cfg").is_file()
