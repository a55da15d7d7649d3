"""What an interpreter says of itself and of what is installed for it, as JSON types. Standard library only.

Another interpreter than the command's is asked by `interpreters.py`, as `python -P -m frostline.harness.facts [TARGET...]`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from frostline.harness.contents import content_hash, file_state


def about() -> dict[str, Any]:
    """Implementation and version, `tags` (what compiled code must fit), and the variables of requirements' markers.

    The tags are the implementation with its version, the suffix of its extension modules, which tells builds of one version
    apart (free-threaded, debug), and the platform.
    """
    return {
        "implementation": platform.python_implementation(),
        "version": platform.python_version(),
        "tags": f"{sys.implementation.cache_tag} {EXTENSION_SUFFIXES[0]} {sysconfig.get_platform()}",
        "markers": _markers(),
    }


def packages() -> dict[str, str]:
    """The version of every distribution on the path, by its normalized name; the first on the path counts."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and distribution.version:  # of one that was removed in part, neither need be there
            found.setdefault(normalized(name), distribution.version)
    return dict(sorted(found.items()))


def contents(targets: Sequence[str]) -> dict[str, list[str] | None]:
    """Hashes of the files of packages or modules (dotted names); None for one that is not installed."""
    return {target: _content(target) for target in targets}


def normalized(name: str) -> str:
    """A distribution's name as names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _content(target: str) -> list[str] | None:
    try:
        spec = importlib.util.find_spec(target)
    except ModuleNotFoundError:  # of the package around it
        return None
    if spec is None:
        return None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    return [content_hash(folder) for folder in folders if folder.is_dir()] or [file_state(Path(spec.origin or ""))]


def _markers() -> dict[str, str]:
    """The variables of PEP 508."""
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": platform.python_version(),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


if __name__ == "__main__":
    print(json.dumps({"about": about(), "packages": packages(), "contents": contents(sys.argv[1:])}))
