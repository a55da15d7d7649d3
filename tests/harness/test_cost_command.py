"""`frostline cost` as typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_the_command_tells_what_a_figure_is_made_of(frostline: Callable[..., Any], tmp_path: Any) -> None:
    options = ["--preset", "small", "--set", "vocab=4096", "--set", "lm_head=frozen", "--implementations", "pruned,torch"]
    markdown = tmp_path / "cost.md"
    command = ["cost", "grpo", *options, "--device", "h200", "--detail", "--top", "3", "--markdown", markdown]
    done = frostline(*command, "--db", tmp_path / "f.db")
    assert done.returncode == 0, done.stderr
    flat = " ".join(done.stdout.split())
    assert "time at best, H200 SXM" in flat and "an estimate, and the least it can be" in flat
    assert "figures of the H200 SXM: NVIDIA H200" in flat
    assert "pruned: peak " in flat and "reached at operator " in flat and "frostline/kernels/lm_head/engine.py:" in flat
    assert "frostline.mm_wide" in flat or "aten.mm" in flat
    assert markdown.read_text().count("|---") > 4
    assert "worker.py" not in flat


def test_the_command_refuses_a_device_that_it_does_not_know(frostline: Callable[..., Any], tmp_path: Any) -> None:
    done = frostline("cost", "grpo", "--preset", "small", "--device", "abacus", "--db", tmp_path / "f.db")
    assert done.returncode == 2
    assert "--device: got 'abacus'" in done.stderr
