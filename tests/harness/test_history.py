"""`frostline history` on a real repository with sessions of its commits."""

from __future__ import annotations

SUITE = """
import time
from frostline.harness import suite
from napper import NAP

@suite(targets=["napper"])
def nap(implementation, device):
    return lambda: time.sleep(NAP)
"""
PROJECT = '[build-system]\nrequires=["setuptools"]\nbuild-backend="setuptools.build_meta"\n'
PROJECT += '[project]\nname="napper"\nversion="1"\n[tool.setuptools]\npy-modules=["napper"]\n'


def test_the_command_puts_commits_in_order_and_names_mistakes(frostline, scratch_repo, tmp_path):
    repo = scratch_repo({"pyproject.toml": PROJECT, "napper.py": "NAP = 0.001\n"}, {"napper.py": "NAP = 0.002\n"})
    suite, db = tmp_path / "bench_nap.py", tmp_path / "n.db"
    suite.write_text(SUITE)
    done = frostline(
        "compare", "HEAD~1", "HEAD", "--repo", repo.path, "--suite", suite, "--db", db, "--rounds", 1, "--max-rounds", 1
    )
    assert done.returncode == 0, done.stderr
    done = frostline("history", "nap", "--repo", repo.path, "--db", db, "--markdown", "-")
    assert done.returncode == 0 and "History of nap" in done.stdout and "too few commits" in done.stdout, done.stderr
    for arguments, said in (
        (["nip"], "SUITE: nothing stored of 'nip'; there is nap in "),
        (["nap", "--metric", "speed"], "--metric: no 'speed'; stored are "),
        (["nap", "--set", "n=1"], "has no axis 'n'"),
    ):
        done = frostline("history", *arguments, "--repo", repo.path, "--db", db)
        assert done.returncode == 2 and said in done.stderr, done.stderr
