"""Releases and directories as sides. The index is a folder of wheels: pip is told to look nowhere else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from frostline.harness import releases
from frostline.harness import session as sessions
from frostline.harness.describe import Request, plan_compare
from frostline.harness.progress import Progress
from frostline.harness.side import Source
from frostline.harness.sources import Asked, check, make, restore
from frostline.results.record import NothingMeasured, Role, Status, UsageError
from frostline.results.store import Store

Files = Mapping[str, str]

BUILD_SYSTEM = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
PROJECT = {
    "pyproject.toml": BUILD_SYSTEM + '[project]\nname = "planned"\nversion = "1"\n[tool.setuptools]\npackages = ["planned"]\n',
    "planned/__init__.py": "value = 1\n",
}
SUITE = """
from frostline.harness import suite

@suite(axes={"n": [1]}, targets=%r)
def toy(implementation, device, *, n):
    %s
    return lambda: None
"""


def write(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a release into the only index that pip sees."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    def add(name: str, version: str, files: Files, requires: tuple[str, ...] = (), extras: Files | None = None) -> None:
        info = f"{name}-{version}.dist-info"
        needs = [f"Requires-Dist: {need}" for need in requires]
        needs += [
            f"Provides-Extra: {extra}\nRequires-Dist: {need}; extra == '{extra}'" for extra, need in (extras or {}).items()
        ]
        contents = {
            **files,
            f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *needs, ""]),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        rows = [f"{file},sha256={_digest(text)},{len(text.encode())}" for file, text in contents.items()]
        contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
        with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for file, text in contents.items():
                wheel.writestr(file, text)

    return add


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def made(text: str, *extras: str, targets: tuple[str, ...] = ()) -> Source:
    return make(Asked(text, "BASE", extras), Path(), targets)


def files_of(source: Source) -> set[str]:
    assert source.path is not None
    every = (path.relative_to(source.path) for path in source.path.rglob("*.py"))
    return {path.as_posix() for path in every}


def text_of(source: Source, file: str) -> str:
    assert source.path is not None
    return (source.path / file).read_text()


class TestReleases:
    def test_a_version_is_what_the_distribution_provides(self, release: Any) -> None:
        release(
            "first_one", "1.0", {"first_one/__init__.py": "value = 1\n", "helper.py": "", "frostline/harness/worker.py": ""}
        )
        source = made("pypi:first-one==1.0")
        assert (source.kind, source.label, source.targets) == ("pypi", "pypi:first-one==1.0", ("first_one", "helper"))
        assert files_of(source) == {"first_one/__init__.py", "helper.py"}
        assert (source.detail["distribution"], source.detail["version"]) == ("first-one", "1.0")

    def test_the_newest_where_none_is_named(self, release: Any) -> None:
        for version in ("1.9", "1.10"):
            release("many", version, {"many.py": f"value = {version!r}\n"})
        assert made("pypi:many").detail["version"] == "1.10"
        assert made("pypi:many<1.10").detail["version"] == "1.9"
        assert made("pypi:many==1.9").identity == made("pypi:many<1.10").identity != made("pypi:many").identity

    def test_it_is_downloaded_once(self, release: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        release("kept", "1", {"kept.py": ""})
        first = made("pypi:kept==1")
        monkeypatch.setattr(releases, "run_pip", None)  # a second download would fail
        assert made("pypi:kept==1") == first

    def test_the_suites_targets_alone(self, release: Any) -> None:
        release("two_parts", "1", {"two_parts/__init__.py": "", "beside.py": ""})
        assert files_of(made("pypi:two-parts==1", targets=("two_parts",))) == {"two_parts/__init__.py"}
        with pytest.raises(
            NothingMeasured, match=r"two-parts==1: its wheel has no package third; it holds beside.py, two_parts"
        ):
            made("pypi:two-parts==1", targets=("third",))

    def test_no_such_version_names_those_there_are(self, release: Any) -> None:
        for number in range(1, 9):
            release("numbered", f"0.{number}", {"numbered.py": ""})
        with pytest.raises(UsageError) as told:
            made("pypi:numbered==0.9")
        wanted = "no release numbered==0.9 for this interpreter; there are 0.3, 0.4, 0.5, 0.6, 0.7, 0.8 (2 earlier)"
        assert str(told.value) == f"BASE: {wanted}"

    @pytest.mark.usefixtures("release")
    def test_no_such_distribution(self) -> None:
        with pytest.raises(UsageError, match=r"^BASE: pip finds no distribution for nowhere-at-all==1 "):
            made("pypi:nowhere-at-all==1")

    def test_requirements_that_contradict_each_other_are_a_mistake(self, release: Any) -> None:
        release("low", "1", {"low.py": ""})
        release("low", "2", {"low.py": ""})
        release("wants_low", "1", {"wants_low.py": ""}, requires=("low==1",))
        release("pair", "1", {"pair.py": ""})
        with pytest.raises(UsageError) as told:
            made("pypi:pair==1", "wants_low==1", "low==2")
        said = str(told.value)
        assert said.startswith("--with: wants_low==1, low==2 do not go together: ") and "\n" not in said
        assert "The user requested low==2" in said and "wants-low 1 depends on low==1" in said

    def test_no_network_shows_pips_last_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
        monkeypatch.setenv("PIP_RETRIES", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(NothingMeasured, match=r"(?s)pypi:unreachable==1: pip could not get it; .*Connection refused"):
            made("pypi:unreachable==1")

    @pytest.mark.parametrize("text", ["pypi:", "pypi:==1", "pypi:a b", "pypi:a==", "pypi:a @ https://example.invalid/a.whl"])
    def test_what_is_no_requirement_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match=r"^HEAD: .*; wanted pypi:NAME==VERSION$"):
            check(Asked(text, "HEAD"), Path())

    def test_one_of_a_plan_is_made_again(self, release: Any, frostline_cache: Path) -> None:
        release("again", "1", {"again.py": "value = 1\n"})
        release("more", "1", {"more.py": ""})
        source = made("pypi:again", "more==1")
        release("again", "2", {"again.py": "value = 2\n"})
        planned = Source.from_json(json.loads(json.dumps(source.to_json())))
        shutil.rmtree(frostline_cache / "exports")
        assert restore(planned) == source and text_of(source, "again.py") == "value = 1\n"


class TestWith:
    def test_what_a_side_needs_besides_with_what_that_needs(self, release: Any) -> None:
        release("core", "1", {"core.py": "value = 1\n"})
        release("addition", "1", {"addition.py": ""}, requires=("underneath>=1", "packaging"))
        release("underneath", "1", {"underneath.py": ""})
        plain, source = made("pypi:core==1"), made("pypi:core==1", "addition==1")
        assert files_of(source) == {"core.py", "addition.py", "underneath.py"}  # packaging is in the environment
        assert source.targets == ("core",) and source.label == "pypi:core==1 with addition==1"
        assert source.detail["installed_with"] == ["addition==1", "underneath==1"]
        assert source.identity != plain.identity and files_of(plain) == {"core.py"}

    def test_an_extra_of_the_release(self, release: Any) -> None:
        release("optional", "1", {"optional.py": ""}, extras={"fast": "faster"})
        release("faster", "3", {"faster.py": ""})
        assert files_of(made("pypi:optional[fast]==1")) == {"optional.py", "faster.py"}

    def test_what_the_environment_has_is_not_installed_again(self, release: Any) -> None:
        release("alone", "1", {"alone.py": ""})
        assert files_of(made("pypi:alone==1", "packaging>=1")) == {"alone.py"}

    def test_the_sides_own_code_stands_against_a_dependency(self, release: Any) -> None:
        for version in ("1", "2"):
            release("subject", version, {"subject.py": f"value = {version}\n"})
        release("user", "1", {"user.py": ""}, requires=("subject==2",))
        source = made("pypi:subject==1", "user==1")
        assert files_of(source) == {"subject.py", "user.py"} and text_of(source, "subject.py") == "value = 1\n"
        with pytest.raises(UsageError, match=r"^--with: subject is what pypi:subject==1 is; name its version there"):
            made("pypi:subject==1", "subject==2")

    def test_a_directorys_own_code_stands_too(self, release: Any, tmp_path: Path) -> None:
        folder = write(tmp_path / "mine", {"subject.py": "value = 'mine'\n"})
        release("the_subject", "2", {"subject.py": "value = 2\n"})
        release("user_of_it", "1", {"user_of_it.py": ""}, requires=("the-subject",))
        source = made(f"path:{folder}", "user-of-it")
        assert text_of(source, "subject.py") == "value = 'mine'\n"
        assert not list(Path(str(source.path)).glob("the_subject-*"))
        with pytest.raises(UsageError, match=r"^--with: the.subject brings subject, which is what the source itself"):
            made(f"path:{folder}", "the-subject==2")

    def test_another_frostline_is_refused(self, release: Any) -> None:
        release("calm", "1", {"calm.py": ""})
        release("frostline", "99", {"frostline/__init__.py": ""})
        with pytest.raises(UsageError, match=r"^--with: frostline==99 brings another frostline"):
            made("pypi:calm==1", "frostline==99")

    def test_a_mistake_is_found_before_anything_is_made(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "mine", {"subject.py": ""})
        with pytest.raises(UsageError, match=r"^--with: '==' is no requirement; wanted NAME==VERSION"):
            check(Asked(f"path:{folder}", "BASE", ["=="]), Path())


class TestDirectories:
    def test_a_project_is_built(self, tmp_path: Path) -> None:
        left = {"build/lib/planned/old.py": "", ".venv/pyvenv.cfg": "", ".venv/planned.py": ""}
        folder = write(tmp_path / "project", PROJECT | left)
        first = made(f"path:{folder}")
        assert (first.kind, first.targets, first.label) == ("path", ("planned",), f"path:{folder}")
        assert files_of(first) == {"planned/__init__.py"}
        assert made(f"path:{folder}") == first
        write(folder, {"planned/__init__.py": "value = 2\n"})
        second = made(f"path:{folder}")
        assert second.identity != first.identity
        assert [text_of(source, "planned/__init__.py") for source in (first, second)] == ["value = 1\n", "value = 2\n"]

    def test_a_checkout_is_its_working_tree(self, scratch_repo: Any) -> None:
        repo = scratch_repo(PROJECT | {".gitignore": "planned/junk.py\n"})
        repo.write({"planned/new.py": "", "planned/junk.py": ""})
        source = made(f"path:{repo.path}")
        assert files_of(source) == {"planned/__init__.py", "planned/new.py"}
        assert source.identity == make(Asked(None, "HEAD"), repo.path, ()).identity
        assert source.kind == "path" and source.detail["changed"] == ["planned/new.py"]

    def test_a_project_that_git_ignores_is_one_all_the_same(self, scratch_repo: Any) -> None:
        repo = scratch_repo({".gitignore": "vendored/\n"})
        write(repo.path / "vendored", PROJECT)
        assert files_of(made(f"path:{repo.path}/vendored")) == {"planned/__init__.py"}

    def test_packages_are_taken_as_they_lie(self, tmp_path: Path) -> None:
        files = {"one/__init__.py": "", "one/data.txt": "", "space/two/__init__.py": "", "three.py": "", "notes.md": ""}
        folder = write(tmp_path / "packages", files | {"frostline/harness/__init__.py": "", "one/__pycache__/x.py": ""})
        (folder / "one/linked").symlink_to(write(tmp_path / "elsewhere", {"deep.py": ""}))
        source = made(f"path:{folder}")
        assert source.targets == ("one", "space.two", "three")
        assert files_of(source) == {"one/__init__.py", "one/linked/deep.py", "space/two/__init__.py", "three.py"}
        assert files_of(made(f"path:{folder}", targets=("space.two",))) == {"space/two/__init__.py"}
        write(tmp_path, {"elsewhere/deep.py": "value = 2\n"})
        assert made(f"path:{folder}").identity != source.identity

    def test_our_database_among_packages_is_no_part_of_them(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "packages", {"one/__init__.py": ""})
        source = made(f"path:{folder}")
        with Store.open(folder / "one/kept.db"), Store.open(folder / "one.db"):
            assert made(f"path:{folder}").identity == source.identity
        assert made(f"path:{folder}").identity == source.identity

    @pytest.mark.parametrize("cache", ["/proc/nowhere", "/dev/null"])
    def test_a_cache_that_cannot_be_written_is_a_mistake(
        self, tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = write(tmp_path / "packages", {"lone.py": ""})
        monkeypatch.setenv("FROSTLINE_CACHE", cache)
        with pytest.raises(UsageError, match=rf"^FROSTLINE_CACHE: nothing can be kept there: {cache}.*; name a folder"):
            made(f"path:{folder}")

    def test_what_is_no_source(self, tmp_path: Path) -> None:
        write(tmp_path / "notes", {"notes.md": ""})
        with pytest.raises(UsageError, match=r"^HEAD: path:.*/nowhere is no directory$"):
            check(Asked(f"path:{tmp_path}/nowhere", "HEAD"), Path())
        with pytest.raises(UsageError, match=r"^HEAD: path:.*/notes holds neither pyproject.toml nor setup.py nor a package"):
            check(Asked(f"path:{tmp_path}/notes", "HEAD"), Path())
        with pytest.raises(UsageError, match=r"^HEAD: path: names no directory; wanted path:DIR$"):
            check(Asked("path:", "HEAD"), Path())

    def test_one_of_a_plan_is_made_again_while_it_is_the_same(self, tmp_path: Path, frostline_cache: Path) -> None:
        folder = write(tmp_path / "packages", {"lone.py": "value = 1\n"})
        source = made(f"path:{folder}")
        shutil.rmtree(frostline_cache / "exports")
        assert restore(source) == source and text_of(source, "lone.py") == "value = 1\n"
        shutil.rmtree(frostline_cache / "exports")
        write(folder, {"lone.py": "value = 2\n"})
        with pytest.raises(UsageError, match="it is no longer what was measured"):
            restore(source)


class TestProvenance:
    """Each side runs its own code or is an error, whatever tempts it to load another copy."""

    @pytest.fixture
    def statuses(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: Any
    ) -> Callable[..., list[tuple[Status, str]]]:
        """Compare two releases in a place where a copy is installed, with what the suite does before it is measured."""
        for version in ("1", "2"):
            release("wanted", version, {"wanted/__init__.py": f"value = {version}\n", "wanted/deep.py": ""})
        write(tmp_path / "site", {"wanted/__init__.py": "value = 'installed'\n", "wanted/deep.py": ""})
        write(tmp_path / "checkout", {"wanted/__init__.py": "value = 'checkout'\n", "wanted/deep.py": ""})

        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (f"{tmp_path}/site", os.environ.get("PYTHONPATH")))))
        monkeypatch.setattr("frostline.harness.plan.ROUND_NS", 1e6)
        monkeypatch.chdir(tmp_path / "checkout")

        def compare(body: str) -> list[tuple[Status, str]]:
            bench = write(tmp_path / "checkout", {"bench.py": SUITE % (["wanted"], body)}) / "bench.py"
            asked = [Asked(f"pypi:wanted=={version}", "BASE") for version in (1, 2)]
            plan = plan_compare(
                Request(str(bench), rounds=1), lambda names: [make(one, Path(), names) for one in asked], looks=1
            )
            with Store.open(tmp_path / "proof.db") as store:
                session = sessions.open_session(plan, store, "test", {})
                sessions.measure(plan, store, session, Progress(Console(file=io.StringIO())))
                records = [item for item in store.processes(session.id, role=Role.MEASURE) if item.attempt == 0]
            return [(item.status, item.reason) for item in sorted(records, key=lambda item: item.position)]

        return compare

    def test_neither_the_checkout_nor_the_installed_copy_is_in_the_way(self, statuses: Any) -> None:
        found = statuses("import wanted, wanted.deep; assert wanted.value in (1, 2), wanted.value")
        assert [status for status, _ in found] == [Status.OK, Status.OK], found

    @pytest.mark.parametrize("place", ["checkout", "site"])
    def test_a_copy_that_gets_in_front_is_an_error(self, statuses: Any, tmp_path: Path, place: str) -> None:
        found = statuses(f"import sys; sys.path.insert(0, {str(tmp_path / place)!r}); import wanted")
        assert [status for status, _ in found] == [Status.ERROR, Status.ERROR], found
        assert all(f"{place}/wanted/__init__.py, which is not of this side" in reason for _, reason in found)

    def test_a_submodule_from_elsewhere_is_an_error(self, statuses: Any, tmp_path: Path) -> None:
        body = f"import wanted; wanted.__path__.insert(0, {str(tmp_path / 'site' / 'wanted')!r}); import wanted.deep"
        found = statuses(body)
        assert [status for status, _ in found] == [Status.ERROR, Status.ERROR], found
        assert all(reason.startswith("wanted.deep was imported from") for _, reason in found)

    def test_an_import_hook_of_an_editable_install_is_an_error(self, statuses: Any, tmp_path: Path) -> None:
        file = str(tmp_path / "site/wanted/__init__.py")
        body = (
            "import sys, importlib.util as u; hook = type('Hook', (), {'find_spec': staticmethod(lambda name, *_: "
            f"u.spec_from_file_location(name, {file!r}) if name == 'wanted' else None)}}); "
            "sys.meta_path.insert(0, hook); import wanted"
        )
        found = statuses(body)
        assert [status for status, _ in found] == [Status.ERROR, Status.ERROR], found

    def test_the_other_sides_code_is_an_error(self, statuses: Any) -> None:
        one = made("pypi:wanted==1", targets=("wanted",))
        found = statuses(f"import sys; sys.path.insert(0, {str(one.path)!r}); import wanted")
        assert [status for status, _ in found] == [Status.OK, Status.ERROR], found
        assert f"which is not of this side ({made('pypi:wanted==2', targets=('wanted',)).path})" in found[1][1]


def test_two_directories_end_in_verdicts_outside_any_repository(frostline: Any, tmp_path: Path) -> None:
    for side in ("old", "new"):
        write(tmp_path / side, {"thing.py": f"value = {side!r}\n"})
    bench = write(tmp_path, {"bench.py": SUITE % (["thing"], "import thing")}) / "bench.py"
    done = frostline(
        *("compare", "path:old", "path:new", "--suite", bench, "--rounds", 1, "--db", "x.db"),
        cwd=tmp_path,
        env={"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
    )
    assert done.returncode == 0, done.stderr
    assert "baseline path:old;" in done.stdout and "inconclusive" in done.stdout


@pytest.mark.usefixtures("release")
def test_mistakes_are_one_line_and_exit_2(frostline: Any, tmp_path: Path) -> None:
    write(tmp_path, {"bench.py": SUITE % ([], "pass"), "thing.py": ""})
    for arguments, said in (
        (["pypi:a b", "path:."], "BASE: 'a b' is no requirement; wanted pypi:NAME==VERSION"),
        (["path:nowhere", "path:."], "BASE: path:nowhere is no directory"),
        (["path:.", "pypi:absent==1"], "HEAD: pip finds no distribution for absent==1"),
        (["path:.", "path:.", "--with", "=1"], "--with: '=1' is no requirement; wanted NAME==VERSION"),
    ):
        done = frostline("compare", *arguments, "--suite", "bench.py", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines()[-1].startswith(f"frostline: {said}")
