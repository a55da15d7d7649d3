"""Rotary embeddings and SwiGLU without a GPU, in torch and in Triton's interpreter, against float64."""

from __future__ import annotations

import pytest
import torch
from norm_reference import doubles, error
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from frostline.kernels import SwiGLUMLP, apply_rotary_pos_emb, swiglu
from frostline.kernels.layout import row_stride
from frostline.kernels.pointwise import tiles

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=["torch", "triton"])
def backend(request):
    if request.param == "torch":
        yield "torch"
        return
    if torch.cuda.is_available():
        pytest.skip("compiled, not interpreted, where there is a GPU: see test_pointwise_gpu")
    with tiles.interpreted():
        yield "triton"


def skip_bf16(backend, dtype):
    if backend == "triton" and dtype == torch.bfloat16:
        pytest.skip("the interpreter cuts bf16 off instead of rounding it: see test_pointwise_gpu")


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def eager_rope(q, k, cos, sin, dim=1):
    """As models write it in torch."""
    cos, sin = cos.unsqueeze(dim), sin.unsqueeze(dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def eager_swiglu(gate, up):
    return functional.silu(gate) * up


def as_models_have(batch, heads, tokens, width, dtype):
    """[B, heads, S, D], a view of [B, S, heads, D], as a projection leaves it."""
    return torch.randn(batch, tokens, heads, width).to(dtype).requires_grad_().transpose(1, 2)


def compare(found, plain, truth, asked, upstream):
    """Outputs and gradients are at most 1.5 times as far from float64 as plain torch's (fp32: and than a rounding)."""
    floor = {torch.float32: 1e-7}.get(asked[0][0].dtype, 0.0)
    for one, other, exact in zip(found, plain, truth, strict=True):
        assert one.dtype == other.dtype and one.shape == exact.shape
        assert error(one, exact) <= max(1.5 * error(other, exact), floor)
    gradients = [
        torch.autograd.grad(outputs, leaves, [dy.to(outputs[0].dtype) for dy in upstream], allow_unused=True)
        for outputs, leaves in zip((found, plain, truth), asked, strict=True)
    ]
    for one, other, exact in zip(*gradients, strict=True):
        assert error(one, exact) <= max(1.5 * error(other, exact), floor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 4, 2, 5, 16), (1, 3, 3, 7, 10), (1, 17, 1, 3, 8)])
@pytest.mark.parametrize("form", ["view", "contiguous", "heads last", "last dimension strided"])
def test_rope(backend, dtype, shape, form):
    skip_bf16(backend, dtype)
    batch, q_heads, k_heads, tokens, width = shape
    q, k = (as_models_have(batch, heads, tokens, width, dtype).detach() for heads in (q_heads, k_heads))
    cos, sin = (torch.randn(1 if batch > 1 else batch, tokens, width).to(dtype) for _ in range(2))
    dim = 1
    if form == "contiguous":
        q, k = q.contiguous(), k.contiguous()
    elif form == "heads last":
        q, k, dim = q.transpose(1, 2), k.transpose(1, 2), 2
    elif form == "last dimension strided":
        q, k = (torch.stack((x, x), dim=-1)[..., 0] for x in (q, k))
    q.requires_grad_(), k.requires_grad_()
    exact = doubles((q, k))
    upstream = [torch.randn(x.shape).to(dtype) for x in (q, k)]
    found, plain = apply_rotary_pos_emb(q, k, cos, sin, dim), eager_rope(q, k, cos, sin, dim)
    assert all(one.stride() == torch.empty_like(x).stride() for one, x in zip(found, (q, k), strict=True))
    compare(found, plain, eager_rope(*exact, cos.double(), sin.double(), dim), [(q, k), (q, k), exact], upstream)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 2100), (1, 4096)])
@pytest.mark.parametrize("form", ["contiguous", "halves", "transposed", "mixed"])
def test_swiglu(backend, dtype, shape, form):
    skip_bf16(backend, dtype)
    gate, up = (torch.randn(shape).mul(3).to(dtype) for _ in range(2))
    if form == "halves":
        gate, up = torch.cat((gate, up), dim=-1).chunk(2, dim=-1)
        assert row_stride(gate) == 2 * shape[-1] or shape[0] == 1
    elif form in ("transposed", "mixed"):
        gate = gate.transpose(0, -1)
        up = up.transpose(0, -1) if form == "transposed" else up.transpose(0, -1).contiguous()
    gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
    exact = doubles((gate, up))
    found = swiglu(gate, up)
    assert found.stride() == torch.empty_like(gate).stride()
    upstream = [torch.randn(gate.shape).to(dtype)]
    compare([found], [eager_swiglu(gate, up)], [eager_swiglu(*exact)], [(gate, up), (gate, up), exact], upstream)


@pytest.mark.parametrize("trained", [(True, False), (False, True)])
def test_what_is_frozen_gets_no_gradient_and_changes_no_bit_of_the_rest(backend, trained):
    table = torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    for make, shape in ((swiglu, (6, 40)), (lambda q, k: apply_rotary_pos_emb(q, k, *table), (2, 3, 5, 8))):
        a, b = torch.randn(shape), torch.randn(shape)

        def gradients(flags, make=make, a=a, b=b):
            leaves = [x.clone().requires_grad_(flag) for x, flag in zip((a, b), flags, strict=True)]
            y = make(*leaves)
            (y if isinstance(y, torch.Tensor) else sum(y)).square().sum().backward()
            return [x.grad for x in leaves]

        both, some = gradients((True, True)), gradients(trained)
        for whole, part, flag in zip(both, some, trained, strict=True):
            assert part is None if not flag else torch.equal(whole, part)


def test_only_what_is_asked_for_is_computed(backend, monkeypatch):
    asked = []
    module = tiles._backends.of(torch.zeros(1))
    real = module.swiglu_backward, module.rotate
    monkeypatch.setattr(module, "swiglu_backward", lambda *args: asked.append(args[3:]) or real[0](*args))
    monkeypatch.setattr(module, "rotate", lambda *args: asked.append([x is None for x in args[:2]]) or real[1](*args))
    gate, up = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    swiglu(gate, up).sum().backward()
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 1, 3, 4, requires_grad=True)
    sum(x.sum() for x in apply_rotary_pos_emb(q, k, torch.ones(3, 4), torch.ones(3, 4))).backward()
    assert asked == [(True, False), [False, False], [True, False]]


def test_a_forward_can_be_differentiated_twice_over(backend):
    gate, up = (torch.randn(3, 50, requires_grad=True) for _ in range(2))
    kept = gate.detach().clone(), up.detach().clone()
    y = swiglu(gate, up)
    first = torch.autograd.grad(y.sum(), (gate, up), retain_graph=True)
    second = torch.autograd.grad(y.sum(), (gate, up))
    assert all(map(torch.equal, first, second)) and all(map(torch.equal, kept, (gate, up)))
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(torch.autograd.grad(swiglu(gate, up).square().sum(), gate, create_graph=True)[0].sum(), gate)


def test_a_rotation_is_its_own_derivative():
    q, k = (torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    cos, sin = (torch.randn(3, 4, dtype=torch.float64) for _ in range(2))
    assert torch.autograd.gradcheck(lambda q, k: apply_rotary_pos_emb(q, k, cos, sin), (q, k))
    assert torch.autograd.gradgradcheck(lambda q, k: apply_rotary_pos_emb(q, k, cos, sin), (q, k))


def test_nothing_and_one_row(backend):
    empty = torch.zeros(0, 6, requires_grad=True)
    swiglu(empty, empty).sum().backward()
    assert empty.grad.shape == (0, 6)
    none = torch.zeros(0, 2, 3, 4, requires_grad=True)
    rotated = apply_rotary_pos_emb(none, none, torch.ones(3, 4), torch.ones(3, 4))
    assert [x.shape for x in rotated] == [none.shape] * 2
    assert swiglu(torch.ones(1), torch.ones(1)).item() == pytest.approx(functional.silu(torch.ones(1)).item())


@pytest.mark.parametrize("value", [200.0, -200.0, torch.inf, -torch.inf, torch.nan])
def test_the_ends_of_the_range(backend, value):
    gate, up = torch.full((2, 3), value, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    other = gate.detach().clone().requires_grad_(), up.detach().clone().requires_grad_()
    swiglu(gate, up).sum().backward()
    eager_swiglu(*other).sum().backward()
    for one, wanted in ((swiglu(gate, up), eager_swiglu(*other)), (up.grad, other[1].grad)):
        torch.testing.assert_close(one, wanted, equal_nan=True)


def test_an_expanded_upstream_gradient(backend):
    gate, up = (torch.randn(3, 8, requires_grad=True) for _ in range(2))
    swiglu(gate, up).sum().backward()
    wanted = torch.autograd.grad(eager_swiglu(gate, up).sum(), (gate, up))
    torch.testing.assert_close((gate.grad, up.grad), wanted)


def test_autocast_and_the_compiler():
    gate, up = torch.randn(4, 8).bfloat16().requires_grad_(), torch.randn(4, 8).bfloat16()
    with torch.autocast("cpu", dtype=torch.float16):
        assert swiglu(gate, up).dtype == torch.bfloat16
    compiled = torch.compile(swiglu, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(gate, up), swiglu(gate, up))
    q, k = torch.randn(2, 3, 5, 8, requires_grad=True), torch.randn(2, 1, 5, 8, requires_grad=True)
    cos, sin = torch.randn(5, 8), torch.randn(5, 8)
    compiled = torch.compile(apply_rotary_pos_emb, backend="aot_eager", fullgraph=True)
    for one, other in zip(compiled(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert torch.equal(one, other)


def test_fake_tensors_have_the_shapes_and_strides_of_real_ones():
    def run(kind):
        gate, up = torch.randn(6, 4).t(), torch.randn(4, 6)
        q, k = torch.randn(2, 5, 3, 8).transpose(1, 2), torch.randn(2, 1, 5, 16)[..., ::2]
        outs = swiglu(gate, up), *apply_rotary_pos_emb(q, k, torch.ones(5, 8), torch.ones(5, 8))
        outs += torch.ops.frostline.swiglu_backward(gate, gate, up, True, True)
        return [(tuple(x.shape), x.stride(), x.dtype) for x in outs]

    with FakeTensorMode():
        fake = run("fake")
    assert fake == run("real")


class Config:
    hidden_size, intermediate_size, hidden_activation = 8, 24, "silu"


def test_the_mlp_is_the_gated_one():
    mlp, x = SwiGLUMLP(Config()), torch.randn(2, 3, 8)
    wanted = mlp.down_proj(functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    torch.testing.assert_close(mlp(x), wanted)
    assert [name for name, _ in mlp.named_parameters()] == ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]


class Gelu(Config):
    hidden_activation = "gelu"


Q, TABLE = torch.zeros(2, 3, 5, 8), torch.zeros(5, 8)
MISTAKES = {
    r"up: got shape \(2, 4\), wanted \(2, 3\)": lambda: swiglu(torch.zeros(2, 3), torch.zeros(2, 4)),
    "up: got torch.float16, wanted torch.float32": lambda: swiglu(torch.zeros(2), torch.zeros(2).half()),
    "gate: got torch.int64": lambda: swiglu(torch.zeros(2).long(), torch.zeros(2)),
    "up: got device meta": lambda: swiglu(torch.zeros(2), torch.zeros(2, device="meta")),
    "config: got the activation 'gelu'": lambda: SwiGLUMLP(Gelu()),
    "unsqueeze_dim: got 3": lambda: apply_rotary_pos_emb(Q, Q, TABLE, TABLE, 3),
    r"q: got shape \(2, 3, 5, 7\), wanted \[B, heads, S, D\] with an even D": lambda: apply_rotary_pos_emb(
        Q[..., :7], Q, TABLE, TABLE
    ),
    r"k: got shape \(2, 3, 4, 8\) with q": lambda: apply_rotary_pos_emb(Q, Q[:, :, :4], TABLE, TABLE),
    r"cos: got shape \(5, 4\) with q .* wanted \(2, 5, 8\), \(1, 5, 8\) or \(5, 8\)": lambda: apply_rotary_pos_emb(
        Q, Q, TABLE[:, :4], TABLE
    ),
    r"sin: got shape \(1, 5, 8\)": lambda: apply_rotary_pos_emb(Q, Q, TABLE, TABLE[None]),
    "sin: got one that requires a gradient": lambda: apply_rotary_pos_emb(Q, Q, TABLE, TABLE.clone().requires_grad_()),
    "k: got torch.int32": lambda: apply_rotary_pos_emb(Q, Q.int(), TABLE, TABLE),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    with pytest.raises((ValueError, TypeError), match=message):
        MISTAKES[message]()
