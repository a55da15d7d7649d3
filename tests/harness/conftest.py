"""Scratch repositories, and a cache of their own for the exports made of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

IDENTITY = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "A. Uthor",
    "GIT_AUTHOR_EMAIL": "author@example.invalid",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "A. Uthor",
    "GIT_COMMITTER_EMAIL": "author@example.invalid",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}


class ScratchRepo:
    """A small git repository. A file whose content is None is deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | IDENTITY
        done = subprocess.run(["git", *arguments], cwd=self.path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"git {arguments}: {done.stderr}"
        return done.stdout.strip()

    def write(self, files: Mapping[str, str | None]) -> None:
        for name, content in files.items():
            file = self.path / name
            if content is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)

    def commit(self, files: Mapping[str, str | None], message: str = "Change") -> str:
        """Commit the files on top of what is there, and return the commit's hash."""
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def scratch_repo(tmp_path: Path) -> Callable[..., ScratchRepo]:
    """A factory: `scratch_repo(files, files, ...)` makes a repository with a commit for each mapping of files."""
    made: list[ScratchRepo] = []

    def make(*commits: Mapping[str, str | None], name: str = "") -> ScratchRepo:
        repo = ScratchRepo(tmp_path / (name or f"repository{len(made)}"))
        made.append(repo)
        for number, files in enumerate(commits):
            repo.commit(files, f"Commit {number}")
        return repo

    return make


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children that Ctrl-C reaches: a process that was started in the background ignores SIGINT, and so would they."""
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, ours)


@pytest.fixture
def frostline() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the real command line; `cwd` and `env` (in addition) may be given."""

    def run(
        *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "frostline.harness.cli", *map(str, arguments)]
        environment = {**os.environ, **(env or {})}
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def _session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frostline-cache")


@pytest.fixture(autouse=True)
def frostline_cache(_session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache of exports, shared by a test session and by nothing else."""
    monkeypatch.setenv("FROSTLINE_CACHE", str(_session_cache))
    yield _session_cache
