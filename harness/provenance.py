"""Which code ran: the file and content hash of every module of the target packages that a process imported.

A against A by accident must be impossible, so a module that came from outside its side, or none at all where a side
was named, makes the process an `error` whatever it measured.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from frostline.results.record import Module

_known: dict[str, tuple[object, Module | None]] = {}  # by module's name: the spec that it was imported by, and what it is


def imported_modules(targets: Sequence[str]) -> list[Module]:
    """The modules of `targets` (dotted package names) that this process has imported, with the SHA-256 of their files.

    A file is read when its module is first seen here, and again only when it was imported anew: what has changed on disk since
    is not what runs, and a package of a thousand files would take longer to read before every block than the block lasts.
    """
    inside = tuple(f"{target}." for target in targets)
    names = sorted(name for name in sys.modules if name in targets or name.startswith(inside))
    return [module for name in names if (module := _identified(name, sys.modules[name])) is not None]


def _identified(name: str, module: ModuleType) -> Module | None:
    spec = getattr(module, "__spec__", None)  # another object after every import and reload
    if spec is None or name not in _known or _known[name][0] is not spec:
        _known[name] = spec, _read(name, module)
    return _known[name][1]


def _read(name: str, module: ModuleType) -> Module | None:
    """What was loaded; None for what has no file, as a namespace package or a module made at run time."""
    file = getattr(module, "__file__", None)
    if not file:
        return None
    if Path(file).is_file():
        return Module(name, file, hashlib.sha256(Path(file).read_bytes()).hexdigest())
    if not Path(file).is_absolute():  # a name that a module made at run time gives itself
        return None
    load = getattr(getattr(module, "__loader__", None), "get_data", None)
    try:  # inside an archive; or gone since
        content = load(file) if load else b""
    except OSError:
        content = b""
    return Module(name, file, hashlib.sha256(content).hexdigest())


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
