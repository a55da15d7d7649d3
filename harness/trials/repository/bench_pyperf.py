"""The script for pyperf."""

import planted
import pyperf

runner = pyperf.Runner()
for step in ("gemm", "norm", "python"):
    runner.bench_func(step, getattr(planted, step)())
