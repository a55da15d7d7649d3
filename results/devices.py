"""GPUs by name: what one could do at best, for estimates on a machine that has none.

Rates are those of dense products with fp32 sums, as the makers publish them (half of the figures for 2:4 sparsity); that is
what torch's products use by default, where fp32 operands take no tensor cores. A rate is a roof: a large bf16 product on an
H200 reaches 70 to 75 % of it (`docs/gpu-results.md`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from frostline.results.record import UsageError


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        title: its name in full.
        memory: bytes, in the makers' decimal GB.
        bandwidth: of its memory, B/s.
        half: FLOP/s of bf16 and fp16 products. single: of fp32 ones.
        capability: of its generation, as CUDA counts them.
        source: where the figures stand.
    """

    title: str
    memory: float
    bandwidth: float
    half: float
    single: float
    capability: tuple[int, int]
    source: str

    def rate(self, dtype: str) -> float:
        """FLOP/s of products of a dtype; NaN for one that is not in the table."""
        rates: Mapping[str, float] = {"bfloat16": self.half, "float16": self.half, "float32": self.single}
        return rates.get(dtype, math.nan)

    def seconds(self, flops: float, moved: float, dtype: str) -> float:
        """The least time of an operator: that of its products, or of its bytes, whichever is more."""
        return max(flops / self.rate(dtype) if flops else 0.0, moved / self.bandwidth)


_T, _G = 1e12, 1e9
_HOPPER, _BLACKWELL = "H200 and H100 Tensor Core GPU datasheets", "NVIDIA RTX Blackwell GPU architecture whitepaper"
DEVICES: Mapping[str, Device] = {
    "b200": Device("B200 SXM", 180 * _G, 8.0 * _T, 2250 * _T, 75 * _T, (10, 0), "DGX B200 datasheet, an eighth of its figures"),
    "h200": Device("H200 SXM", 141 * _G, 4.8 * _T, 989.4 * _T, 66.9 * _T, (9, 0), f"NVIDIA {_HOPPER}"),
    "h100": Device("H100 SXM", 80 * _G, 3.35 * _T, 989.4 * _T, 66.9 * _T, (9, 0), f"NVIDIA {_HOPPER}"),
    "a100": Device("A100 SXM 80 GB", 80 * _G, 2.039 * _T, 312 * _T, 19.5 * _T, (8, 0), "NVIDIA A100 Tensor Core GPU datasheet"),
    "l40s": Device("L40S", 48 * _G, 0.864 * _T, 362.05 * _T, 91.6 * _T, (8, 9), "NVIDIA L40S datasheet"),
    "l4": Device("L4", 24 * _G, 0.3 * _T, 121 * _T, 30.3 * _T, (8, 9), "NVIDIA L4 datasheet"),
    "rtx5090": Device("GeForce RTX 5090", 32 * _G, 1.792 * _T, 209.5 * _T, 104.8 * _T, (12, 0), _BLACKWELL),
    "rtx4090": Device(
        "GeForce RTX 4090", 24 * _G, 1.008 * _T, 165.2 * _T, 82.6 * _T, (8, 9), "NVIDIA Ada GPU architecture whitepaper"
    ),
}


def gemm_workspace(capability: tuple[int, int]) -> int:
    """Bytes that a cuBLAS handle holds beside all tensors, in torch's allocator, from its first product on.

    torch has a handle for each thread that multiplies: the forward's, and autograd's own for the backward. 32 MiB on Hopper and
    later, `:4096:2:16:8` before, unless CUBLAS_WORKSPACE_CONFIG says otherwise. Source: torch's `test_cuda.py`,
    `test_cublas_workspace_explicit_allocation`.
    """
    return 32 * 2**20 if capability >= (9, 0) else (2 * 4096 + 8 * 16) * 2**10


def find_device(name: str) -> Device:
    """The device of a name, upper or lower case, with or without blanks.

    Raises:
        UsageError: there is none.
    """
    found = DEVICES.get(name.lower().replace(" ", "").replace("-", ""))
    if found is None:
        raise UsageError(f"--device: got {name!r}, wanted one of {', '.join(DEVICES)}")
    return found
