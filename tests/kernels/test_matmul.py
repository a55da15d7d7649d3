"""Products with fp32 results: against float64, on every branch that a CPU can run."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frostline.kernels import matmul

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def wide_of(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_wide_product_sums_in_fp32(dtype, accumulate, device):
    a, b = torch.randn(7, 300, dtype=dtype), torch.randn(300, 11, dtype=dtype)
    out = torch.randn(7, 11, dtype=wide_of(dtype))
    wanted = a.double() @ b.double() + (out.double() if accumulate else 0)
    with matmul.target_device(device):
        matmul.mm_wide(a, b, out, accumulate=accumulate)
    assert (out - wanted).abs().max() < (1e-12 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("shape", [(5, 40, 3), (3, 5, 40), (40, 5, 3)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_slabs_cover_every_dimension(monkeypatch, shape, accumulate):
    monkeypatch.setattr(matmul, "_SLAB_ELEMENTS", 16)
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner, dtype=torch.bfloat16), torch.randn(columns, inner, dtype=torch.bfloat16).t()
    out = torch.ones(rows, columns)
    matmul.mm_wide(a, b, out, accumulate=accumulate)
    torch.testing.assert_close(out, a.float() @ b.float() + float(accumulate))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounded_product_rounds_once(dtype):
    a, b = torch.randn(9, 4096, dtype=dtype), torch.randn(4096, 5, dtype=dtype)
    out = torch.empty(9, 5, dtype=dtype)
    matmul.mm_rounded(a, b, out)
    exact = a.double() @ b.double()
    assert (out.double() - exact).norm() <= 1.05 * (exact.to(dtype).double() - exact).norm() + 1e-6 * exact.norm()


def test_nothing_summed_is_zero():
    out = torch.full((3, 4), 7.0)
    matmul.mm_wide(torch.empty(3, 0), torch.empty(0, 4), out)
    assert torch.equal(out, torch.zeros(3, 4))


def test_torch_counts_the_flops_of_the_wide_product():
    with FakeTensorMode(), FlopCounterMode(display=False) as counter, matmul.target_device("cuda"):
        a, b = torch.empty(8, 16, dtype=torch.bfloat16), torch.empty(16, 4, dtype=torch.bfloat16)
        out = torch.empty(8, 4)
        matmul.mm_wide(a, b, out)
        matmul.mm_wide(a, b, out, accumulate=True)
    assert counter.get_total_flops() == 2 * (2 * 8 * 16 * 4)
    assert set(matmul.FLOP_FORMULAS) == {torch.ops.frostline.mm_wide}


def test_target_device_is_undone():
    tensor = torch.empty(1)
    with matmul.target_device("cuda"):
        assert matmul.device_kind(tensor) == "cuda"
        with matmul.target_device("cpu"):
            assert matmul.device_kind(tensor) == "cpu"
        assert matmul.device_kind(tensor) == "cuda"
    assert matmul.device_kind(tensor) == "cpu"
