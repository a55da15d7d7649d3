"""How code gets on the path: from a git revision, or from the working tree, to a `Source`.

A revision is exported through a throw-away clone that shares the repository's objects: unlike a plain archive it keeps the tags
(version files are made from them), and unlike a checkout in place it touches neither files nor index, stash or configuration of
the user's. In the clone no hook and no filter of the user's configuration runs. `build.py` makes packages of it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frostline.harness import build
from frostline.harness.contents import DELETED, file_state
from frostline.harness.interpreters import OWN, Interpreter
from frostline.harness.own_files import without_own
from frostline.harness.side import Source
from frostline.results.record import NothingMeasured, UsageError, content_id

MAIN_BRANCHES = ("refs/remotes/origin/HEAD", "main", "master", "origin/main", "origin/master")


@dataclass(frozen=True)
class Commit:
    """A commit: its full hash, the name that it was asked for by, and the first line of its message."""

    sha: str
    label: str
    subject: str


@dataclass(frozen=True)
class Project:
    """A Python project in a git checkout: `root` is the checkout's top, `subdirectory` leads from there to the project."""

    root: Path
    subdirectory: str


def find_project(repo: Path | str) -> Project:
    """The project at `repo`: the nearest directory upwards with a pyproject.toml or setup.py, within the checkout.

    Raises:
        UsageError: no directory, no checkout of git, or one without a commit.
    """
    given = Path(repo).expanduser().resolve()
    if not given.is_dir():
        raise UsageError(f"--repo: {repo} is no directory")
    top = try_git(given, "rev-parse", "--show-toplevel")
    if top.returncode:
        reason = top.stderr.strip().splitlines()[0].removeprefix("fatal: ") if top.stderr.strip() else "git gave no reason"
        raise UsageError(f"--repo: {repo} is no checkout of a git repository ({reason})")
    root = Path(top.stdout.rstrip("\n")).resolve()
    if try_git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").returncode:
        raise UsageError(f"--repo: {repo} has no commit yet")
    for directory in (given, *given.parents):
        if directory == root or any((directory / name).is_file() for name in ("pyproject.toml", "setup.py")):
            return Project(root, directory.relative_to(root).as_posix())
    return Project(root, ".")


def resolve(ref: str, repo: Path | str, argument: str = "revision") -> Commit:
    """The commit that a branch, tag, hash or expression such as `HEAD~3` stands for.

    Args:
        ref: as the user typed it.
        repo: a directory in a checkout.
        argument: what the user would call it, for messages.

    Raises:
        UsageError: a name that looks like an option, or that leads to no commit; close matches are suggested.
    """
    root = find_project(repo).root
    if not ref.strip() or ref.startswith("-") or "\0" in ref:
        raise UsageError(f"{argument}: {ref!r} cannot be a revision; give a branch, tag or commit")
    found = try_git(root, "rev-parse", "--verify", f"{ref}^{{commit}}")
    if found.returncode == 0:
        sha = found.stdout.strip()
        return Commit(sha, ref, _git(root, "log", "-1", "--format=%s", sha).strip())
    if "ambiguous" in found.stderr and "unknown revision" not in found.stderr:
        raise UsageError(f"{argument}: {ref!r} is ambiguous in {root}; give more digits of the hash")
    names = _git(root, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes").splitlines()
    close = difflib.get_close_matches(ref, names, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else _shallow(root, "; {}")
    raise UsageError(f"{argument}: no branch, tag or commit {ref!r} in {root}{hint}")


def _shallow(root: Path, form: str) -> str:
    """That history is missing, in the form given; nothing where the clone has all of it."""
    if _git(root, "rev-parse", "--is-shallow-repository").strip() != "true":
        return ""
    return form.format("it is a shallow clone: more history comes with git fetch --unshallow")


def merge_base(repo: Path | str) -> Commit:
    """What HEAD is to be judged against: where it left the main branch (the latest such point), else its parent.

    Raises:
        UsageError: HEAD has no parent.
    """
    root = find_project(repo).root
    head = resolve("HEAD", root).sha
    bases = []
    for branch in MAIN_BRANCHES:
        found = try_git(root, "merge-base", "HEAD", branch)
        base = found.stdout.strip()
        if found.returncode == 0 and base != head:
            bases.append((int(_git(root, "rev-list", "--count", f"{base}..HEAD")), base))
    if bases:
        sha = min(bases)[1]
        return Commit(sha, sha[:12], _git(root, "log", "-1", "--format=%s", sha).strip())
    if try_git(root, "rev-parse", "--verify", "--quiet", "HEAD~1").returncode:
        missing = _shallow(root, " ({})")
        raise UsageError(f"base: HEAD has no parent here and left no main branch; name a base{missing}")
    return resolve("HEAD~1", root)


def installed_source(targets: Sequence[str] = (), python: Interpreter = OWN) -> Source:
    """What is installed in the interpreter's environment. Its identity is a hash of the target packages' files, and of the
    environment where that is not the command's own.
    """
    identity = ["installed", python.contents(targets), *([] if python.is_own else [python.identity])]
    return Source("installed", "installed", content_id(identity), None, tuple(targets))


def commits_in_order(path: Path) -> list[str]:
    """The commits that HEAD of the repository around `path` comes from, the oldest first; none where there is no repository."""
    found = try_git(path, "rev-list", "--topo-order", "--reverse", "HEAD")
    return found.stdout.split() if not found.returncode else []


def git_source(
    ref: str,
    repo: Path | str = ".",
    targets: Sequence[str] = (),
    argument: str = "revision",
    python: Interpreter = OWN,
) -> Source:
    """A revision, built once and kept in the cache.

    Args:
        ref: branch, tag, hash, or an expression such as `HEAD~3`.
        repo: a directory in the checkout that knows it.
        targets: dotted names of the packages in question; empty for what the revision provides.
        argument: what the user would call `ref`, for messages.
        python: builds it, and will run it.

    Raises:
        UsageError: no such revision or repository.
        NothingMeasured: the revision cannot be built, or lacks a target package.
    """
    project = find_project(repo)
    commit = resolve(ref, project.root, argument)
    return _export(project, commit, {}, Source(ref, "git", "", None, tuple(targets)), python)


def worktree_source(
    repo: Path | str = ".", targets: Sequence[str] = (), label: str = "working tree", python: Interpreter = OWN
) -> Source:
    """The working tree: HEAD with every change to tracked files, and the files that are new and not ignored.

    The identity of a clean tree is that of HEAD. Raises what `git_source` raises.
    """
    project = find_project(repo)
    commit = resolve("HEAD", project.root)
    return _export(project, commit, _changes(project.root), Source(label, "worktree", "", None, tuple(targets)), python)


def state_of(folder: Path) -> dict[str, str]:
    """The commit that a folder's checkout is at and a hash of what differs from it; empty outside a repository."""
    try:
        root = find_project(folder).root
        commit = resolve("HEAD", root)
    except UsageError:
        return {}
    changes = _changes(root)
    return {"commit": commit.sha} | ({"dirty": content_id(sorted(changes.items()))} if changes else {})


def _export(project: Project, commit: Commit, changes: Mapping[str, str], asked: Source, python: Interpreter) -> Source:
    """Complete a source with its export, identity and detail."""
    name = f"{asked.label} ({commit.sha[:12]}{', with changes' if changes else ''})"
    difference = content_id(sorted(changes.items())) if changes else ""
    identity = [commit.sha, difference, project.subdirectory]
    left_out = _nested_repositories(project.root, commit.sha)

    def fill(tree: Path) -> Path:
        _clone(project.root, commit.sha, tree)
        copy_changes(changes, project.root, tree)
        return tree / project.subdirectory

    try:
        made = build.export(identity, _pyproject(project, commit, changes), name, asked.targets, fill, python)
    except NothingMeasured as error:
        if not left_out:
            raise
        raise NothingMeasured(f"{error}\n  (its submodules are not exported: {', '.join(left_out)})") from None
    detail: dict[str, Any] = {
        "commit": commit.sha,
        "subject": commit.subject,
        "repository": str(project.root),
        "subdirectory": project.subdirectory,
        "asked_targets": list(asked.targets),
    }
    if changes:
        detail |= {"dirty": difference, "changed": sorted(changes)}
    if left_out:
        detail["submodules_left_out"] = left_out
    return replace(asked, identity=content_id(["git", *identity]), path=made.path, targets=made.targets, detail=detail)


def _pyproject(project: Project, commit: Commit, changes: Mapping[str, str]) -> str:
    """The text of the project's pyproject.toml as it will be built; empty where there is none."""
    path = Path(project.subdirectory, "pyproject.toml").as_posix()
    if path in changes:
        return "" if changes[path] == DELETED else (project.root / path).read_text(encoding="utf-8")
    found = try_git(project.root, "show", f"{commit.sha}:{path}")
    return found.stdout if found.returncode == 0 else ""


def _changes(root: Path) -> dict[str, str]:
    """Each path on which the working tree differs from HEAD, with its state there; none ignored, no submodules, not our own."""
    tracked = _git(root, "diff", "--name-only", "-z", "--no-renames", "--no-relative", "--ignore-submodules=all", "HEAD")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    new = without_own(root / path for path in untracked.split("\0") if path and not path.endswith("/"))
    paths = {*filter(None, tracked.split("\0")), *(path.relative_to(root).as_posix() for path in new)}
    return {path: file_state(root / path) for path in sorted(paths)}


def copy_changes(changes: Mapping[str, str], root: Path, tree: Path) -> None:
    """Give a tree the files of `root` that are named, in the states given. Raises UsageError where one has changed since."""
    for path in changes:
        target = tree / path
        if target.is_symlink() or target.is_file():
            target.unlink()
    for path, state in changes.items():
        if state == DELETED:
            continue
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():  # a directory whose files were deleted made room for a file
            shutil.rmtree(target)
        with contextlib.suppress(FileNotFoundError):  # the comparison of states notices
            shutil.copy2(root / path, target, follow_symlinks=False)
        if file_state(target) != state:
            raise UsageError(f"{root / path} changed while it was being exported; try again when the files are at rest")


def _clone(root: Path, sha: str, tree: Path) -> None:
    """Check a revision out into an empty directory, away from every configuration but the directory's own trust."""
    trust = tree.with_name("gitconfig")
    trust.write_text("[safe]\n\tdirectory = *\n")  # the user's git has opened this repository before us: see find_project
    quiet = {"GIT_CONFIG_GLOBAL": str(trust), "GIT_CONFIG_SYSTEM": os.devnull, "GIT_ATTR_NOSYSTEM": "1", "GIT_TEMPLATE_DIR": ""}
    common = Path(root, _git(root, "rev-parse", "--git-common-dir").strip()).resolve()
    off = ["-c", f"core.hooksPath={os.devnull}", "-c", f"core.attributesFile={os.devnull}"]
    _git(tree, *off, "clone", "--quiet", "--shared", "--no-checkout", str(common), ".", extra=quiet)
    _git(tree, *off, "-c", "advice.detachedHead=false", "checkout", "--quiet", "--force", "--detach", sha, extra=quiet)


def _nested_repositories(root: Path, sha: str) -> list[str]:
    """Paths of a revision's submodules (entries of mode 160000): they are not exported."""
    entries = _git(root, "ls-tree", "-r", "-z", "--full-tree", sha).split("\0")
    return [entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")]


def _git(directory: Path, *arguments: str, extra: Mapping[str, str] | None = None) -> str:
    """The output of a git command that is expected to work."""
    result = try_git(directory, *arguments, extra=extra)
    if result.returncode:
        last = result.stderr.strip().splitlines()
        raise NothingMeasured(f"git {' '.join(arguments)} failed in {directory}: {last[-1] if last else 'no message'}")
    return result.stdout


def try_git(directory: Path, *arguments: str, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run git in a directory, whatever repository a surrounding hook points to, and without refreshing the index."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # What git says is read here, so it has to be said in English.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", **(extra or {})}
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    try:
        return subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except FileNotFoundError:
        raise UsageError("git: not found on PATH; comparing revisions needs it") from None
