"""The core claim, on real torch work through the real command: the same code is never slower, and 10 % more work is."""

from __future__ import annotations

from pathlib import Path

import pytest

from frostline.results.record import Outcome, Verdict
from frostline.results.store import Store
from frostline.results.verdict import brief

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "honest-work"
version = "1"
[tool.setuptools]
py-modules = ["honest_work"]
"""

WORK = """
import torch

def work(a, x):
    for _ in range({times}):
        x = torch.tanh(a @ x)
    return x
"""

SUITE = """
import torch
from frostline.harness import suite
from honest_work import work

@suite(axes={"size": [192]}, targets=["honest_work"])
def honest(implementation, device, *, size):
    a = torch.randn(size, size, device=device) * (1.5 / size**0.5)  # x neither grows nor dies away: no denormals
    x = torch.randn(size, size, device=device)
    return lambda: work(a, x)
"""


@pytest.fixture
def compared(scratch_repo, tmp_path: Path, frostline):
    """Run `frostline compare` on two revisions of a scratch repository and give the verdict on the step's time."""
    repo = scratch_repo(
        {"pyproject.toml": PYPROJECT, "honest_work.py": WORK.format(times=20)},
        {"honest_work.py": WORK.format(times=22)},
    )
    (tmp_path / "bench_honest.py").write_text(SUITE)

    def compare(base: str, head: str) -> Verdict:
        db = tmp_path / f"{base}-{head}.db"
        suite = tmp_path / "bench_honest.py"
        # One thread: with two on two cores, whatever else runs there would be measured.
        done = frostline("compare", base, head, "--repo", repo.path, "--suite", suite, "--db", db, "--threads", 1)
        assert done.returncode == 0, done.stdout + done.stderr
        with Store.open(db, create=False) as store:
            (verdict,) = [one for one in store.verdicts(store.session().id) if one.metric == "step_time"]
        assert brief(verdict) in done.stdout
        return verdict

    return compare


def test_the_same_code_is_never_called_faster_or_slower(compared):
    verdict = compared("HEAD~1", "HEAD~1")
    assert verdict.outcome in (Outcome.SAME, Outcome.INCONCLUSIVE), verdict.sentence
    assert "same code" in verdict.flags


def test_ten_percent_more_work_is_found(compared):
    verdict = compared("HEAD~1", "HEAD")
    if verdict.outcome is Outcome.INCONCLUSIVE:  # said aloud on a machine under load: ask once more
        verdict = compared("HEAD~1", "HEAD")
    assert verdict.outcome is Outcome.SLOWER, verdict.sentence
    assert 1.03 < verdict.effect < 1.25  # how near is measured by `make method`, on a machine without other tests
