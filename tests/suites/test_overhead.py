"""The suite of what a process costs: every step is a whole process that did all that a round asks, and none is left behind."""

from __future__ import annotations

import atexit
import subprocess
import sys

import pytest

from frostline.harness import Step
from frostline.harness.declare import Skipped
from frostline.harness.isolation import Process
from frostline.suites import overhead as module
from frostline.suites.overhead import overhead


@pytest.fixture
def lives(monkeypatch):
    """What is asked of each process, and those that were started; none may be left at the end."""
    asked, started, leaving = [], [], []
    plain = Process.ask

    def ask(process, do, **request):
        started.append(process)
        asked.append(do)
        return plain(process, do, **request)

    monkeypatch.setattr(Process, "ask", ask)
    monkeypatch.setattr(atexit, "register", leaving.append)
    yield asked, started
    for leave in leaving:
        leave()
    assert all(process._handle.poll() is not None for process in started)


@pytest.mark.parametrize("implementation", ["spawn", "fork"])
def test_a_step_is_the_life_of_a_process(lives, implementation):
    asked, started = lives
    step = overhead.function(implementation, "cpu", imports="nothing")
    asked.clear()
    step.run()
    assert asked == ["build", *["block"] * 21, "finish"]
    assert started[-1].isolation == implementation and started[-1]._handle.poll() == 0
    before = started[-1].pid
    step.run()
    assert started[-1].pid != before


def test_the_imports_alone_are_those_of_the_empty_suites():
    for imports, file in module._SUITES.items():
        loads = f"import sys, {module._BARE[imports]}; bare = set(sys.modules); from frostline.harness import selection; "
        loads += f"before = set(sys.modules); selection.load_suite({file!r}); print(*set(sys.modules) - before)"
        done = subprocess.run([sys.executable, "-P", "-c", loads], capture_output=True, text=True, check=True)
        assert all(name.startswith("_frostline_suite_") for name in done.stdout.split()), done.stdout


def test_a_bare_interpreter_that_fails_is_no_time(monkeypatch):
    monkeypatch.setitem(module._BARE, "nothing", "no_such_module")
    step = overhead.function("imports", "cpu", imports="nothing")
    assert isinstance(step, Step)
    with pytest.raises(subprocess.CalledProcessError):
        step.run()


def test_it_is_skipped_where_it_cannot_be(monkeypatch, tmp_path):
    with pytest.raises(Skipped, match="--device cpu"):
        overhead.function("spawn", "cuda", imports="nothing")
    monkeypatch.setattr(module, "TASKS", tmp_path / "nowhere")
    with pytest.raises(Skipped, match="nothing is forked"):
        overhead.function("fork", "cpu", imports="nothing")


def test_bars_of_both_ways():
    asked = {(bar.side, bar.where["imports"], bar.against): bar.at_most for bar in overhead.bars}
    assert asked == {
        ("fork", "nothing", ""): 0.15e9,
        ("fork", "torch", ""): 0.15e9,
        ("spawn", "nothing", "imports"): 1.5,
        ("spawn", "torch", "imports"): 1.5,
    }
