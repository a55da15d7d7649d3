"""Releases from a package index: as a source, and as what else a side needs.

pip finds and downloads (or builds) them, with the user's own configuration: indexes, mirrors, find-links, constraints. A
release is kept in the cache by its name, version and the interpreter's tags: a version that was typed needs no network twice.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from frostline.harness.exports import Export, belongs, cached, find_export, unpack_wheel
from frostline.harness.interpreters import OWN, Interpreter
from frostline.harness.pip import last_lines, run_pip
from frostline.harness.side import Source
from frostline.results.record import NothingMeasured, UsageError, content_id

OWN_NAME = "frostline"
VERSIONS_NAMED = 6  # of an index that has not the one that was asked for


def parse_requirement(text: str, argument: str, wanted: str = "NAME==VERSION") -> Requirement:
    """What pip would be asked for.

    Raises:
        UsageError: it is no requirement by name and version (PEP 508).
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise UsageError(f"{argument}: {text!r} is no requirement; wanted {wanted}") from None
    if requirement.url or requirement.marker:
        raise UsageError(f"{argument}: {text!r} has a URL or a marker; wanted {wanted}")
    return requirement


def release_source(requirement: Requirement, targets: Sequence[str], argument: str, python: Interpreter = OWN) -> Source:
    """A release, downloaded once without what it depends on.

    Args:
        requirement: `NAME==VERSION`; without a version, or with a range, the newest that pip would take.
        targets: dotted names of the packages in question; empty for all that the distribution provides.
        argument: what the user would call it, for messages.
        python: what it must run in.

    Raises:
        UsageError: the index has no such distribution or version.
        NothingMeasured: it cannot be downloaded or built, or lacks a target package.
    """
    label = f"pypi:{requirement}"
    name, version = str(canonicalize_name(requirement.name)), _pinned(requirement)
    found = find_export(_key(name, version, targets, python)) if version else None
    if found is None:
        version, found = _download(requirement, targets, label, argument, python)
    identity = content_id(["pypi", name, version, found.content])
    detail = {"distribution": name, "version": version, "requirement": str(requirement), "asked_targets": list(targets)}
    return Source(label, "pypi", identity, found.path, found.targets, detail)


def with_requirements(source: Source, requirements: Sequence[Requirement], argument: str, python: Interpreter = OWN) -> Source:
    """The source with more distributions in its directory: what pip would install for the requirements, and no more.

    What the interpreter's environment has already in a version that serves is not installed again. The source's own packages
    stay its own, whatever depends on them.

    Raises:
        UsageError: the index has not what was asked for, or it contradicts itself, or would replace a target or frostline.
        NothingMeasured: pip fails for another reason.
    """
    asked, own = list(requirements), source.detail.get("distribution")
    if any(canonicalize_name(requirement.name) == own for requirement in asked):
        raise UsageError(f"{argument}: {own} is what {source.label} is; name its version there")
    release = Requirement(source.detail["requirement"]) if own else None
    if release is not None and release.extras:
        release.specifier &= f"=={source.detail['version']}"
        asked.append(release)
    if not asked:
        return source
    wanted = [str(requirement) for requirement in requirements]
    label = f"{source.label} with {', '.join(wanted)}" if wanted else source.label
    items = [item for item in _resolved(asked, argument, python) if item.name != own]
    if any(item.name == OWN_NAME for item in items):
        raise UsageError(f"{argument}: {', '.join(wanted)} brings another {OWN_NAME}, which would measure in this one's place")
    requested = [item.name for item in items if item.requested]
    return install_beside(replace(source, label=label), [item.pin for item in items], requested, argument, python)


def install_beside(
    source: Source,
    pins: Sequence[str],
    requested: Collection[str] = (),
    argument: str = "--with",
    python: Interpreter = OWN,
) -> Source:
    """The source with these distributions (`name==version`) in its directory, from the cache or installed there now.

    Of `requested` none may bring a target; others that do are left out. Raises as `with_requirements` does.
    """
    if not pins or source.path is None:
        return source
    packages = source.path

    def write(work: Path, into: Path) -> list[str]:
        extras = work / "extras"
        done = run_pip(["install", "--no-deps", "--no-compile", "--target", str(extras), *pins], source.label, python=python)
        if done.returncode:
            raise NothingMeasured(f"{source.label}: pip failed; its last lines:\n{last_lines(done.stdout)}")
        _leave_out_targets(extras, source.targets, requested, argument)
        shutil.rmtree(extras / "bin", ignore_errors=True)
        shutil.copytree(extras, into, dirs_exist_ok=True)
        shutil.copytree(packages, into, dirs_exist_ok=True)
        return list(source.targets)

    key = ["with", source.identity, list(source.targets), list(pins), python.tags]
    made = cached(key, source.label, write)
    detail = {**source.detail, "installed_with": list(pins)}
    return replace(source, identity=content_id([source.identity, list(pins)]), path=made.path, detail=detail)


@dataclass(frozen=True)
class _Item:
    """A distribution that pip would install; `requested` where it was asked for by name."""

    name: str
    version: str
    requested: bool

    @property
    def pin(self) -> str:
        """The requirement that this and nothing else fulfils."""
        return f"{self.name}=={self.version}"


def _pinned(requirement: Requirement) -> str | None:
    """The one version that a requirement allows, as a wheel's name spells it; None where it allows several."""
    (only, *more) = [*requirement.specifier, None]
    if only is None or more != [None] or only.operator != "==" or only.version.endswith(".*"):
        return None
    return str(Version(only.version))


def _key(name: str, version: str, targets: Sequence[str], python: Interpreter) -> Any:
    return ["pypi", name, version, list(targets), python.tags]


def _download(
    requirement: Requirement, targets: Sequence[str], label: str, argument: str, python: Interpreter
) -> tuple[str, Export]:
    """The version that pip takes, and its packages in the cache."""
    with tempfile.TemporaryDirectory(prefix="frostline-") as scratch:
        done = run_pip(["wheel", "--no-deps", "--wheel-dir", scratch, _without_extras(requirement)], label, python=python)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise _refusal(done.stdout, argument, label)
        name, version, _, _ = parse_wheel_filename(wheels[0].name)

        def write(_: Path, packages: Path) -> list[str]:
            return unpack_wheel(wheels[0], packages, targets, label)

        return str(version), cached(_key(name, str(version), targets, python), label, write)


def _without_extras(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _resolved(requirements: Sequence[Requirement], argument: str, python: Interpreter) -> list[_Item]:
    """What pip would install beside what there is, its dependencies included."""
    with tempfile.TemporaryDirectory(prefix="frostline-") as scratch:
        report = Path(scratch, "report.json")
        asked = [str(requirement) for requirement in requirements]
        done = run_pip(["install", "--dry-run", "--report", str(report), *asked], argument, python=python)
        if done.returncode or not report.is_file():
            raise _refusal(done.stdout, argument, ", ".join(asked))
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted(
        (
            _Item(str(canonicalize_name(item["metadata"]["name"])), item["metadata"]["version"], item.get("requested", False))
            for item in found
        ),
        key=lambda item: item.name,
    )


def _refusal(said: str, argument: str, label: str) -> UsageError | NothingMeasured:
    """Why pip failed: a mistake in what was asked, or something else with pip's last lines."""
    if "ResolutionImpossible" in said:
        caused = said.partition("conflict is caused by:")[2].strip().partition("\n\n")[0]
        why = "; ".join(line.strip() for line in caused.splitlines()) or "pip finds no versions that serve all of them"
        return UsageError(f"{argument}: {label} do not go together: {why}")
    offline = "Retrying (" in said or "Could not fetch URL" in said
    missing = re.search(r"find a version that satisfies the requirement (.+?)(?: \(from \S+\))? \(from versions: (.*)\)", said)
    if offline or missing is None:
        return NothingMeasured(f"{label}: pip could not get it; its last lines:\n{last_lines(said)}")
    requirement, versions = missing[1], [each.strip() for each in missing[2].split(",")]
    if versions == ["none"]:
        return UsageError(f"{argument}: pip finds no distribution for {requirement} (see pip config list for where it looks)")
    newest = sorted(versions, key=_order)[-VERSIONS_NAMED:]
    earlier = f" ({len(versions) - len(newest)} earlier)" if len(versions) > len(newest) else ""
    return UsageError(f"{argument}: no release {requirement} for this interpreter; there are {', '.join(newest)}{earlier}")


def _order(version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion:  # of the time before versions had a form
        return Version("0.dev0")


def _leave_out_targets(extras: Path, targets: Sequence[str], requested: Collection[str], argument: str) -> None:
    """Remove the distributions that bring a target as well: the source's own stands. One that was asked for is a mistake."""
    for found in importlib.metadata.distributions(path=[str(extras)]):
        files = found.files or []
        brought = [target for target in targets if any(belongs(PurePosixPath(file), [target]) for file in files)]
        if brought and canonicalize_name(found.name) in requested:
            raise UsageError(f"{argument}: {found.name} brings {brought[0]}, which is what the source itself is measured for")
        if brought:
            for path in [Path(str(found.locate_file(file))) for file in files]:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # others share the folder
                    path.parent.rmdir()  # an empty folder of metadata would still name the distribution
