"""`--python`: an environment of the user's own measures and builds. Here it has neither torch nor frostline.

The package that it has is called as one that frostline's own environment has as well, so that a mix-up shows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frostline.harness import build, interpreters
from frostline.harness.exports import provided
from frostline.harness.interpreters import OWN, Interpreter, find_again, find_interpreter
from frostline.results.record import Status, UsageError
from frostline.results.store import Store

Command = Callable[..., subprocess.CompletedProcess[str]]

SUITE = """
import sys

import packaging

from frostline import harness
from frostline.harness import Step, suite

@suite(axes={"n": [1]}, targets=["packaging"], implementations=["a", "b"])
def use(implementation, device, *, n):
    seen = {
        "packaging": packaging.__file__, "value": packaging.value, "prefix": sys.prefix, "harness": harness.__file__,
    }
    return Step(run=lambda: sum(range(100)), detail=seen)
"""
QUICK = ("--rounds", "1", "--device", "cpu")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without anything, not even pip."""
    place = tmp_path_factory.mktemp("environments") / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return place


@pytest.fixture
def environment(bare: Path, tmp_path: Path) -> Path:
    """An environment that has a package `packaging` of its own, through a .pth file."""
    place = tmp_path / "environment"
    shutil.copytree(bare, place, symlinks=True)
    (tmp_path / "theirs" / "packaging").mkdir(parents=True)
    (tmp_path / "theirs" / "packaging" / "__init__.py").write_text("value = 'theirs'\n")
    _install(place, tmp_path / "theirs")
    return place


def _install(place: Path, folder: Path) -> None:
    packages = next((place / "lib").glob("python*/site-packages"))
    (packages / f"{folder.name}.pth").write_text(f"{folder}\n")


def _suite(tmp_path: Path, text: str = SUITE) -> Path:
    file = tmp_path / "bench.py"
    file.write_text(text)
    return file


def _details(database: Path) -> list[dict[str, Any]]:
    with Store.open(database, create=False) as store:
        records = store.processes(store.session("last").id)
    assert {record.status for record in records} == {Status.OK}
    return [{**record.environment["detail"], **record.environment, "isolation": record.isolation} for record in records]


class TestMeasuring:
    @pytest.mark.parametrize("isolation", ["spawn", "fork"])
    def test_it_measures_what_that_environment_has(
        self, isolation: str, environment: Path, tmp_path: Path, frostline: Command, frostline_cache: Path
    ) -> None:
        suite, database = _suite(tmp_path), tmp_path / "kept.db"
        done = frostline("run", suite, "--python", environment, "--isolation", isolation, *QUICK, "--db", database)
        assert done.returncode == 0, done.stderr
        assert f"({environment}/bin/python)" in done.stdout
        assert "measured by CPython" in done.stdout
        for seen in _details(database):
            assert seen["value"] == "theirs"
            assert seen["packaging"] == str(tmp_path / "theirs" / "packaging" / "__init__.py")
            assert seen["prefix"] == str(environment)
            assert seen["executable"] == str(environment / "bin" / "python")
            assert seen["isolation"] == isolation
            assert seen["harness"].startswith(str(frostline_cache))
            assert "torch" not in seen

    def test_only_what_a_worker_needs_is_on_its_path(self, environment: Path) -> None:
        python = find_interpreter(str(environment))
        assert python.harness is not None
        found = {path.relative_to(python.harness).as_posix() for path in (python.harness / "frostline").rglob("*.py")}
        assert {"frostline/results/record.py", "frostline/harness/worker.py"} <= found
        assert not {name for name in found if not name.startswith(("frostline/harness/", "frostline/results/"))}
        assert {name for name in found if name.startswith("frostline/results/")} == {
            "frostline/results/__init__.py",
            "frostline/results/record.py",
        }
        # Alone on the path, without any site-packages: the standard library is enough for both kinds of process.
        command = [python.executable, "-S", "-P", "-c", "import frostline.harness.worker, frostline.harness.zygote"]
        subprocess.run(command, env={"PYTHONPATH": str(python.harness)}, check=True)

    def test_a_bundled_suite_brings_its_room_and_the_kernels(self, environment: Path) -> None:
        served = find_interpreter(str(environment)).serving("grpo").harness
        assert served is not None
        assert {path.name for path in (served / "frostline").iterdir()} == {"harness", "results", "suites", "kernels"}

    def test_bundled_suites_run_there_as_far_as_it_has_what_they_import(
        self, bare: Path, tmp_path: Path, frostline: Command
    ) -> None:
        options = ("--python", bare, *QUICK, "--db", tmp_path / "kept.db")
        done = frostline("run", "noise", "--set", "step=python", *options)
        assert done.returncode == 0, done.stderr
        done = frostline("run", "grpo", *options)
        assert done.returncode == 2
        assert f"in the environment of {bare}/bin/python: ModuleNotFoundError: No module named 'torch'" in done.stderr

    def test_two_environments_are_told_apart(self, bare: Path, environment: Path) -> None:
        one, other = find_interpreter(str(bare)), find_interpreter(str(environment))
        assert OWN.identity != one.identity != other.identity
        assert one.tags == other.tags == OWN.tags  # compiled code fits all three

    def test_the_commands_own_is_nothing_special(self) -> None:
        assert find_interpreter(sys.executable) is OWN
        assert find_interpreter(sys.prefix) is OWN


class TestResume:
    def test_it_stays_in_its_environment(self, environment: Path, tmp_path: Path, frostline: Command) -> None:
        suite, database = _suite(tmp_path), tmp_path / "kept.db"
        options = ("--python", environment, *QUICK, "--budget", "0.001s", "--db", database)
        stopped = frostline("run", suite, *options)
        assert stopped.returncode == 4, stopped.stderr
        done = frostline("run", "--resume", "last", "--db", database)
        assert done.returncode == 0, done.stderr
        assert {seen["value"] for seen in _details(database)} == {"theirs"}

    def test_a_changed_environment_is_not_the_same_session(self, environment: Path) -> None:
        stored = find_interpreter(str(environment))
        assert find_again(Interpreter.from_json(json.loads(json.dumps(stored.to_json()))), "bench.py") == stored
        packages = next((environment / "lib").glob("python*/site-packages"))
        (packages / "gizmo-2.0.dist-info").mkdir()
        (packages / "gizmo-2.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: Gizmo\nVersion: 2.0\n")
        with pytest.raises(UsageError, match=r"no longer what was measured \(gizmo none is 2.0 now\); start a new session"):
            find_again(stored, "bench.py")

    def test_the_commands_own_is_kept_as_nothing(self) -> None:
        assert OWN.to_json() == {}
        assert Interpreter.from_json({}) is OWN
        assert find_again(OWN, "bench.py") is OWN


EXTENSION = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "setup.py": (
        "from setuptools import Extension, setup\n"
        "setup(name='fastone', version='1', packages=['fastone'], ext_modules=[Extension('fastone.core', ['core.c'])])\n"
    ),
    "fastone/__init__.py": "from fastone.core import prefix_of_build, value\n",
    "core.c": """
#include <Python.h>

static PyObject *value(PyObject *self, PyObject *none) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "core", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_core(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddStringConstant(made, "prefix_of_build", PREFIX) < 0) { Py_CLEAR(made); }
    return made;
}
""",
}
FAST_SUITE = """
import sys

import fastone

from frostline.harness import Step, suite

@suite(axes={"n": [1]}, targets=["fastone"])
def use(implementation, device, *, n):
    seen = {"value": fastone.value(), "built_by": fastone.prefix_of_build, "prefix": sys.prefix}
    return Step(run=fastone.value, detail=seen)
"""


@pytest.fixture
def builder(bare: Path, tmp_path: Path) -> Path:
    """An environment with setuptools, so that nothing is fetched for a build. It has no pip."""
    place, shared = tmp_path / "builder", tmp_path / "shared"
    shutil.copytree(bare, place, symlinks=True)
    shared.mkdir()
    own = Path(sysconfig.get_paths()["purelib"])
    for name in ("setuptools", "_distutils_hack", *(found.name for found in own.glob("setuptools-*.dist-info"))):
        (shared / name).symlink_to(own / name)
    _install(place, shared)
    return place


class TestBuilding:
    def test_an_extension_is_compiled_for_the_interpreter_that_measures(
        self, builder: Path, tmp_path: Path, frostline: Command, scratch_repo: Callable[..., Any]
    ) -> None:
        if not any(map(shutil.which, ("cc", "gcc", "clang"))):
            pytest.skip("no C compiler")
        if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
            pytest.skip("this Python has no headers to compile against")
        settings = "import sys\nMACROS = [('VALUE', '%d'), ('PREFIX', '\"' + sys.prefix + '\"')]\n"
        setup = EXTENSION["setup.py"].replace("['core.c']", "['core.c'], define_macros=MACROS")
        commits = [{**EXTENSION, "setup.py": settings % value + setup} for value in (1, 2)]
        repository = scratch_repo(*commits)
        database = tmp_path / "kept.db"
        suite = _suite(tmp_path, FAST_SUITE)
        options = ("--repo", repository.path, "--suite", suite, "--python", builder, *QUICK, "--db", database)
        done = frostline("compare", "HEAD~1", "HEAD", *options)
        assert done.returncode == 0, done.stderr
        seen = _details(database)
        assert {one["value"] for one in seen} == {1, 2}
        assert {(one["built_by"], one["prefix"]) for one in seen} == {(str(builder), str(builder))}

    def test_an_extension_of_another_interpreter_is_a_module_too(self, tmp_path: Path) -> None:
        for name in ("one.cpython-399-x86_64-linux-gnu.so", "two.abi3.so", "three.pyd", "four.min.py", "five.so.1", "six.txt"):
            (tmp_path / name).touch()
        (tmp_path / "seven").mkdir()
        (tmp_path / "seven" / "__init__.cpython-399-darwin.so").touch()
        assert list(provided(tmp_path)) == ["one", "seven", "three", "two"]

    def test_the_cache_keeps_interpreters_apart(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def built(project: Path, into: Path, isolated: bool, label: str, python: Interpreter) -> Path:
            into.mkdir()
            with zipfile.ZipFile(into / "thing-1-py3-none-any.whl", "w") as wheel:
                wheel.writestr("thing.py", f"tags = {python.tags!r}\n")
            return into / "thing-1-py3-none-any.whl"

        monkeypatch.setattr(build, "_build_wheel", built)
        other = replace(OWN, tags="cpython-399 .cpython-399t-linux.so linux", harness=tmp_path)
        exports = [build.export(["tree"], "", "it", (), lambda tree: tree, python) for python in (OWN, other)]
        assert [OWN.tags in (one.path / "thing.py").read_text() for one in exports] == [True, False]


class TestGate:
    def test_the_policy_names_an_environment_from_the_root(
        self, environment: Path, tmp_path: Path, frostline: Command, scratch_repo: Callable[..., Any]
    ) -> None:
        policy = (
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[tool.frostline.gate]\npredicted = false\npython = "../environment"\ninconclusive = "warn"\n'
            '[tool.frostline.gate.suites."bench.py"]\nrounds = 1\nmax_rounds = 1\n'
        )
        backend = (
            "import zipfile\n"
            "def build_wheel(into, settings=None, metadata=None):\n"
            "    with zipfile.ZipFile(f'{into}/part-1-py3-none-any.whl', 'w') as wheel:\n"
            "        wheel.write('part.py')\n"
            "        wheel.writestr('part-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: part\\nVersion: 1\\n')\n"
            "        wheel.writestr('part-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nTag: py3-none-any\\n')\n"
            "        wheel.writestr('part-1.dist-info/RECORD', '')\n"
            "    return 'part-1-py3-none-any.whl'\n"
        )
        bench = SUITE.replace('targets=["packaging"]', 'targets=["part"]').replace("import packaging", "import packaging, part")
        files = {"pyproject.toml": policy, "backend.py": backend, "bench.py": bench, "part.py": "value = 1\n"}
        repository = scratch_repo(files, {"part.py": "value = 2\n"})
        database = tmp_path / "kept.db"
        done = frostline("gate", "--repo", repository.path, "--db", database)
        assert done.returncode in (0, 1), done.stderr  # one round decides nothing, but memory may differ
        assert {(seen["value"], seen["prefix"]) for seen in _details(database)} == {("theirs", str(environment))}
        (repository.path / "pyproject.toml").write_text(policy.replace("../environment", "gone"))
        done = frostline("gate", "--repo", repository.path, "--db", database)
        assert done.returncode == 2
        assert "gate: tool.frostline.gate.python (line 7 of " in done.stderr
        assert "/gone is not there" in done.stderr


class TestMistakes:
    def test_what_is_no_environment(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        plain, script, echo = tmp_path / "plain", tmp_path / "script", tmp_path / "garbage"
        plain.write_text("")
        script.write_text("#!/bin/sh\necho hello\n")
        echo.write_bytes(b"\x00\x01")
        for file in (script, echo):
            file.chmod(0o755)
        for given, said in (
            (tmp_path / "nowhere", "nowhere is not there; wanted an interpreter or a virtual environment's directory"),
            ("no-such-python", "no-such-python is not there"),
            (tmp_path / "empty", "empty has no bin/python; wanted an interpreter or a virtual environment"),
            (plain, "plain may not be executed"),
            (script, "script is no Python interpreter"),
            (echo, r"garbage is no Python interpreter \(Exec format error\)"),
        ):
            with pytest.raises(UsageError, match=f"^--python: .*{said}"):
                find_interpreter(str(given))

    @pytest.mark.parametrize(
        "says",
        [
            "frostline 3.x.9 /usr",
            "frostline 3.12",
            "frostline 3.12.1 ",
            "frostline",
            "frostline 3.12.1 /u\\0sr",
            "[1, 2]",
            "\\377",
        ],
    )
    def test_garbage_in_place_of_an_answer(self, tmp_path: Path, says: str) -> None:
        babbler = tmp_path / "babbler"
        babbler.write_text(f"#!/bin/sh\nprintf '{says}\\n'\n")
        babbler.chmod(0o755)
        with pytest.raises(UsageError, match=r"^--python: .*babbler is no Python interpreter$"):
            find_interpreter(str(babbler))

    @pytest.mark.parametrize("says", ["3", "{}", '{"about": {"version": 3}, "packages": {}}', '{"about": [], "packages": {}}'])
    def test_garbage_after_a_good_beginning(self, tmp_path: Path, says: str) -> None:
        turned = tmp_path / "turned"
        turned.write_text(f"#!/bin/sh\n[ \"$1\" = -c ] && echo 'frostline 3.12.1 /usr' || echo '{says}'\n")
        turned.chmod(0o755)
        with pytest.raises(UsageError, match=r"^--python: .*turned does not tell what it is$"):
            find_interpreter(str(turned))

    def test_nobodys_home(self) -> None:
        with pytest.raises(UsageError, match=r"^--python: ~nobody-by-that-name/venv is not there"):
            find_interpreter("~nobody-by-that-name/venv")

    def test_one_that_is_too_old(self, tmp_path: Path) -> None:
        old = tmp_path / "python3.8"
        old.write_text("#!/bin/sh\necho 'frostline 3.8.10 /usr'\n")
        old.chmod(0o755)
        with pytest.raises(UsageError, match=r"^--python: .*python3.8 is Python 3.8.10, wanted 3.11 or newer$"):
            find_interpreter(str(old))

    def test_one_that_does_not_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = tmp_path / "slow"
        slow.write_text("#!/bin/sh\nexec sleep 20\n")
        slow.chmod(0o755)
        monkeypatch.setattr(interpreters, "TIMEOUT_S", 0.2)
        with pytest.raises(UsageError, match=r"slow gave no answer within 0\.2 s"):
            find_interpreter(str(slow))

    def test_a_suite_whose_imports_fail_there(self, bare: Path, tmp_path: Path, frostline: Command) -> None:
        done = frostline("run", _suite(tmp_path), "--python", bare, "--db", tmp_path / "kept.db")
        assert done.returncode == 2
        last = done.stderr.strip().splitlines()[-1]
        assert "could not be loaded in the environment of " in last
        assert str(bare / "bin" / "python") in last
        assert "No module named 'packaging'" in last

    def test_a_target_that_is_not_installed_there(self, bare: Path) -> None:
        with pytest.raises(UsageError, match=r"target rich: no such package is installed in the environment of .*bare"):
            find_interpreter(str(bare)).contents(["rich"])

    def test_an_option_beside_resume(self, bare: Path, frostline: Command) -> None:
        done = frostline("run", "--resume", "last", "--python", bare)
        assert done.returncode == 2
        assert "leave out --python" in done.stderr
