"""Before anything imports torch, and with it triton: without a GPU, Triton's kernels run in its interpreter."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, for its own library as well
