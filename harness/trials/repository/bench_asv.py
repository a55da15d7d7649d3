"""The benchmarks for asv."""

import planted


class Steps:
    """Each of the steps."""

    params = ["gemm", "norm", "python"]
    param_names = ["step"]

    def setup(self, step):
        """Build it."""
        self.step = getattr(planted, step)()

    def time_step(self, _step):
        """Run it."""
        self.step()
