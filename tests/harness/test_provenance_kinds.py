"""Kinds of code that a side could load from elsewhere unnoticed: compiled modules, our own namespace, namespace
packages, single modules.

Each kind is measured twice: left alone, where both sides must run their own code, and led astray, where both must be errors.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sysconfig
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from frostline.harness import session as sessions
from frostline.harness.checkout import git_source
from frostline.harness.describe import Request, plan_compare
from frostline.harness.folders import path_source
from frostline.harness.progress import Progress
from frostline.harness.side import Source
from frostline.results.record import Role, Status
from frostline.results.store import Store

SUITE = """
import sys
import frostline.harness
from frostline.harness import Step, suite

@suite(axes={"n": [1]}, targets=%r)
def toy(implementation, device, *, n):
    %s
    return Step(run=lambda: None, detail={"value": value, "harness": frostline.harness.__file__})
"""
BUILD_SYSTEM = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
ERRORS, FINE = [Status.ERROR] * 2, [Status.OK] * 2
FORKED = pytest.mark.parametrize("isolation", ["spawn", "fork"])


class Found:
    """What the two sides of a comparison came to: statuses, reasons, what their code said, and where the harness was."""

    def __init__(self, records: list[Any]) -> None:
        self.statuses = [item.status for item in records]
        self.reasons = [item.reason for item in records]
        details = [item.environment.get("detail", {}) for item in records]
        self.values = [detail.get("value") for detail in details]
        self.harnesses = {detail.get("harness") for detail in details}


Compare = Callable[..., Found]


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Compare two sources for a round. The suite's function begins with `body`, which sets `value`."""
    monkeypatch.setattr("frostline.harness.plan.ROUND_NS", 1e6)

    def run(sources: list[Source], targets: list[str], body: str, isolation: str = "spawn") -> Found:
        bench = tmp_path / "bench.py"
        bench.write_text(SUITE % (targets, body))
        plan = plan_compare(Request(str(bench), rounds=1, isolation=isolation), lambda _: sources, looks=1)
        with Store.open(tmp_path / "proof.db") as store:
            session = sessions.open_session(plan, store, "test", {})
            sessions.measure(plan, store, session, Progress(Console(file=io.StringIO())))
            records = [item for item in store.processes(session.id, role=Role.MEASURE) if item.attempt == 0]
        assert {item.isolation for item in records} == {isolation}
        return Found(sorted(records, key=lambda item: item.position))

    return run


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path of every process, as site-packages is."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
    return folder


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def in_front(folder: Path) -> str:
    return f"sys.path.insert(0, {str(folder)!r}); "


class TestCompiled:
    """A C module inside a package, or beside it at the top."""

    SETUP = "from setuptools import Extension, setup\nsetup(name='quick', version='1', packages=['quick'], ext_modules=[%s])\n"
    MODULE = """
    #include <Python.h>
    static PyObject *value(PyObject *self, PyObject *unused) { return PyLong_FromLong(%d); }
    static PyMethodDef methods[] = {{"value", value, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
    static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_quick", "", -1, methods};
    PyMODINIT_FUNC PyInit__quick(void) { return PyModule_Create(&module); }
    """
    EXTENDED = "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"

    @pytest.fixture(autouse=True)
    def _needs_a_compiler(self) -> None:
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        if not shutil.which(compiler):
            pytest.skip(f"no C compiler ({compiler})")
        if not Path(sysconfig.get_path("include"), "Python.h").is_file():
            pytest.skip("no Python.h: the interpreter's headers are not installed")

    def revisions(self, scratch_repo: Any, name: str) -> list[Source]:
        """Three revisions whose C module says 1, 2 and 3; `name` is the module's."""
        setup = self.SETUP % f"Extension({name!r}, ['quick.c'])"
        commits = [{"quick.c": self.MODULE % value} for value in (1, 2, 3)]
        commits[0] |= {"setup.py": setup, "quick/__init__.py": "", "pyproject.toml": BUILD_SYSTEM}
        repo = scratch_repo(*commits)
        return [git_source(f"HEAD~{back}", repo.path, ["quick"]) for back in (2, 1, 0)]

    @FORKED
    def test_inside_a_package(self, compare: Compare, scratch_repo: Any, installed: Path, isolation: str) -> None:
        *sides, third = self.revisions(scratch_repo, "quick._quick")
        assert third.path is not None
        shutil.copytree(third.path, installed, dirs_exist_ok=True)
        found = compare(sides, ["quick"], "from quick._quick import value; value = value()", isolation)
        assert (found.statuses, found.values) == (FINE, [1, 2]), found.reasons
        body = f"import quick; quick.__path__.insert(0, {str(installed / 'quick')!r}); import quick._quick; value = 0"
        found = compare(sides, ["quick"], body, isolation)
        assert found.statuses == ERRORS
        assert all(reason.startswith(f"quick._quick was imported from {installed}") for reason in found.reasons)

    def test_one_that_the_side_did_not_build(self, compare: Compare, scratch_repo: Any, installed: Path) -> None:
        *_, third = self.revisions(scratch_repo, "quick._quick")
        assert third.path is not None
        shutil.copytree(third.path, installed, dirs_exist_ok=True)
        files = {"setup.py": self.SETUP % "", "pyproject.toml": BUILD_SYSTEM, "quick/__init__.py": self.EXTENDED}
        plain = scratch_repo(files, {"quick/more.py": ""}, name="plain")
        sides = [git_source(ref, plain.path, ["quick"]) for ref in ("HEAD~1", "HEAD")]
        found = compare(sides, ["quick"], "from quick._quick import value; value = value()")
        assert found.statuses == ERRORS
        assert all(reason.startswith(f"quick._quick was imported from {installed}") for reason in found.reasons)

    def test_beside_the_package(self, compare: Compare, scratch_repo: Any, installed: Path) -> None:
        *sides, third = self.revisions(scratch_repo, "_quick")
        assert [side.targets for side in sides] == [("quick", "_quick")] * 2 and third.path is not None
        shutil.copytree(third.path, installed, dirs_exist_ok=True)
        found = compare(sides, ["quick"], "import quick, _quick; value = _quick.value()")
        assert (found.statuses, found.values) == (FINE, [1, 2]), found.reasons
        found = compare(sides, ["quick"], f"import quick; {in_front(installed)}import _quick; value = 0")
        assert found.statuses == ERRORS
        assert all(reason.startswith(f"_quick was imported from {installed}") for reason in found.reasons)


class TestOurOwnNamespace:
    """`frostline.kernels` of a side, measured by the `frostline.harness` that runs."""

    TARGETS = ["frostline.kernels"]
    PROJECT = """
    [project]
    name = "frostline"
    version = "9"
    [tool.setuptools]
    packages = ["frostline.kernels", "frostline.kernels.lm_head", "frostline.harness"]
    [tool.setuptools.package-dir]
    "frostline.kernels" = "kernels"
    "frostline.harness" = "harness"
    """

    @pytest.fixture
    def sides(self, scratch_repo: Any) -> list[Source]:
        files = {
            "pyproject.toml": BUILD_SYSTEM + "\n".join(line.strip() for line in self.PROJECT.splitlines()),
            "kernels/__init__.py": "value = 1\n",
            "kernels/lm_head/__init__.py": "",
            "harness/__init__.py": "raise ImportError('the harness of a side')\n",
        }
        repo = scratch_repo(files, {"kernels/__init__.py": "value = 2\n"})
        return [git_source(ref, repo.path, self.TARGETS) for ref in ("HEAD~1", "HEAD")]

    @FORKED
    def test_each_side_has_its_own_kernels_and_all_one_harness(
        self, compare: Compare, sides: list[Source], isolation: str
    ) -> None:
        found = compare(sides, self.TARGETS, "from frostline.kernels import value", isolation)
        assert (found.statuses, found.values) == (FINE, [1, 2]), found.reasons
        harness = importlib.util.find_spec("frostline.harness")
        assert harness is not None and found.harnesses == {harness.origin}

    def test_kernels_that_were_imported_before_the_suite_are_the_sides(
        self, compare: Compare, sides: list[Source], installed: Path
    ) -> None:
        write(installed, {"sitecustomize.py": "import frostline.kernels\n", "frostline/kernels/__init__.py": "value = 3\n"})
        found = compare(sides, self.TARGETS, "from frostline.kernels import value")
        assert (found.statuses, found.values) == (FINE, [1, 2]), found.reasons

    @FORKED
    def test_a_checkout_that_gets_in_front_is_an_error(
        self, compare: Compare, sides: list[Source], tmp_path: Path, isolation: str
    ) -> None:
        checkout = write(tmp_path / "checkout", {"kernels/__init__.py": "value = 3\n"})
        (tmp_path / "links/frostline").mkdir(parents=True)  # as type checkers are given one
        (tmp_path / "links/frostline/kernels").symlink_to(checkout / "kernels")
        found = compare(sides, self.TARGETS, f"{in_front(tmp_path / 'links')}from frostline.kernels import value", isolation)
        assert found.statuses == ERRORS
        assert all(reason.startswith("frostline.kernels was imported from ") for reason in found.reasons)

    def test_a_part_of_the_kernels_that_run_here_is_an_error(self, compare: Compare, sides: list[Source]) -> None:
        spec = importlib.util.find_spec("frostline.kernels")
        assert spec is not None and spec.origin is not None
        here, part = str(Path(spec.origin).parent / "lm_head"), "frostline.kernels.lm_head.policy_options"
        body = f"import frostline.kernels.lm_head as head; head.__path__.append({here!r}); import {part}; value = 0"
        found = compare(sides, self.TARGETS, body)
        assert found.statuses == ERRORS
        assert all(reason.startswith(f"{part} was imported from {here}") for reason in found.reasons)


def folders(tmp_path: Path, targets: list[str], *files: Mapping[str, str]) -> list[Source]:
    """A directory for each mapping, as a source."""
    return [path_source(write(tmp_path / f"side{at}", each), targets, "BASE") for at, each in enumerate(files)]


class TestNamespacePackages:
    @pytest.fixture
    def sides(self, tmp_path: Path) -> list[Source]:
        return folders(tmp_path, ["space.part"], *({"space/part/__init__.py": f"value = {value}\n"} for value in (1, 2)))

    def test_a_part_beside_installed_ones(self, compare: Compare, sides: list[Source], installed: Path) -> None:
        write(installed, {"space/part/__init__.py": "value = 3\n", "space/other.py": "value = 4\n"})
        found = compare(sides, ["space.part"], "from space import other, part; value = [part.value, other.value]")
        assert (found.statuses, found.values) == (FINE, [[1, 4], [2, 4]]), found.reasons

    def test_the_installed_part_in_front_is_an_error(self, compare: Compare, sides: list[Source], installed: Path) -> None:
        write(installed, {"space/part/__init__.py": "value = 3\n"})
        found = compare(sides, ["space.part"], f"{in_front(installed)}from space.part import value")
        assert found.statuses == ERRORS
        assert all(reason.startswith(f"space.part was imported from {installed}") for reason in found.reasons)

    def test_an_installed_part_of_a_namespace_in_question_is_an_error(
        self, compare: Compare, tmp_path: Path, installed: Path
    ) -> None:
        sides = folders(tmp_path, ["space"], *({"space/part.py": f"value = {value}\n"} for value in (1, 2)))
        write(installed, {"space/gone.py": "value = 3\n"})  # as where a revision has removed it
        found = compare(sides, ["space"], "from space.part import value")
        assert (found.statuses, found.values) == (FINE, [1, 2]), found.reasons
        found = compare(sides, ["space"], "from space import gone, part; value = gone.value")
        assert found.statuses == ERRORS
        assert all(reason.startswith(f"space.gone was imported from {installed}") for reason in found.reasons)


class TestSingleModules:
    @pytest.fixture
    def sides(self, tmp_path: Path) -> list[Source]:
        return folders(tmp_path, ["lone"], *({"lone.py": f"value = {value}\n"} for value in (1, 2)))

    @FORKED
    def test_a_module_before_the_installed_one(
        self, compare: Compare, sides: list[Source], installed: Path, isolation: str
    ) -> None:
        write(installed, {"lone/__init__.py": "value = 3\n"})  # a package goes before a module, in one directory
        found = compare(sides, ["lone"], "from lone import value", isolation)
        assert (found.statuses, found.values) == (FINE, [1, 2]), found.reasons

    @pytest.mark.parametrize("file", ["lone.py", "lone/__init__.py"])
    def test_another_in_front_is_an_error(self, compare: Compare, sides: list[Source], tmp_path: Path, file: str) -> None:
        checkout = write(tmp_path / "checkout", {file: "value = 3\n"})
        found = compare(sides, ["lone"], f"{in_front(checkout)}from lone import value")
        assert found.statuses == ERRORS
        assert all(reason.startswith(f"lone was imported from {checkout / file}") for reason in found.reasons)

    def test_the_other_sides_is_an_error(self, compare: Compare, sides: list[Source]) -> None:
        assert sides[0].path is not None
        found = compare(sides, ["lone"], f"{in_front(sides[0].path)}from lone import value")
        assert (found.statuses, found.values) == ([Status.OK, Status.ERROR], [1, 1])
        assert f"which is not of this side ({sides[1].path})" in found.reasons[1]

    def test_a_part_out_of_an_archive_is_an_error(self, compare: Compare, tmp_path: Path) -> None:
        sides = folders(tmp_path, ["whole"], *({"whole/__init__.py": f"value = {value}\n"} for value in (1, 2)))
        archive = tmp_path / "whole.egg"
        with zipfile.ZipFile(archive, "w") as opened:
            opened.writestr("whole/deep.py", "value = 3\n")
        body = f"import whole; whole.__path__.append({str(archive / 'whole')!r}); from whole.deep import value"
        found = compare(sides, ["whole"], body)
        assert found.statuses == ERRORS
        assert all(reason.startswith(f"whole.deep was imported from {archive}") for reason in found.reasons)
