"""The five rooms are one namespace: in a wheel, beside Hugging Face's `kernels`, under pytest, and in the list of packages.

And what pyproject.toml asks for is pinned: a test that skips where its package is missing would else never run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROOMS = ("kernels", "harness", "suites", "results", "dashboards")


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of_the_rooms() -> set[str]:
    """Every file of the rooms that git does not ignore, as a path from the root."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *ROOMS, cwd=ROOT).splitlines()
    return {path for path in listed if (ROOT / path).is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of what is here (a build in place could pick up what an older one left behind)."""
    copy = tmp_path_factory.mktemp("copy")
    for path in {"pyproject.toml", "README.md", "LICENSE"} | files_of_the_rooms():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy / path)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", "dist")
    run(sys.executable, "-m", "pip", "wheel", *options, ".", cwd=copy)
    (built,) = (copy / "dist").iterdir()
    return built


def test_the_wheel_holds_the_rooms_and_nothing_else(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert set(names) == {f"frostline/{path}" for path in files_of_the_rooms()}


def test_the_wheel_carries_licence_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert "License-Expression: Apache-2.0" in archive.read(f"{info}/METADATA").decode()
        assert "frostline = frostline.harness.__main__:main" in archive.read(f"{info}/entry_points.txt").decode()


def test_it_lives_beside_the_other_package_named_kernels(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", "installed", str(wheel), cwd=tmp_path)
    code = (
        "import sys; sys.path.insert(0, 'installed'); import kernels, frostline.kernels, frostline.harness, frostline.results"
    )
    code += "; print(kernels.__file__, kernels.get_kernel.__module__, frostline.kernels.__file__, frostline.harness.__file__)"
    theirs, module, ours, harness = run(sys.executable, "-P", "-c", code, cwd=tmp_path).split()
    assert not Path(theirs).is_relative_to(ROOT / "kernels") and module.split(".")[0] == "kernels"
    assert Path(ours).resolve() == tmp_path / "installed/frostline/kernels/__init__.py"
    assert Path(harness).resolve() == tmp_path / "installed/frostline/harness/__init__.py"


def test_pytest_sees_both_too(tmp_path: Path) -> None:
    (tmp_path / "test_imports.py").write_text(
        "import kernels, frostline.kernels, frostline.suites\n"
        "def test_both():\n    assert kernels.get_kernel and frostline.kernels.__name__ == 'frostline.kernels'\n"
    )
    out = run(sys.executable, "-P", "-m", "pytest", "--import-mode=importlib", "-q", "test_imports.py", cwd=tmp_path)
    assert "1 passed" in out


def test_the_list_of_packages_has_every_directory_with_modules() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {Path(path).parent for path in files_of_the_rooms() if path.endswith(".py")}
    assert sorted(listed) == sorted(f"frostline.{'.'.join(folder.parts)}" for folder in found)


def pins(*names: str) -> dict[str, str]:
    """Version by normalized name."""
    lines = [line for name in names for line in (ROOT / name).read_text().splitlines() if not line.startswith("-r ")]
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in found}


def test_the_pins_are_what_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    for files, lines in {
        ("requirements.txt",): project["dependencies"],
        ("requirements.txt", "requirements-dev.txt"): extras,
    }.items():
        pinned = pins(*files)
        for asked in map(Requirement, lines):
            if asked.name != project["name"]:  # an extra within an extra
                assert asked.specifier.contains(pinned[canonicalize_name(asked.name)]), asked
