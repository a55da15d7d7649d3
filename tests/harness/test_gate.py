"""The gate of this repository, on a scratch copy: what it must catch, what it must let pass, what is never a pass."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
POLICY = """
[tool.frostline.gate]
predicted = true
[tool.frostline.gate.suites.grpo]
preset = "paper"
axes = { vocab = [128256] }
[tool.frostline.gate.metrics]
peak_allocated = { byte_tolerance = 1048576 }
flops = {}
"""


@pytest.fixture
def copy(scratch_repo):
    """A repository with this one's files, its policy cut down to one vocabulary."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "kernels", "harness", "suites", "results"]
    listed += ["dashboards", "pyproject.toml", "README.md", "LICENSE"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    files = {name: (ROOT / name).read_text() for name in names if (ROOT / name).is_file()}
    files["pyproject.toml"] = files["pyproject.toml"].partition("[tool.frostline.gate]")[0] + POLICY
    return scratch_repo(files)


@pytest.fixture
def gate(frostline, copy, tmp_path):
    def run(*options: object, env=None):
        return frostline("gate", "--repo", copy.path, "--db", tmp_path / "gate.db", *options, env=env)

    return run


def replace(copy, name: str, before: str, after: str) -> None:
    text = (copy.path / name).read_text()
    assert before in text
    copy.write({name: text.replace(before, after)})


def test_a_frozen_weight_whose_gradient_is_computed_again_fails_and_is_named(copy, gate, tmp_path):
    replace(copy, "kernels/lm_head/autograd.py", "weight or not prune", "True")
    summary = tmp_path / "summary.md"
    done = gate(
        "--base",
        "HEAD",
        "--junit",
        tmp_path / "j.xml",
        "--json",
        tmp_path / "j.json",
        env={"GITHUB_STEP_SUMMARY": str(summary)},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Failed: something got worse" in done.stdout
    assert "grpo lm_head=frozen, flops (predicted): more." in done.stdout
    assert "grpo lm_head=frozen, peak_allocated (predicted): more." in done.stdout
    assert re.search(r"lm_head=frozen, flops .*TFLOP.* Most of it is \S+: \S+ TFLOP more", done.stdout)
    assert "lm_head=trainable, flops (predicted): more" not in done.stdout
    assert "### Failed: something got worse" in summary.read_text()
    failures = ElementTree.parse(tmp_path / "j.xml").getroot().iter("failure")
    assert len(list(failures)) == 2
    assert json.loads((tmp_path / "j.json").read_text())["exit_code"] == 1


STREAM = "    count, width = head.hidden.shape\n    result, rounded"


@pytest.mark.parametrize(
    ("name", "before", "after", "named"),
    [
        pytest.param(
            "kernels/lm_head/engine.py",
            STREAM,
            f"    copy = head.weight.float()\n{STREAM}",
            r"1\.957 GiB of \[128,256, 4,096\] float32, made by aten\._to_copy at \S+/engine\.py:\d+ stream",
            id="an fp32 copy of the weight",
        ),
        pytest.param(
            "kernels/lm_head/engine.py",
            STREAM,
            f"    logits = (head.hidden @ head.weight.t()).float()\n{STREAM}",
            r"3\.914 GiB of \[8,192, 128,256\] float32, made by aten\._to_copy at \S+/engine\.py:\d+ stream",
            id="an fp32 copy of the logits",
        ),
        pytest.param(
            "kernels/lm_head/known_loss.py",
            "        ctx.plan, ctx.empty =",
            "        ctx.states = hidden.float()\n        ctx.plan, ctx.empty =",
            r"128\.0 MiB of \[8,192, 4,096\] float32, made by aten\._to_copy at \S+/known_loss\.py:\d+ forward",
            id="a saved tensor kept alive",
        ),
        pytest.param(
            "kernels/lm_head/sizes.py",
            "        fused_columns=16896,",
            "        fused_columns=33792,",
            r"264\.0 MiB of \[4,096, 33,792\] bfloat16, made by aten\.empty at \S+/head\.py:\d+ empty",
            id="tiles that grew",
        ),
    ],
)
def test_memory_that_is_taken_again_fails_and_the_operator_is_named(copy, gate, name, before, after, named):
    replace(copy, name, before, after)
    copy.write(
        {"pyproject.toml": (copy.path / "pyproject.toml").read_text().replace("vocab =", 'lm_head = ["frozen"], vocab =')}
    )
    done = gate("--base", "HEAD")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"peak_allocated \(predicted\): more\. .* Alive at its peak and not before: {named}", done.stdout), (
        done.stdout
    )


def test_a_change_of_comments_passes(copy, gate):
    replace(copy, "kernels/lm_head/engine.py", "from __future__", "# A remark that changes nothing.\nfrom __future__")
    done = gate("--base", "HEAD")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed (4 same)" in done.stdout


def test_a_change_of_the_base_is_judged_from_where_the_branch_left(copy, gate):
    copy.git("checkout", "--quiet", "-b", "topic")
    copy.commit({"NOTES.md": "a remark\n"})
    done = gate()
    assert done.returncode == 0, done.stdout + done.stderr


def test_code_that_cannot_be_built_is_exit_4(copy, gate):
    copy.write(
        {"pyproject.toml": (copy.path / "pyproject.toml").read_text().replace("setuptools.build_meta", "no.such.backend")}
    )
    done = gate("--base", "HEAD")
    assert done.returncode == 4, done.stdout + done.stderr


def test_a_head_that_does_not_run_is_broken_not_passed(copy, gate):
    replace(copy, "kernels/lm_head/engine.py", "def stream(head", "def stream(no_such_argument, head")
    done = gate("--base", "HEAD")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "broken" in done.stdout


def test_a_suite_that_the_cost_model_cannot_price_is_never_a_pass(scratch_repo, frostline, tmp_path):
    project = '[build-system]\nrequires=["setuptools"]\nbuild-backend="setuptools.build_meta"\n'
    project += '[project]\nname="lib"\nversion="1"\n[tool.setuptools]\npy-modules=["lib"]\n'
    project += '[tool.frostline.gate]\npredicted = true\n[tool.frostline.gate.suites."bench.py"]\n'
    bench = (
        "import lib\nfrom frostline.harness import suite\n@suite()\ndef sums(implementation, device):\n    return lib.work\n"
    )
    files = {"pyproject.toml": project, "bench.py": bench, "lib.py": "def work():\n    return sum(range(2000))\n"}
    repo = scratch_repo(files, {"lib.py": "def work():\n    return sum(range(200000))\n"})
    done = frostline("gate", "--repo", repo.path, "--base", "HEAD~1", "--db", tmp_path / "gate.db")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "the cost model needs tensors" in done.stdout + done.stderr


def test_a_suite_in_a_file_is_gated(scratch_repo, frostline, tmp_path):
    project = '[build-system]\nrequires=["setuptools"]\nbuild-backend="setuptools.build_meta"\n'
    project += '[project]\nname="lib"\nversion="1"\n[tool.setuptools]\npy-modules=["lib"]\n'
    project += '[tool.frostline.gate]\npredicted = true\n[tool.frostline.gate.suites."bench.py"]\n'
    bench = "import lib, torch\nfrom frostline.harness import suite\n@suite()\ndef products(implementation, device):\n"
    bench += "    x = torch.randn(8, 8)\n    return lambda: lib.work(x)\n"
    files = {"pyproject.toml": project, "bench.py": bench, "lib.py": "def work(x):\n    return x @ x\n"}
    repo = scratch_repo(files, {"lib.py": "def work(x):\n    return x @ x @ x\n"})
    worse = frostline("gate", "--repo", repo.path, "--base", "HEAD~1", "--db", tmp_path / "gate.db")
    assert worse.returncode == 1 and "flops (predicted): more" in worse.stdout, worse.stdout + worse.stderr


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[tool.frostline.gate", "[tool.elsewhere", "has no [tool.frostline.gate]"),
        ("byte_tolerance", "bite_tolerance", "bite_tolerance"),
        ('preset = "paper"', 'preset = "big"', ": grpo has no preset 'big'"),
        ("vocab = [128256]", 'vocab = ["big"]', ": vocab takes a whole number, got 'big'"),
        ("suites.grpo", "suites.grpoo", "no suite 'grpoo' (did you mean grpo?)"),
    ],
)
def test_a_mistake_in_the_policy_is_exit_2(copy, gate, before, after, said):
    replace(copy, "pyproject.toml", before, after)
    done = gate("--base", "HEAD")
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("typed", [("--base", ""), ("--base", "HEAD", "--head", "")])
def test_an_empty_revision_is_a_mistake_and_not_the_default(gate, typed):
    """An unset variable of a CI job must not change what is compared."""
    done = gate(*typed)
    assert done.returncode == 2, done.stdout + done.stderr
    assert typed[-2] in done.stderr.splitlines()[-1]
