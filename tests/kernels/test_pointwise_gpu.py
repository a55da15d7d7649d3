"""Rotary embeddings and SwiGLU compiled, on a real device: accuracy, layouts, graphs, sizes past 2^31 elements."""

from __future__ import annotations

import pytest
import torch
from norm_reference import doubles, error
from torch.nn import functional

from frostline.kernels import apply_rotary_pos_emb, swiglu

pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def eager_rope(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def half(x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)

    return q * cos + half(q) * sin, k * cos + half(k) * sin


def as_accurate(make, eager, leaves, dtype):
    """Outputs and gradients at most 1.5 times as far from float64 as plain torch's."""
    exact = doubles(leaves)
    outs = [f(*given) for f, given in ((make, leaves), (eager, leaves), (eager, exact))]
    upstream = [torch.randn_like(y) for y in outs[0]]
    for results, given in zip(outs, (leaves, leaves, exact), strict=True):
        results.extend(torch.autograd.grad(results, given, [dy.to(results[0].dtype) for dy in upstream]))
    for found, other, exactly in zip(*outs, strict=True):
        assert error(found, exactly) <= 1.5 * error(other, exactly) + 0.02 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 52, 4, 300, 128), (1, 3, 3, 7, 10), (1, 16, 16, 1000, 64)])
@pytest.mark.parametrize("transposed", [True, False])
def test_rope_is_as_accurate_as_torch(shape, transposed, dtype):
    batch, q_heads, k_heads, tokens, width = shape
    angles = torch.rand(1, tokens, width, device="cuda") * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    leaves = []
    for heads in (q_heads, k_heads):
        x = torch.randn(batch, tokens, heads, width, device="cuda").to(dtype).transpose(1, 2)
        leaves.append((x if transposed else x.contiguous()).requires_grad_())

    def eager(q, k):
        return list(eager_rope(q, k, cos.to(q.dtype), sin.to(q.dtype)))

    as_accurate(lambda q, k: list(apply_rotary_pos_emb(q, k, cos, sin)), eager, leaves, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (64, 4097), (2, 300, 19968)])
@pytest.mark.parametrize("halves", [True, False])
def test_swiglu_is_as_accurate_as_torch(shape, halves, dtype):
    whole = torch.randn(*shape[:-1], 2 * shape[-1], device="cuda").mul(3).to(dtype)
    gate, up = (x if halves else x.contiguous() for x in whole.chunk(2, dim=-1))
    leaves = [gate.detach().requires_grad_(), up.detach().requires_grad_()]
    as_accurate(lambda g, u: [swiglu(g, u)], lambda g, u: [functional.silu(g) * u], leaves, dtype)


def test_more_than_two_to_the_31_elements():
    rows, columns = 2**17 + 3, 2**14
    gate = torch.full((rows, columns), 0.5, device="cuda", dtype=torch.bfloat16)
    gate[-1] = 2.0
    y = swiglu(gate, gate)
    assert torch.equal(y[-1], functional.silu(gate[-1]) * gate[-1])
    flat = swiglu(gate.view(-1), gate.view(-1))
    assert torch.equal(flat[-columns:], y[-1])
    del flat, y
    q = gate[: 2**17 + 1].view(2**17 + 1, 1, 128, 128)
    cos, sin = torch.zeros(128, 128, device="cuda").bfloat16(), torch.ones(128, 128, device="cuda").bfloat16()
    rotated = apply_rotary_pos_emb(q, q[:, :, :, :], cos, sin)[0]
    assert torch.equal(rotated[-1, 0, -1, :64], -q[-1, 0, -1, 64:])


def test_a_graph_and_the_compiler_take_them_whole():
    gate, up = (torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    compiled = torch.compile(swiglu, fullgraph=True)
    assert torch.equal(compiled(gate, up), swiglu(gate, up))
    found = torch.autograd.grad(compiled(gate, up).sum(), (gate, up))
    assert all(map(torch.equal, found, torch.autograd.grad(swiglu(gate, up).sum(), (gate, up))))
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = swiglu(gate, up)
    graph.replay()
    assert torch.equal(y, swiglu(gate, up))
