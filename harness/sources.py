"""What a user names as a side of a comparison, as a `Source`: a revision, a release, a directory, the working tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement

from frostline.harness.checkout import find_project, git_source, resolve, worktree_source
from frostline.harness.folders import check_directory, path_source
from frostline.harness.interpreters import OWN, Interpreter
from frostline.harness.releases import install_beside, parse_requirement, release_source, with_requirements
from frostline.harness.side import Source
from frostline.results.record import UsageError

RELEASE, DIRECTORY = "pypi:", "path:"  # no name of a revision has a colon (git-check-ref-format)


@dataclass(frozen=True)
class Asked:
    """A side as typed.

    text: a revision, `pypi:NAME==VERSION` or `path:DIR`; None for the working tree.
    argument: what the user would call it, for messages.
    extras: requirements that this side is to have besides.
    """

    text: str | None
    argument: str
    extras: Sequence[str] = ()

    @property
    def of_git(self) -> bool:
        """Whether it is of the repository."""
        return self.text is None or not self.text.startswith((RELEASE, DIRECTORY))


def check(asked: Asked, repo: Path | str) -> None:
    """Find the mistakes that can be found before anything is built or downloaded.

    Raises:
        UsageError: no such revision, repository or directory, or what is no requirement.
    """
    if asked.of_git:
        root = find_project(repo).root
        if asked.text is not None:
            resolve(asked.text, root, asked.argument)
    elif directory := _directory(asked):
        check_directory(directory, asked.argument)
    else:
        _release(asked)
    _extras(asked)


def make(asked: Asked, repo: Path | str, targets: Sequence[str], python: Interpreter = OWN) -> Source:
    """The source, built or downloaded where the cache has it not, with its extra requirements.

    Args:
        asked: as typed.
        repo: a directory in the checkout that knows the revision.
        targets: dotted names of the packages in question; empty for what the source provides.
        python: builds it, and will run it.

    Raises:
        UsageError: what was named is not there.
        NothingMeasured: it cannot be built or downloaded, or lacks a target package.
    """
    if asked.text is None:
        source = worktree_source(repo, targets, python=python)
    elif directory := _directory(asked):
        source = path_source(directory, targets, asked.argument, python)
    elif asked.of_git:
        source = git_source(asked.text, repo, targets, asked.argument, python)
    else:
        source = release_source(_release(asked), targets, asked.argument, python)
    return with_requirements(source, _extras(asked), "--with", python)


def restore(source: Source, python: Interpreter = OWN) -> Source:
    """The source with its export in place: as it is, or made again for the interpreter where the cache was cleared.

    Raises:
        UsageError: it is no longer what was measured.
    """
    if source.path is None or source.path.is_dir():
        return source
    detail = source.detail
    targets, label = detail["asked_targets"], source.label
    if source.kind == "pypi":
        pinned = parse_requirement(f"{detail['distribution']}=={detail['version']}", label)
        again = release_source(pinned, targets, label, python)
    elif source.kind == "path":
        again = path_source(Path(detail["directory"]), targets, label, python)
    else:
        repo = Path(detail["repository"], detail["subdirectory"])
        if source.kind == "git":
            again = git_source(detail["commit"], repo, targets, python=python)
        else:
            again = worktree_source(repo, targets, python=python)
    # What pip chose then, and not what it would choose now.
    again = install_beside(again, detail.get("installed_with", ()), python=python)
    if again.identity != source.identity:
        raise UsageError(f"{label}: it is no longer what was measured, and its export has left the cache; start a new session")
    return replace(source, path=again.path)


def _directory(asked: Asked) -> Path | None:
    """The directory of `path:DIR`; None of another kind of source."""
    if asked.text is None or not asked.text.startswith(DIRECTORY):
        return None
    if asked.text == DIRECTORY:
        raise UsageError(f"{asked.argument}: path: names no directory; wanted path:DIR")
    return Path(asked.text.removeprefix(DIRECTORY))


def _release(asked: Asked) -> Requirement:
    return parse_requirement((asked.text or "").removeprefix(RELEASE), asked.argument, "pypi:NAME==VERSION")


def _extras(asked: Asked) -> list[Requirement]:
    return [parse_requirement(text, "--with") for text in asked.extras]
