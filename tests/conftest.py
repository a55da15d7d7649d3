"""Set before anything is imported: without a GPU, Triton's kernels run in its interpreter; and nothing asks a model hub."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers, datasets and TRL heed it too

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, for its own library as well
