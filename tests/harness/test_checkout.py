from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlite_utils

from frostline.harness import build, checkout, interpreters
from frostline.harness.checkout import (
    git_source,
    installed_source,
    merge_base,
    resolve,
    worktree_source,
)
from frostline.harness.folders import path_source
from frostline.harness.side import Source
from frostline.harness.sources import restore
from frostline.results.record import NothingMeasured, UsageError
from frostline.results.store import Store

Make = Callable[..., Any]

BUILD_SYSTEM = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
PYPROJECT = BUILD_SYSTEM + '[project]\nname = "thing"\nversion = "1.0"\n'
PACKAGES = PYPROJECT + "[tool.setuptools]\npackages = ['thing', 'other']\n"
FLAT = {
    "pyproject.toml": PYPROJECT,
    "thing/__init__.py": "value = 1\n",
    "thing/more.py": "",
    ".gitignore": "build/\n*.egg-info/\n",
}
TWO_PACKAGES = FLAT | {"pyproject.toml": PACKAGES, "other/__init__.py": ""}
NAMESPACE = """
[project]
name = "frostline"
version = "9"
[tool.setuptools]
packages = ["frostline.kernels", "frostline.kernels.norm", "frostline.harness"]
[tool.setuptools.package-dir]
"frostline.kernels" = "kernels"
"frostline.harness" = "harness"
"""
VERSION_FROM_A_TAG = """
import subprocess
from pathlib import Path
from setuptools import setup

tag = subprocess.run(["git", "describe", "--tags"], capture_output=True, text=True, check=True).stdout.strip()
Path("thing/__init__.py").write_text(f"value = {tag!r}")
setup(name="thing", version=tag, packages=["thing"])
"""


def value_of(source: Source, module: str = "thing") -> str:
    """What a fresh interpreter gets of a module with the source in front on its path."""
    code = f"import sys; sys.path.insert(0, {str(source.path)!r}); import {module} as it; print(it.value)"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def files_of(source: Source) -> set[str]:
    assert source.path is not None
    return {path.relative_to(source.path).as_posix() for path in source.path.rglob("*.py")}


def state_of(directory: Path) -> dict[str, str]:
    """Every file of a checkout, .git included, with a hash of its bytes."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() + str(path.stat().st_mtime_ns) for path in files}


class TestResolve:
    def test_names_of_every_kind_lead_to_their_commit(self, scratch_repo: Make) -> None:
        repo = scratch_repo(FLAT, {"thing/__init__.py": "value = 2\n"})
        first, second = repo.git("rev-parse", "HEAD~1"), repo.git("rev-parse", "HEAD")
        repo.git("branch", "team/some-work", first)
        repo.git("tag", "v1.0", first)
        repo.git("tag", "--annotate", "v1.1", "--message", "Release", first)
        for name in ("team/some-work", "v1.0", "v1.1", "HEAD~1", "main^", first, first[:10]):
            commit = resolve(name, repo.path)
            assert (commit.sha, commit.label, commit.subject) == (first, name, "Commit 0")
        assert resolve("main", repo.path).sha == second

    @pytest.mark.parametrize("ref", ["-x", "--upload-pack=touch bad", "--all", "", " ", "a\0b"])
    def test_what_looks_like_an_option_is_refused(self, scratch_repo: Make, ref: str) -> None:
        repo = scratch_repo(FLAT)
        with pytest.raises(UsageError, match=r"^BASE: .* cannot be a revision"):
            resolve(ref, repo.path, "BASE")

    def test_a_close_name_is_suggested(self, scratch_repo: Make) -> None:
        repo = scratch_repo(FLAT)
        repo.git("branch", "team/faster-norms")
        with pytest.raises(UsageError, match=r"^HEAD: no branch.* 'team/faster-norm' .*; did you mean team/faster-norms\?$"):
            resolve("team/faster-norm", repo.path, "HEAD")
        with pytest.raises(UsageError, match=r"no branch, tag or commit 'HEAD:thing'"):
            resolve("HEAD:thing", repo.path)

    def test_a_misspelt_name_is_one_in_a_shallow_clone_too(self, scratch_repo: Make, tmp_path: Path) -> None:
        repo = scratch_repo(FLAT, {"thing/__init__.py": "value = 2\n"})
        shallow = tmp_path / "shallow"
        repo.git("clone", "--quiet", "--depth=1", f"file://{repo.path}", str(shallow))
        with pytest.raises(UsageError, match=r"no branch, tag or commit 'mian' in .*shallow; did you mean main.*\?$"):
            resolve("mian", shallow)
        lacking = r"no branch, tag or commit '{}' in {}; it is a shallow clone: more history comes with git fetch --unshallow$"
        for ref in ("abcdef0", "v2.0", "HEAD~7"):
            with pytest.raises(UsageError, match=lacking.format(ref, shallow)):
                resolve(ref, shallow)
            with pytest.raises(UsageError, match=f"no branch, tag or commit '{ref}' in [^;]*$"):
                resolve(ref, repo.path)
        with pytest.raises(UsageError, match=r"left no main branch; name a base \(it is a shallow clone: .* --unshallow\)$"):
            merge_base(shallow)
        with pytest.raises(UsageError, match=r"left no main branch; name a base$"):
            merge_base(scratch_repo(FLAT).path)

    def test_a_shallow_clone_says_what_it_lacks(self, scratch_repo: Make, tmp_path: Path) -> None:
        repo = scratch_repo(FLAT, {"thing/__init__.py": "value = 2\n"})
        repo.git("clone", "--quiet", "--depth=1", f"file://{repo.path}", str(tmp_path / "shallow"))
        with pytest.raises(UsageError, match=r"'HEAD~1' in .*; it is a shallow clone: .*git fetch --unshallow"):
            resolve("HEAD~1", tmp_path / "shallow")
        assert value_of(git_source("HEAD", tmp_path / "shallow")) == "2"

    def test_places_without_a_revision(self, scratch_repo: Make, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"^--repo: .*missing is no directory"):
            resolve("HEAD", tmp_path / "missing")
        (tmp_path / "plain").mkdir()
        with pytest.raises(UsageError, match=r"^--repo: .*plain is no checkout of a git repository"):
            resolve("HEAD", tmp_path / "plain")
        with pytest.raises(UsageError, match=r"^--repo: .* has no commit yet"):
            resolve("HEAD", scratch_repo().path)

    def test_a_surrounding_hook_does_not_lead_elsewhere(self, scratch_repo: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        here, other = scratch_repo(FLAT), scratch_repo(FLAT, FLAT)
        monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
        assert resolve("HEAD", here.path).sha == here.git("rev-parse", "HEAD")


class TestMergeBase:
    def test_a_branch_is_judged_against_where_it_left_main(self, scratch_repo: Make) -> None:
        repo = scratch_repo(FLAT, {"a": "1"})
        left = repo.git("rev-parse", "HEAD")
        repo.git("checkout", "--quiet", "-b", "work")
        repo.commit({"b": "1"})
        repo.commit({"b": "2"})
        repo.git("checkout", "--quiet", "main")
        repo.commit({"c": "1"})
        repo.git("checkout", "--quiet", "work")
        assert merge_base(repo.path).sha == left

    def test_main_itself_against_its_parent(self, scratch_repo: Make) -> None:
        repo = scratch_repo(FLAT, {"a": "1"})
        assert merge_base(repo.path).sha == repo.git("rev-parse", "HEAD~1")

    def test_a_stale_main_does_not_hide_a_later_one(self, scratch_repo: Make, tmp_path: Path) -> None:
        origin = scratch_repo(FLAT)
        origin.git("clone", "--quiet", str(origin.path), str(tmp_path / "clone"))
        later = origin.commit({"a": "1"})
        clone = tmp_path / "clone"
        for arguments in (["fetch"], ["checkout", "-b", "work", "origin/main"], ["commit", "--allow-empty", "-m", "Work"]):
            origin.git("-C", str(clone), *arguments, "--quiet")
        assert merge_base(clone).sha == later

    def test_a_first_commit_has_no_base(self, scratch_repo: Make) -> None:
        with pytest.raises(UsageError, match="HEAD has no parent"):
            merge_base(scratch_repo(FLAT).path)


class TestLayouts:
    def test_flat(self, scratch_repo: Make) -> None:
        repo = scratch_repo(FLAT, {"thing/__init__.py": "value = 2\n"})
        old, new = git_source("HEAD~1", repo.path), git_source("main", repo.path)
        assert (old.targets, new.targets) == (("thing",), ("thing",))
        assert (value_of(old), value_of(new)) == ("1", "2")
        assert old.identity != new.identity
        assert (new.kind, new.label, new.detail["subject"]) == ("git", "main", "Commit 1")

    def test_src_layout_in_a_subdirectory_keeps_its_metadata(self, scratch_repo: Make) -> None:
        repo = scratch_repo({"python/pyproject.toml": PYPROJECT, "python/src/thing/__init__.py": "value = 1\n", "README": ""})
        source = git_source("HEAD", repo.path / "python" / "src")
        assert source.targets == ("thing",)
        assert source.path is not None and (source.path / "thing-1.0.dist-info" / "METADATA").is_file()

    def test_setup_py_alone_and_single_modules(self, scratch_repo: Make) -> None:
        setup = "from setuptools import setup\nsetup(name='thing', version='1', packages=['thing'], py_modules=['lone'])\n"
        repo = scratch_repo({"setup.py": setup, "thing/__init__.py": "value = 1\n", "lone.py": "value = 3\n"})
        source = git_source("HEAD", repo.path)
        assert set(source.targets) == {"lone", "thing"}
        assert value_of(source, "lone") == "3"

    def test_of_a_mapped_namespace_only_what_is_no_room_of_ours(self, scratch_repo: Make) -> None:
        files = {
            "pyproject.toml": BUILD_SYSTEM + NAMESPACE,
            "harness/__init__.py": "",
            "kernels/norm/__init__.py": "value = 4\n",
        }
        repo = scratch_repo(files | {"kernels/__init__.py": ""})
        for source in (git_source("HEAD", repo.path), git_source("HEAD", repo.path, ["frostline.kernels"])):
            assert source.targets == ("frostline.kernels",)
            assert files_of(source) == {"frostline/kernels/__init__.py", "frostline/kernels/norm/__init__.py"}
            assert not list(source.path.glob("*.dist-info"))  # or a worker would take it for the harness's own version
            assert value_of(source, "frostline.kernels.norm") == "4"
        code = f"import sys; sys.path.insert(0, {str(source.path)!r}); import frostline.results.record, frostline.kernels"
        code += "; print(frostline.results.record.__file__); print(frostline.kernels.__file__)"
        lines = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert not lines[0].startswith(str(source.path)) and lines[1].startswith(str(source.path))

    def test_targets_choose_and_must_be_there(self, scratch_repo: Make) -> None:
        repo = scratch_repo(TWO_PACKAGES)
        assert files_of(git_source("HEAD", repo.path, ["other"])) == {"other/__init__.py"}
        part = git_source("HEAD", repo.path, ["thing.more"])  # a package cannot come from two places: all of it is taken
        assert (part.targets, files_of(part)) == (("thing",), {"thing/__init__.py", "thing/more.py"})
        with pytest.raises(NothingMeasured, match=r"HEAD \(\w{12}\): its wheel has no package thin; it holds other, thing"):
            git_source("HEAD", repo.path, ["thin"])

    def test_tags_are_there_for_a_version_made_from_them(self, scratch_repo: Make) -> None:
        repo = scratch_repo({"setup.py": VERSION_FROM_A_TAG, "thing/__init__.py": ""})
        repo.git("tag", "7.5")
        assert value_of(git_source("HEAD", repo.path)) == "7.5"

    def test_a_linked_worktree_is_a_checkout_too(self, scratch_repo: Make, tmp_path: Path) -> None:
        repo = scratch_repo(FLAT)
        repo.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
        (tmp_path / "linked/thing/__init__.py").write_text("value = 8\n")
        assert value_of(worktree_source(tmp_path / "linked")) == "8"


class TestWorkingTree:
    def test_a_clean_tree_is_head(self, scratch_repo: Make) -> None:
        repo = scratch_repo(FLAT)
        os.utime(repo.path / "thing/__init__.py")
        source = worktree_source(repo.path)
        assert source.identity == git_source("HEAD", repo.path).identity
        assert (source.label, source.kind, "dirty" in source.detail) == ("working tree", "worktree", False)

    def test_changes_new_files_and_deletions_count_and_ignored_files_do_not(self, scratch_repo: Make) -> None:
        repo = scratch_repo(FLAT | {"thing/gone.py": "", "thing/staged_away.py": ""})
        head = git_source("HEAD", repo.path)
        repo.write({"thing/__init__.py": "from thing.new import value\n", "thing/new.py": "value = 5\n", "thing/gone.py": None})
        repo.write({"build/thing.py": "", "thing/staged.py": ""})
        repo.git("add", "thing/staged.py")
        repo.git("rm", "--quiet", "thing/staged_away.py")
        source = worktree_source(repo.path)
        assert value_of(source) == "5"
        assert files_of(source) == {f"thing/{name}.py" for name in ("__init__", "more", "new", "staged")}
        changed = ["thing/__init__.py", "thing/gone.py", "thing/new.py", "thing/staged.py", "thing/staged_away.py"]
        assert source.detail["changed"] == changed
        assert value_of(head) == "1" and source.identity != head.identity

    def test_our_own_database_is_no_part_of_it(self, scratch_repo: Make, tmp_path: Path) -> None:
        """A comparison makes it where one stands, and the next would build anew for it."""
        repo = scratch_repo(FLAT)
        clean = worktree_source(repo.path).identity
        with Store.open(repo.path / "any name.sqlite") as store:
            other = store.path.with_name("other.db")
            assert (
                store.path.with_name("any name.sqlite.lock").exists() and store.path.with_name("any name.sqlite-wal").exists()
            )
            assert worktree_source(repo.path).identity == clean and checkout.state_of(repo.path).keys() == {"commit"}
            repo.write({"any name.sqlite.txt": "", "note.lock": ""})
            assert worktree_source(repo.path).detail["changed"] == ["any name.sqlite.txt", "note.lock"]
            sqlite_utils.Database(other)["theirs"].insert({"a": 1})
            assert "other.db" in worktree_source(repo.path).detail["changed"]
            plain = tmp_path / "no checkout"
            shutil.copytree(repo.path, plain, ignore=shutil.ignore_patterns(".git"))
        before = path_source(plain, (), "BASE").identity
        for file in plain.glob("any name.sqlite*"):
            if not file.name.endswith(".txt"):
                file.unlink()
        assert path_source(plain, (), "BASE").identity == before

    def test_each_difference_has_its_own_identity(self, scratch_repo: Make) -> None:
        repo = scratch_repo(FLAT)
        repo.write({"thing/__init__.py": "value = 2\n"})
        two = worktree_source(repo.path)
        repo.write({"thing/__init__.py": "value = 3\n"})
        three = worktree_source(repo.path)
        repo.write({"thing/__init__.py": "value = 2\n"})
        assert two.identity == worktree_source(repo.path).identity != three.identity
        assert (value_of(two), value_of(three)) == ("2", "3")

    def test_a_file_in_the_place_of_a_package_and_back(self, scratch_repo: Make) -> None:
        repo = scratch_repo(TWO_PACKAGES | {"thing/a/b.py": "", "thing/c": ""})
        shutil.rmtree(repo.path / "thing/a")
        repo.write({"thing/c": None})
        repo.write({"thing/a": "", "thing/c/d.py": "", "thing/a.py": "value = 6\n"})
        assert value_of(worktree_source(repo.path), "thing.a") == "6"

    def test_the_checkout_stays_as_it_is(self, scratch_repo: Make, tmp_path: Path) -> None:
        repo = scratch_repo(FLAT | {".gitattributes": "*.py filter=mark\n"})
        witness = tmp_path / "ran"
        for hook in ("post-checkout", "post-index-change", "reference-transaction"):
            repo.write({f".git/hooks/{hook}": f"#!/bin/sh\ntouch {witness}\n"})
            (repo.path / ".git/hooks" / hook).chmod(0o755)
        repo.write({"thing/__init__.py": "value = 2\n"})
        repo.git("-c", "core.hooksPath=/dev/null", "stash", "--quiet")
        repo.write({"thing/more.py": "value = 3\n", "thing/new.py": ""})
        os.utime(repo.path / "thing/__init__.py")  # makes an index refresh tempting
        repo.git("config", "filter.mark.smudge", f"touch {witness}; cat")
        before = state_of(repo.path)
        worktree_source(repo.path)
        git_source("HEAD", repo.path, ["thing"])
        assert state_of(repo.path) == before
        assert not witness.exists()

    def test_submodules_are_named_as_left_out(self, scratch_repo: Make) -> None:
        inner, repo = scratch_repo({"file": "1"}), scratch_repo(TWO_PACKAGES)
        repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.path), "third_party/inner")
        repo.commit({}, "Add a submodule")
        assert git_source("HEAD", repo.path).detail["submodules_left_out"] == ["third_party/inner"]
        (repo.path / "third_party/inner/file").write_text("2")
        assert worktree_source(repo.path).identity == git_source("HEAD", repo.path).identity


class TestCache:
    def test_an_export_is_made_once(self, scratch_repo: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        repo = scratch_repo(FLAT)
        first = git_source("HEAD", repo.path)
        monkeypatch.setattr(build, "_build_wheel", None)  # a second build would fail
        assert git_source("main", repo.path) == replace(first, label="main")

    def test_a_damaged_export_is_made_again(self, scratch_repo: Make) -> None:
        repo = scratch_repo(FLAT)
        source = git_source("HEAD", repo.path)
        assert source.path is not None
        (source.path / "thing/__init__.py").write_text("value = 'edited in the cache'\n")
        assert value_of(git_source("HEAD", repo.path)) == "1"

    def test_another_version_of_what_it_is_built_with_makes_another(
        self, scratch_repo: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repo = scratch_repo(FLAT)
        first = git_source("HEAD", repo.path)
        monkeypatch.setattr(interpreters.importlib.metadata, "version", lambda _: "999")
        assert git_source("HEAD", repo.path).path != first.path

    def test_processes_may_export_the_same_at_once(self, scratch_repo: Make, frostline_cache: Path) -> None:
        repo = scratch_repo(FLAT | {"thing/__init__.py": "value = 'at once'\n"})
        code = "import sys; from frostline.harness.checkout import git_source; print(git_source('HEAD', sys.argv[1]).path)"
        command = [sys.executable, "-c", code, str(repo.path)]
        workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        paths = {worker.communicate()[0].strip() for worker in workers}
        assert [worker.returncode for worker in workers] == [0, 0, 0]
        assert len(paths) == 1 and (Path(paths.pop()) / "thing/__init__.py").is_file()
        assert not list((frostline_cache / "exports").glob(".building-*"))

    def test_a_source_from_a_plan_is_exported_again(self, scratch_repo: Make, frostline_cache: Path) -> None:
        repo = scratch_repo(FLAT)
        repo.git("branch", "work")
        of_branch = git_source("work", repo.path)
        repo.write({"thing/__init__.py": "value = 2\n"})
        of_tree = worktree_source(repo.path)
        planned = [Source.from_json(json.loads(json.dumps(source.to_json()))) for source in (of_branch, of_tree)]
        repo.git("branch", "--delete", "--force", "work")
        shutil.rmtree(frostline_cache / "exports")
        assert [restore(source) for source in planned] == [of_branch, of_tree]
        assert [value_of(source) for source in planned] == ["1", "2"]
        shutil.rmtree(frostline_cache / "exports")
        repo.write({"thing/__init__.py": "value = 3\n"})
        with pytest.raises(UsageError, match="working tree: it is no longer what was measured"):
            restore(planned[1])


class TestFailures:
    def test_a_build_that_fails_shows_its_last_lines(self, scratch_repo: Make, frostline_cache: Path) -> None:
        repo = scratch_repo({"setup.py": "raise RuntimeError('no compiler for the flux capacitor')\n"})
        with pytest.raises(NothingMeasured, match=r"(?s)HEAD \(\w{12}\): the build failed.*no compiler for the flux capacitor"):
            git_source("HEAD", repo.path)
        assert not list((frostline_cache / "exports").glob(".building-*"))

    def test_nothing_to_build(self, scratch_repo: Make) -> None:
        with pytest.raises(NothingMeasured, match=r"neither pyproject\.toml nor setup.py"):
            git_source("HEAD", scratch_repo({"notes.txt": ""}).path)

    def test_a_pyproject_that_is_no_toml(self, scratch_repo: Make) -> None:
        with pytest.raises(NothingMeasured, match=r"its pyproject\.toml cannot be read"):
            git_source("HEAD", scratch_repo({"pyproject.toml": "[build-system\n"}).path)


class TestInstalled:
    def test_the_identity_follows_the_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "one_module.py").write_text("value = 1\n")
        (tmp_path / "a_package").mkdir()
        (tmp_path / "a_package/__init__.py").write_text("")
        targets = ("one_module", "a_package")
        first = installed_source(targets)
        assert (first.kind, first.label, first.path, first.targets) == ("installed", "installed", None, targets)
        assert installed_source(targets) == first
        (tmp_path / "a_package/more.py").write_text("")
        assert installed_source(targets).identity != first.identity

    def test_a_target_that_is_not_installed(self) -> None:
        with pytest.raises(UsageError, match="target nowhere_to_be_found: no such package is installed"):
            installed_source(("nowhere_to_be_found",))
