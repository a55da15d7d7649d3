"""What files and folders hold, as hashes: two of one hash are the same code. Standard library only."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

DELETED = "deleted"


def content_hash(directory: Path) -> str:
    """A hash of every file's path and bytes below a directory, compiled bytecode aside."""
    digest = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(directory).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def file_state(path: Path) -> str:
    """What git would keep of a file: its kind, whether it can be executed, and a hash of its content; `DELETED` of none."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return f"link {path.readlink()}"
        if not stat.S_ISREG(mode):
            return DELETED  # a directory in the place of a tracked file: its own files are listed one by one
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        return f"{'executable' if mode & stat.S_IXUSR else 'file'} {digest}"
    except (FileNotFoundError, NotADirectoryError):
        return DELETED
