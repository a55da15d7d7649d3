"""Which code ran: the file and content hash of every module of the target packages that a process imported.

A against A by accident must be impossible, so a module that came from outside its side, or none at all where a side
was named, makes the process an `error` whatever it measured.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from frostline.results.record import Module


def imported_modules(targets: Sequence[str]) -> list[Module]:
    """The modules of `targets` (dotted package names) that this process has imported, with the SHA-256 of their files."""
    modules = []
    inside = tuple(f"{target}." for target in targets)
    for name in sorted(name for name in sys.modules if name in targets or name.startswith(inside)):
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_file():
            modules.append(Module(name, file, hashlib.sha256(Path(file).read_bytes()).hexdigest()))
    return modules


def violation(modules: Sequence[Module], path: Path | None, targets: Sequence[str]) -> str:
    """Why these modules do not prove that the side's code ran, or an empty string where they do.

    `path` is the side's own directory; None means the installed packages, of which nothing need be proved.
    """
    if path is None:
        return ""
    if not modules:
        return f"the step imported nothing of {', '.join(targets) or 'the side'}: the side's code was not measured"
    root = path.resolve()
    outside = [module for module in modules if root not in Path(module.file).resolve().parents]
    if outside:
        return f"{outside[0].name} was imported from {outside[0].file}, which is not of this side ({root})"
    return ""
