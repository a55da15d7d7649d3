"""The suite of the self-comparison: three kinds of work on a CPU, two on a GPU, and no torch in the Python step's process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from frostline.harness.declare import Skipped
from frostline.harness.selection import default_preset, select
from frostline.suites.noise import noise


def test_cases():
    def steps(device):
        return [case.params["step"] for case in select(noise, default_preset(noise, device), [])]

    assert steps("cpu") == ["matmul", "elementwise", "python"]
    assert steps("cuda") == ["matmul", "elementwise"]


@pytest.mark.parametrize("step", ["matmul", "elementwise", "python"])
def test_each_step_does_the_same_work_again(step):
    run = noise.function("step", "cpu", step=step)
    first, again = run(), run()
    assert first is again or first == again


def test_python_is_skipped_on_a_gpu():
    with pytest.raises(Skipped):
        noise.function("step", "cuda", step="python")


def test_the_python_step_imports_no_torch():
    code = "import sys; from frostline.suites.noise import noise; noise.function('step', 'cpu', step='python')(); "
    done = subprocess.run([sys.executable, "-P", "-c", code + "sys.exit('torch' in sys.modules)"], check=False)
    assert done.returncode == 0
