"""The norms compiled, on a real device: accuracy, pruning, layouts, graphs, sizes past 2^31 elements."""

from __future__ import annotations

import functools

import norm_reference
import pytest
import torch
from norm_reference import EPS, doubles, eager_rms, error, exact, gradients, normalised
from torch.nn import functional

from frostline.kernels.norm import RMSNorm, fused_add_rms_norm, layer_norm, rms_norm

pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
MODES = ["llama", "gemma", "none"]
SHAPES = [(1, 1), (5, 7), (3, 33, 100), (700, 128), (300, 256), (513, 1000), (64, 4096), (40, 5120), (33, 8192), (9, 16384)]
LONG = [(3, 20000), (5, 32768), (2, 131072), (3, 262144)]


leaves = functools.partial(norm_reference.leaves, device="cuda")


def as_accurate(ours, theirs, wanted, dtype):
    """At most 1.5 times the error of the same in torch; a hundredth of a unit in the last place where torch has almost none."""
    for found, other, exactly in zip(ours, theirs, wanted, strict=True):
        allowed = 1.5 * error(other, exactly) + 0.02 * torch.finfo(dtype).eps
        assert error(found, exactly) <= allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[-1] > 1] + LONG)
def test_rms_norm_is_as_accurate_as_torch(shape, offset, mode, dtype):
    tensors = leaves(shape, dtype, True)
    dy = torch.randn(shape, device="cuda").to(dtype)
    y = rms_norm(*tensors, EPS, offset, mode)
    eager = eager_rms(*tensors, offset, mode)
    double = doubles(tensors)
    wanted = exact(*double, offset=offset)
    as_accurate(
        (y, *gradients(y, tensors, dy)),
        (eager, *gradients(eager, tensors, dy.to(eager.dtype))),
        (wanted, *gradients(wanted, double, dy.double())),
        dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[-1] > 1] + LONG)
def test_layer_norm_is_as_accurate_as_torch(shape, dtype):
    tensors = leaves(shape, dtype, True, True)
    dy = torch.randn(shape, device="cuda").to(dtype)
    y = layer_norm(*tensors, EPS)
    eager = functional.layer_norm(tensors[0], shape[-1:], *tensors[1:], EPS)
    double = doubles(tensors)
    wanted = exact(*double, centred=True)
    as_accurate(
        (y, *gradients(y, tensors, dy)),
        (eager, *gradients(eager, tensors, dy)),
        (wanted, *gradients(wanted, double, dy.double())),
        dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(300, 256), (64, 4096), (3, 20000)])
@pytest.mark.parametrize("beside", [False, True])
def test_fused_add_rms_norm(shape, dtype, beside):
    x, w = leaves(shape, dtype, True)
    r = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    dy, dtotal = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    y, total = fused_add_rms_norm(x, r, w, EPS)
    assert torch.equal(total, x + r)
    separate = rms_norm(x + r, w, EPS)
    assert torch.equal(y, separate)
    outputs, upstream = ([y, total], [dy, dtotal]) if beside else ([y], [dy])
    found = torch.autograd.grad(outputs, [x, r, w], upstream)
    double = doubles((x, r, w))
    whole = (x + r).detach().double() + (double[0] + double[1]) - (double[0] + double[1]).detach()
    wanted = [exact(whole, double[2]), whole]
    exactly = torch.autograd.grad(wanted[: len(outputs)], double, [t.double() for t in upstream])
    for ours, theirs in zip(found, exactly, strict=True):
        assert error(ours, theirs) <= 0.75 * torch.finfo(dtype).eps + 1e-6
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, *LONG])
@pytest.mark.parametrize("centred", [False, True])
def test_what_is_frozen_changes_no_bit_of_the_input_gradient(shape, dtype, centred):
    x, w, b = leaves(shape, dtype, True, True)
    dy = torch.randn(shape, device="cuda").to(dtype)

    def run(train_w, train_b, train_x=True):
        one, weight, bias = x.detach(), w.detach(), b.detach()
        tensors = [one.requires_grad_(train_x), weight.requires_grad_(train_w), bias.requires_grad_(train_b)]
        y = layer_norm(*tensors, EPS) if centred else rms_norm(*tensors[:2], EPS)
        y.backward(dy)
        return [t.grad for t in tensors]

    dx, dw, db = run(True, True)
    for train_w, train_b in ((False, False), (True, False), (False, True)):
        if not (train_w or train_b) or centred or train_w:
            found = run(train_w, train_b)
            assert torch.equal(found[0], dx)
            assert (found[1] is None) == (not train_w) and (not train_w or torch.equal(found[1], dw))
            assert (found[2] is None) == (not (train_b and centred)) and (found[2] is None or torch.equal(found[2], db))
    frozen_x = run(True, False, train_x=False)
    assert frozen_x[0] is None and torch.equal(frozen_x[1], dw)


def test_frozen_allocates_the_input_gradient_alone():
    x, w, b = leaves((4096, 4096), torch.bfloat16, False, False)
    dy = torch.randn_like(x)
    y = layer_norm(x, w, b, EPS)
    torch.autograd.grad(y, x, dy, retain_graph=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(y, x, dy, retain_graph=True)
    assert torch.cuda.max_memory_allocated() - before == x.numel() * 2


def test_frozen_launches_one_kernel():
    x, w, b = leaves((256, 4096), torch.bfloat16, False, False)
    dy = torch.randn_like(x)
    y = layer_norm(x, w, b, EPS)
    torch.autograd.grad(y, x, dy, retain_graph=True)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.autograd.grad(y, x, dy)
        torch.cuda.synchronize()
    assert [e.name for e in profile.events() if "kernel" in e.name] == ["backward_kernel"]


def test_another_number_of_rows_compiles_nothing_and_skips_the_jit(monkeypatch):
    from frostline.kernels.norm import kernels_triton, launch

    _, w, b = leaves((1, 3072), torch.bfloat16, True, True)

    def run(rows, offset=0):
        x = torch.randn(rows * 3072 + offset, device="cuda", dtype=torch.bfloat16)[offset:].view(rows, 3072).requires_grad_()
        y = layer_norm(x, w, b, EPS)
        y.backward(torch.ones_like(x))
        return x, y

    def compiled():
        kernels = (kernels_triton.forward_kernel, kernels_triton.backward_walk_kernel, kernels_triton.reduce_kernel)
        return sum(len(cache[0]) for kernel in kernels for cache in kernel.device_caches.values())

    run(2000)
    before = compiled()

    def refuse(*_):
        raise AssertionError("went through the JIT")

    with monkeypatch.context() as patched:
        patched.setattr(launch.Launcher, "_through_the_jit", refuse)
        for rows in (1, 17, 640, 10000):
            run(rows)
    assert compiled() == before
    x, y = run(50, offset=1)  # not aligned: through the JIT, and right
    assert error(y, exact(x.detach().double(), w.detach().double(), b.detach().double(), centred=True)) < 4e-3


@pytest.mark.parametrize("centred", [False, True])
def test_past_2_to_the_31_elements(centred):
    x, w, b = leaves(((1 << 23) + 16, 256), torch.bfloat16, True, True)
    y = layer_norm(x, w, b, EPS) if centred else rms_norm(x, w, EPS)
    dy = torch.randn_like(x)
    y.backward(dy)
    last = x.detach()[-5:].double().requires_grad_()
    weight, bias = w.detach().double(), b.detach().double() if centred else None
    wanted = exact(last, weight, bias, centred=centred)
    wanted.backward(dy[-5:].double())
    assert error(y[-5:], wanted) < 4e-3 and error(x.grad[-5:], last.grad) < 4e-3
    sample = torch.zeros(256, device="cuda", dtype=torch.float64)
    for rows, up in zip(x.detach().split(1 << 21), dy.split(1 << 21), strict=True):
        sample += (normalised(rows.float(), centred).mul_(up)).sum(0, dtype=torch.float64)
    assert error(w.grad, sample) < 4e-3


def test_layouts():
    """A slice of a wider projection, a transposed input, an expanded upstream gradient."""
    wide = torch.randn(2, 64, 3, 8, 128, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(128, device="cuda", dtype=torch.bfloat16)
    for given in (
        wide[:, :, 1],
        wide[:, :, 0].transpose(1, 2),
        wide[..., :100],
        wide[:, :, :, ::2],
        wide.transpose(-1, -2)[:1, :9],
        wide[:, :, 1, 1, :1].expand(2, 64, 128),
    ):
        x = given.detach().requires_grad_()
        weight = w[: x.shape[-1]] if x.shape[-1] <= 128 else w
        y = rms_norm(x, weight, EPS)
        dense = x.detach().contiguous().requires_grad_()
        other = rms_norm(dense, weight, EPS)
        y.sum().backward()
        other.backward(torch.ones_like(other))
        assert torch.equal(y, other) and torch.equal(x.grad, dense.grad)


def test_parameters_that_are_slices():
    x = torch.randn(65, 128, device="cuda", dtype=torch.bfloat16).requires_grad_()
    w, b = torch.randn(2, 128, 3, device="cuda", dtype=torch.bfloat16).requires_grad_()[:, :, 1]
    y = layer_norm(x, w, b, EPS)
    dense = layer_norm(x, w.detach().contiguous(), b.detach().contiguous(), EPS)
    assert torch.equal(y, dense)
    found = torch.autograd.grad(y.sum(), [w, b])
    torch.testing.assert_close(found[0].double(), normalised(x.detach().double(), True).sum(0), rtol=4e-3, atol=4e-3)
    assert torch.equal(found[1], torch.full_like(b, 65))


def test_retained_graph_gives_the_same_twice_and_no_upstream_is_written():
    x, w = leaves((128, 4096), torch.bfloat16, True)
    y = rms_norm(x, w, EPS, 0.0, "llama", True)
    dy = torch.randn_like(x)
    before = dy.clone()
    first = torch.autograd.grad(y, [x, w], dy, retain_graph=True)
    second = torch.autograd.grad(y, [x, w], dy)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)) and torch.equal(dy, before)


@pytest.mark.parametrize("trained", [False, True])
def test_under_compile(trained):
    x, w, b = leaves((512, 4096), torch.bfloat16, trained, trained)

    def step(x, w, b):
        return layer_norm(rms_norm(x, w, EPS), w, b, EPS) * 2

    compiled = torch.compile(step, fullgraph=True)
    dy = torch.randn_like(x)
    tensors = (x, w, b)
    for ours, theirs in zip(gradients(compiled(*tensors), tensors, dy), gradients(step(*tensors), tensors, dy), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("trained", [False, True])
def test_in_a_cuda_graph(trained):
    norm = RMSNorm(4096).cuda().bfloat16().requires_grad_(trained)
    x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16).requires_grad_()
    dy = torch.randn_like(x)
    asked = [x, norm.weight] if trained else [x]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(norm(x), asked, dy)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = torch.autograd.grad(norm(x), asked, dy)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    for ours, theirs in zip(found, torch.autograd.grad(norm(x), asked, dy), strict=True):
        assert torch.equal(ours, theirs)


def test_float64_and_empty():
    x, w = leaves((6, 50), torch.float64, True)
    y = rms_norm(x, w, EPS, 0.5)
    torch.testing.assert_close(y, exact(x, w, offset=0.5))
    x, w = leaves((0, 64), torch.bfloat16, True)
    rms_norm(x, w, EPS).sum().backward()
    assert x.grad.shape == (0, 64) and torch.equal(w.grad, torch.zeros_like(w))
