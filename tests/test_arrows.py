"""The contract of `make lint` breaks when an arrow between the rooms does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("kernels", "harness", "suites", "results", "dashboards")
LINT = "from importlinter.cli import lint_imports_command as lint; lint()"


@pytest.mark.parametrize(
    ("importer", "imported", "contract"),
    [
        ("kernels", "results", "kernels import nothing else of ours"),
        ("suites", "dashboards", "suites -> kernels, suites -> harness"),
        ("harness", "kernels", "harness -> results, and its front door alone -> dashboards"),
        ("harness", "dashboards", "harness -> results, and its front door alone -> dashboards"),
        ("results", "harness", "results import nothing else of ours"),
        ("dashboards", "suites", "dashboards -> results"),
    ],
)
def test_an_arrow_that_points_the_wrong_way(tmp_path: Path, importer: str, imported: str, contract: str) -> None:
    _copy_rooms(tmp_path)
    (tmp_path / "frostline" / importer / "planted.py").write_text(f"def late():\n    import frostline.{imported}\n")
    said = _lint(tmp_path)
    assert f"{contract} BROKEN" in said
    assert f"frostline.{importer}.planted -> frostline.{imported}" in said


def test_a_worker_that_reaches_the_store(tmp_path: Path) -> None:
    _copy_rooms(tmp_path)
    (tmp_path / "frostline/harness/provenance.py").write_text("import frostline.results.store\n")
    assert "the worker knows the words of results and nothing else of them BROKEN" in _lint(tmp_path)


def test_two_files_that_import_each_other(tmp_path: Path) -> None:
    _copy_rooms(tmp_path)
    (tmp_path / "frostline/results/one.py").write_text("import frostline.results.two\n")
    (tmp_path / "frostline/results/two.py").write_text("import frostline.results.one\n")
    assert "no two files import each other in a circle BROKEN" in _lint(tmp_path)


def _copy_rooms(into: Path) -> None:
    for room in ROOMS:
        shutil.copytree(ROOT / room, into / "frostline" / room, ignore=lambda _, names: {n for n in names if n.endswith(".db")})


def _lint(tree: Path) -> str:
    """What import-linter says, unwrapped and on one line, of the rooms below `tree`; its status must be a failure."""
    command = [sys.executable, "-P", "-c", LINT, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return " ".join(done.stdout.split())
