"""The tests for pytest-benchmark."""

import planted
import pytest


@pytest.mark.parametrize("step", ["gemm", "norm", "python"])
def test_step(benchmark, step):
    """Each of the steps."""
    benchmark(getattr(planted, step)())
