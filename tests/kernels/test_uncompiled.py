"""The compiler is neither loaded by the package nor let into the engine."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch._dynamo.testing import CompileCounter

from frostline.kernels import linear_logprob
from frostline.kernels.uncompiled import uncompiled


def test_the_package_does_not_load_the_compiler():
    script = "import sys, frostline.kernels; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", script], check=False).returncode == 0


def test_only_what_is_around_the_engine_is_compiled():
    hidden, weight, targets = torch.randn(6, 8), torch.randn(11, 8), torch.randint(11, (6,))
    counter = CompileCounter()
    torch.compiler.reset()  # what earlier tests compiled would be counted in one half alone

    @torch.compile(backend=counter)
    def step(states):
        return linear_logprob(torch.tanh(states), weight, targets) * 2

    step(hidden)
    around = counter.frame_count

    counter.clear()
    torch.compiler.reset()
    plain = uncompiled(lambda states: states.sum())

    @torch.compile(backend=counter)
    def same_around(states):
        return plain(torch.tanh(states)) * 2

    same_around(hidden)
    assert around <= counter.frame_count + 2  # the argument checks of linear_logprob, never its tiles
