"""Triton kernels that are launched by hand while a step is predicted: noted, and never run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

MODULE = """
import torch, triton, triton.language as tl
from frostline.harness.cost import predict
from frostline.harness.declare import Step

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

tuned = triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])(double)

def build():
    x = torch.ones(1000)
    def run():
        out = torch.empty_like(x)
        double[(8,)](x, out, 1000, BLOCK=128)
        tuned[lambda meta: (8,)](x, out, 1000)
        return out
    return Step(run=run, omit=("flops",))

cost = predict(build)
print(cost.launches, dict(cost.figures))
"""


def test_launches_are_noted_and_their_memory_is_predicted(tmp_path: Path) -> None:
    file = tmp_path / "launching.py"  # Triton reads a kernel's source
    file.write_text(MODULE)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str({"double": 2}) + " " + str(
        {"peak_allocated": 8000.0, "peak_above_inputs": 4000.0, "operators": 1.0}
    )
