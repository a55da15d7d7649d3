"""Files that a command is asked to write: refused before anything is measured, not after minutes of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from frostline.results.record import UsageError

SCREEN = Path("-")  # --markdown -: stdout has the Markdown and nothing else


def check_outputs(asked: Mapping[str, Path | None]) -> None:
    """Make sure that every file can be written. `asked` has the files by the option that names them.

    Raises:
        UsageError: naming the option, for a folder, a file whose folder is not there, and what must not be written.
    """
    for option, path in asked.items():
        if path is not None and (option, path) != ("--markdown", SCREEN) and (problem := why_not_writable(path)):
            raise UsageError(f"{option}: cannot write {path}: {problem}; wanted a file in a folder that can be written")


def why_not_writable(path: Path) -> str:
    """Why a file cannot be written or made, empty where it can. Nothing is left behind."""
    try:
        if path.is_dir():
            return "it is a folder"
        if path.exists():
            return "" if os.access(path, os.W_OK) else "it may not be written"
        if not path.absolute().parent.is_dir():
            return f"there is no folder {path.parent}"
    except OSError as error:
        return error.strerror or str(error)
    return why_not_writable_folder(path.absolute().parent)


def why_not_writable_folder(folder: Path) -> str:
    """Why no file can be made in a folder, empty where one can: tried, since permissions say nothing of /proc."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
