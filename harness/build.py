"""From a source tree to a directory of packages: build a wheel once, unpack what is in question, keep it in the cache.

A wheel, and not the tree itself on the path, since only the project's own build backend knows what it ships: `src` layouts,
mapped packages, compiled extensions, generated version files. The entry's key is what goes in: the tree and the build's inputs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from frostline.harness.exports import Export, cached, unpack_wheel
from frostline.harness.interpreters import Interpreter
from frostline.harness.pip import last_lines, run_pip
from frostline.results.record import NothingMeasured

LEGACY_REQUIREMENTS = ("setuptools>=40.8.0",)
"""What a project without a `[build-system]` table is built with (PEP 518 leaves it to the installer; this is pip's choice)."""


def export(
    tree_identity: Sequence[str],
    pyproject: str,
    label: str,
    targets: Sequence[str],
    fill: Callable[[Path], Path],
    python: Interpreter,
) -> Export:
    """The target packages of a source tree, from the cache or built now.

    Args:
        tree_identity: what names the tree's content (commit, hash of a difference, subdirectory, ...).
        pyproject: the text of the tree's pyproject.toml, empty where it has none: it says what the build needs.
        label: the source, for messages.
        targets: dotted names of the packages to keep; empty for all that the wheel provides, less our own rooms.
        fill: writes the tree into an empty directory and returns the directory of the project in it. Called only to build.
        python: builds it, and will run it.

    Raises:
        NothingMeasured: the build failed, or the wheel has not the target packages.
    """
    requirements = _build_requirements(pyproject, label, python)
    isolated = not all(_satisfied(each, python) for each in requirements)
    key = {
        "tree": list(tree_identity),
        "targets": list(targets),
        "python": python.tags,
        "build": "isolated" if isolated else [f"{each.name} {python.version_of(each.name)}" for each in requirements],
    }

    def write(work: Path, packages: Path) -> list[str]:
        tree = work / "tree"
        tree.mkdir()
        wheel = _build_wheel(fill(tree), work / "wheel", isolated, label, python)
        return unpack_wheel(wheel, packages, targets, label)

    return cached(key, label, write)


def _build_requirements(pyproject: str, label: str, python: Interpreter) -> list[Requirement]:
    """What the build needs in the interpreter's environment. Raises NothingMeasured where pyproject.toml cannot be read."""
    try:
        table = tomllib.loads(pyproject).get("build-system", {})
        every = [Requirement(text) for text in table.get("requires", LEGACY_REQUIREMENTS)]
    except (tomllib.TOMLDecodeError, InvalidRequirement, AttributeError, TypeError) as error:
        raise NothingMeasured(f"{label}: its pyproject.toml cannot be read: {error}") from None
    return [each for each in every if each.marker is None or each.marker.evaluate(dict(python.markers))]


def _satisfied(requirement: Requirement, python: Interpreter) -> bool:
    version = python.version_of(requirement.name)
    return version is not None and requirement.url is None and requirement.specifier.contains(version, prereleases=True)


def _build_wheel(project: Path, into: Path, isolated: bool, label: str, python: Interpreter) -> Path:
    """Build with the project's own backend, in the interpreter's environment where that has what the build needs: it is
    quicker, and an extension is compiled against the torch that it will be measured with.
    """
    if not any((project / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise NothingMeasured(f"{label}: cannot be built, it has neither pyproject.toml nor setup.py")
    options = ["--no-deps", "--use-pep517", "--wheel-dir", str(into)]
    if not isolated:
        options.append("--no-build-isolation")
    done = run_pip(["wheel", *options, str(project)], label, cwd=project, python=python)
    wheels = list(into.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = done.stdout.partition("[end of output]")[0]  # after that come pip's own explanations
        raise NothingMeasured(f"{label}: the build failed; its last lines:\n{last_lines(said)}")
    return wheels[0]
