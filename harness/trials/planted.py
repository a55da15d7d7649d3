"""The throw-away repository: a package `planted`, the benchmark files of every tool, and a tag for each planted change.

`base` is the package as it is; `same` differs in a comment alone, so that every tool takes it for other code; `slow3`, `slow5`
and `slow10` do so many percent more units of the same work. Each revision's file has a length of its own, so that no bytecode
of another one is taken for its.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

FILES = Path(__file__).parent / "repository"
STEPS = ("gemm", "norm", "python")
CHANGES = (0, 3, 5, 10)

_PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "planted"
version = "1"
dependencies = ["numpy"]

[tool.setuptools]
py-modules = ["planted"]
"""
_PLACES = {  # the file of ours, and where it stands in the repository
    "bench_frostline.py": "bench_frostline.py",
    "bench_pyperf.py": "bench_pyperf.py",
    "test_planted.py": "test_planted.py",
    "bench_asv.py": "benchmarks/bench_asv.py",
}
IDENTITY = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{f"GIT_{who}_NAME": "Trials" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "trials@example.invalid" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")},
}


def tag_of(change: int) -> str:
    """The tag of the revision with so many percent of extra work."""
    return f"slow{change}" if change else "same"


@dataclass(frozen=True)
class PlantedRepository:
    """The repository at a path."""

    path: Path

    @classmethod
    def make(cls, path: Path) -> PlantedRepository:
        """Make it, or take the one that is there: equal files give equal commits."""
        repository = cls(path)
        if not (path / ".git").is_dir():
            path.mkdir(parents=True, exist_ok=True)
            repository.git("init", "--quiet", "--initial-branch=main")
        repository._commit()
        return repository

    def git(self, *arguments: str) -> str:
        """The output of a git command in it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        command = ["git", *arguments]
        return subprocess.run(command, cwd=self.path, env=kept | IDENTITY, check=True, capture_output=True, text=True).stdout

    def check_out(self, tag: str) -> None:
        """What a user types between two measurements."""
        self.git("checkout", "--quiet", tag)

    def source(self, tag: str) -> str:
        """The package's text in a revision."""
        return self.git("show", f"{tag}:planted.py")

    def _commit(self) -> None:
        """Every revision, from the first on; on a branch without history, so that nothing of an older one stays."""
        if "made" in self.git("tag", "--list").split() and self._is_current():
            return
        self.git("checkout", "--quiet", "--orphan", "making")
        for ours, place in _PLACES.items():
            (self.path / place).parent.mkdir(exist_ok=True)
            (self.path / place).write_text((FILES / ours).read_text())
        (self.path / "benchmarks/__init__.py").touch()
        (self.path / "pyproject.toml").write_text(_PYPROJECT)
        (self.path / "asv.conf.json").write_text(asv_configuration())
        (self.path / ".gitignore").write_text("__pycache__/\n.asv/\n.scratch/\n")
        for tag, text in _revisions((FILES / "planted.py").read_text()).items():
            (self.path / "planted.py").write_text(text)
            self.git("add", "--all")
            self.git("commit", "--quiet", "--message", tag)
            self.git("tag", "--force", tag)
        self.git("branch", "--force", "--move", "making", "main")
        self.git("tag", "--force", "made")

    def _is_current(self) -> bool:
        names = {**_PLACES, "planted.py": "planted.py"}
        kept = all(self.git("show", f"base:{place}") == (FILES / ours).read_text() for ours, place in names.items())
        return kept and self.git("show", "base:asv.conf.json") == asv_configuration()


def _revisions(base: str) -> dict[str, str]:
    texts = {"base": base}
    for place, change in enumerate(CHANGES, 1):
        text = base.replace("EXTRA = 0\n", f"EXTRA = {change}\n")
        texts[tag_of(change)] = text + "#" * place + f" {change} % more\n"
    return texts


def asv_configuration() -> str:
    """The configuration of asv: a virtual environment with the numpy that everything else here runs with."""
    build = "python -m pip wheel --no-deps --no-build-isolation -w {build_cache_dir} {build_dir}"
    content = {
        "version": 1,
        "project": "planted",
        "repo": ".",
        "branches": ["main"],
        "environment_type": "virtualenv",
        "pythons": [f"{sys.version_info.major}.{sys.version_info.minor}"],
        "matrix": {"req": {"numpy": [version("numpy")]}},
        "build_command": [build],
        "benchmark_dir": "benchmarks",
        "env_dir": ".asv/env",
        "results_dir": ".asv/results",
        "html_dir": ".asv/html",
    }
    return json.dumps(content, indent=2) + "\n"
