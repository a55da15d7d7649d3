"""The norms without a GPU: the torch reference, and the Triton kernels in the interpreter, against float64."""

from __future__ import annotations

import math

import pytest
import torch
from norm_reference import EPS, doubles, eager_rms, error, exact, gradients, leaves, normalised
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from frostline.kernels.layout import row_stride
from frostline.kernels.norm import FusedAddRMSNorm, LayerNorm, RMSNorm, fused_add_rms_norm, layer_norm, rms_norm, tiles
from frostline.kernels.norm.layout import Norm

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Blocks that are not full, with rows left over in the last tile; full ones; a long row, which is cut into chunks in fp32.
SHAPES = [(5, 7), (3, 11, 100), (33, 256), (2, 8200)]
LONG = (2, 8200)


@pytest.fixture(params=["torch", "triton"])
def backend(request):
    if request.param == "torch":
        yield "torch"
        return
    if torch.cuda.is_available():
        pytest.skip("compiled, not interpreted, where there is a GPU: see test_norm_gpu")
    with tiles.interpreted():
        yield "triton"


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request, backend):
    if backend == "triton" and request.param == torch.bfloat16:
        pytest.skip("the interpreter cuts bf16 off instead of rounding it: see test_norm_gpu")
    return request.param


def as_accurate(ours, theirs, wanted, dtype):
    """At most 1.5 times the error of the same in torch; a tenth of a unit in the last place where torch has almost none."""
    for found, other, exactly in zip(ours, theirs, wanted, strict=True):
        assert found.shape == other.shape and found.dtype == dtype
        assert error(found, exactly) <= 1.5 * error(other, exactly) + 0.1 * torch.finfo(dtype).eps


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("mode", "offset"), [("llama", 0.0), ("gemma", 1.0), ("none", 0.5)])
def test_rms_norm_is_as_accurate_as_torch(backend, shape, dtype, mode, offset):
    tensors = leaves(shape, dtype, True)
    dy = torch.randn(shape).to(dtype)
    y = rms_norm(*tensors, EPS, offset, mode)
    eager = eager_rms(*tensors, offset, mode)
    double = doubles(tensors)
    wanted = exact(*double, offset=offset)
    as_accurate(
        (y, *gradients(y, tensors, dy)),
        (eager, *gradients(eager, tensors, dy)),
        (wanted, *gradients(wanted, double, dy.double())),
        dtype,
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_is_as_accurate_as_torch(backend, shape, dtype):
    tensors = leaves(shape, dtype, True, True)
    dy = torch.randn(shape).to(dtype)
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


@pytest.mark.parametrize("shape", [(33, 256), LONG])
@pytest.mark.parametrize("centred", [False, True])
def test_what_is_frozen_changes_no_bit_of_the_rest(backend, shape, centred):
    x, w, b = leaves(shape, torch.float32, True, True)
    dy = torch.randn(shape)

    def run(train_x, train_w, train_b):
        tensors = [t.detach().requires_grad_(flag) for t, flag in zip((x, w, b), (train_x, train_w, train_b), strict=True)]
        (layer_norm(*tensors, EPS) if centred else rms_norm(*tensors[:2], EPS)).backward(dy)
        return [t.grad for t in tensors]

    all_of_them = run(True, True, centred)
    some = [(True, False, False), (False, True, centred)]
    for needs in some if shape == LONG else [*some, (True, False, centred), (False, True, False), (True, True, False)]:
        for found, whole, asked in zip(run(*needs), all_of_them, needs, strict=True):
            assert torch.equal(found, whole) if asked else found is None


def test_frozen_computes_and_allocates_the_input_gradient_alone(live_bytes):
    x, w, b = leaves((2048, 1024), torch.float32, False, False)
    dy = torch.randn_like(x)
    sizes = {}
    for trained in (False, True):
        y = layer_norm(x, w.requires_grad_(trained), b.requires_grad_(trained), EPS)
        with live_bytes() as seen:
            seen.ignore(x, w, b, dy)
            y.backward(dy)
        sizes[trained] = seen.sizes.count(1024 * 4)
    assert sizes == {False: 0, True: 2}


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("shape", [(33, 256), LONG])
def test_fused_add_rms_norm(backend, shape, beside):
    dtype = torch.float32 if shape == LONG else torch.float16
    x, w = leaves(shape, dtype, True)
    r = torch.randn(shape).to(dtype).requires_grad_()
    dy, dtotal = torch.randn(2, *shape).to(dtype).unbind()
    y, total = fused_add_rms_norm(x, r, w, EPS)
    assert torch.equal(total, x + r)
    assert torch.equal(y, rms_norm(x + r, w, EPS))
    outputs, upstream = ([y, total], [dy, dtotal]) if beside else ([y], [dy])
    found = torch.autograd.grad(outputs, [x, r, w], upstream)
    whole, weight = doubles(((x + r).detach().requires_grad_(), w))
    wanted = torch.autograd.grad([exact(whole, weight), whole][: len(outputs)], [whole, weight], [t.double() for t in upstream])
    assert torch.equal(found[0], found[1])
    allowed = 0.75 * torch.finfo(dtype).eps
    assert error(found[0], wanted[0]) <= allowed and error(found[2], wanted[1]) <= allowed


def test_the_sum_alone_sends_its_gradient_through(backend):
    x, w = leaves((4, 16), torch.float32, True)
    r = torch.randn(4, 16).requires_grad_()
    dtotal = torch.randn(4, 16)
    _, total = fused_add_rms_norm(x, r, w, EPS)
    found = torch.autograd.grad(total, [x, r, w], dtotal, allow_unused=True)
    assert torch.equal(found[0], dtotal) and torch.equal(found[1], dtotal) and found[2] is None


def test_fused_add_takes_the_wider_dtype(backend):
    x, r = torch.randn(4, 32).bfloat16(), torch.randn(4, 32)
    y, total = fused_add_rms_norm(x, r, None, EPS)
    assert y.dtype == total.dtype == torch.float32 and torch.equal(total, x + r)


@pytest.mark.parametrize("centred", [False, True])
def test_scale_free(backend, centred):
    x = torch.randn(9, 50, requires_grad=True)
    dy = torch.randn(9, 50)
    y = layer_norm(x, None, None, EPS) if centred else rms_norm(x, None, EPS)
    double = x.detach().double().requires_grad_()
    wanted = exact(double, centred=centred)
    assert error(y, wanted) < 3e-7
    found, exactly = torch.autograd.grad(y, x, dy)[0], torch.autograd.grad(wanted, double, dy.double())[0]
    assert error(found, exactly) < 5e-7


def test_one_column(backend):
    x, w, b = leaves((6, 1), torch.float32, True, True)
    y = layer_norm(x, w, b, EPS)
    assert torch.equal(y, b.expand(6, 1))  # a single value has no deviation
    y.sum().backward()
    assert not x.grad.any() and not w.grad.any() and torch.equal(b.grad, torch.full((1,), 6.0))
    y = rms_norm(x, w, EPS)
    torch.testing.assert_close(y, exact(x.double(), w.double()).float())


@pytest.mark.parametrize("shape", [(0, 64), (0, 8200), (3, 0, 8)])
def test_empty_batch_reaches_the_parameters(backend, shape):
    x, w, b = leaves(shape, torch.bfloat16, True, True)
    layer_norm(x, w, b, EPS).sum().backward()
    assert x.grad.shape == shape and torch.equal(w.grad, torch.zeros_like(w)) and torch.equal(b.grad, torch.zeros_like(b))


def layouts():
    wide = torch.randn(2, 6, 3, 4, 32)
    return {
        "a slice of a projection": wide[:, :, 1],
        "heads before tokens": wide[:, :, 0].transpose(1, 2),
        "rows wider than they are read": wide[..., :20],
        "every other column": wide[..., ::2],
        "columns far apart": wide.transpose(-1, -2),
        "one row for all": wide[0, 0, 0, :1].expand(12, 32),
        "one value for a row": wide[:, :, 1, 1, :1].expand(2, 6, 32),
    }


@pytest.mark.parametrize("layout", layouts())
def test_layouts_of_inputs_and_upstream_gradients(backend, layout):
    given = layouts()[layout]
    dense = given.contiguous().requires_grad_()
    x = given.requires_grad_()
    w = torch.randn(x.shape[-1])
    for dy in (given.detach(), torch.ones(()).expand(given.shape)):
        found = torch.autograd.grad(rms_norm(x, w, EPS), x, dy)[0]
        assert torch.equal(found, torch.autograd.grad(rms_norm(dense, w, EPS), dense, dy.contiguous())[0])
    assert torch.equal(rms_norm(x, w, EPS), rms_norm(dense, w, EPS))


def test_row_stride_is_none_where_rows_are_not_evenly_spaced():
    wide = torch.empty(4, 6, 3, 32)
    assert row_stride(wide[:, :, 1]) == 96
    assert row_stride(wide[:, ::2, 1]) == 192
    assert row_stride(wide[:, :5, 1]) is None
    assert row_stride(wide[..., ::2]) is None
    assert row_stride(wide[:1, :1, 0]) == 32


def test_parameters_that_are_slices(backend):
    x = torch.randn(65, 48, requires_grad=True)
    w, b = torch.randn(2, 48, 3).requires_grad_()[:, :, 1]
    y = layer_norm(x, w, b, EPS)
    assert torch.equal(y, layer_norm(x, w.detach().contiguous(), b.detach().contiguous(), EPS))
    onto_w, onto_b = torch.autograd.grad(y.sum(), [w, b])
    torch.testing.assert_close(onto_w.double(), normalised(x.detach().double(), True).sum(0), rtol=1e-5, atol=1e-5)
    assert torch.equal(onto_b, torch.full_like(b, 65))


@pytest.mark.parametrize("in_place", [False, True])
def test_nothing_of_the_caller_is_written_and_a_graph_serves_twice(backend, in_place):
    x, w = leaves((12, 64), torch.float32, True)
    r = torch.randn(12, 64).requires_grad_()
    dy, dtotal = torch.randn(2, 12, 64).unbind()
    before = [t.detach().clone() for t in (x, r, dy, dtotal)]
    y, total = fused_add_rms_norm(x, r, w, EPS, in_place=in_place)
    z = rms_norm(total, w, EPS, in_place=in_place)
    first = torch.autograd.grad([y, z], [x, r, w], [dy, dtotal], retain_graph=True)
    second = torch.autograd.grad([y, z], [x, r, w], [dy, dtotal])
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(torch.equal(one, other) for one, other in zip((x, r, dy, dtotal), before, strict=True))


def test_the_weight_gradient_does_not_lose_precision_with_rows():
    x = torch.ones(4096, 8, dtype=torch.bfloat16)
    w = torch.ones(8, dtype=torch.bfloat16, requires_grad=True)
    rms_norm(x, w, 0.0).backward(torch.ones_like(x))
    assert torch.equal(w.grad, torch.full_like(w, 4096))  # a sum kept in bf16 stops at 256


def test_float64():
    tensors = leaves((6, 50), torch.float64, True, True)
    torch.testing.assert_close(layer_norm(*tensors, EPS), exact(*tensors, centred=True))
    assert torch.autograd.gradcheck(lambda x, w, b: layer_norm(x, w, b, EPS), tensors)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, EPS, 1.0, "gemma"), tensors[:2])
    r = torch.randn_like(tensors[0]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, r, w: fused_add_rms_norm(x, r, w, EPS, 0.0, "gemma"), (tensors[0], r, tensors[1]))


def test_a_second_derivative_is_refused():
    x, w = leaves((4, 16), torch.float32, True)
    (dx,) = torch.autograd.grad(rms_norm(x, w, EPS).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        dx.square().sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_grad_keeps_no_statistics(backend, monkeypatch, mode):
    x, w = leaves((9, 24), torch.float32, True)
    forward, kept = tiles.forward, []

    def watched(*args):
        results = forward(*args)
        kept.append(results[2])
        return results

    monkeypatch.setattr(tiles, "forward", watched)
    with mode():
        y = rms_norm(x, w, EPS)
        fused_add_rms_norm(x, x, w, EPS)
    assert kept == [None, None] and y.grad_fn is None
    assert torch.equal(y, rms_norm(x, w, EPS)) and kept[2].shape == (9,)


RMS, LAYER = Norm(EPS, 0.5, False, True), Norm(EPS, 0.0, True, False)


@pytest.mark.parametrize("norm", [RMS, LAYER], ids=["rms", "layer"])
def test_the_operators_keep_their_contract(norm):
    x, r, dy, dtotal = torch.randn(4, 6, 24).unbind()
    w, b = torch.randn(2, 24).unbind()
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    for residual, bias in ((None, b), (r, None)):
        torch.library.opcheck(torch.ops.frostline.norm.default, (x, residual, w, bias, *norm, True), test_utils=checks)
    stats = tiles.forward(x, None, w, b, norm, True)[2]
    for needs in ((True, None, None), (True, torch.float32, torch.float32), (False, torch.bfloat16, None)):
        args = (dy, dtotal, x, w, stats, *norm, *needs)
        torch.library.opcheck(torch.ops.frostline.norm_backward.default, args, test_utils=checks)


def test_fake_tensors_know_shapes_and_dtypes():
    with FakeTensorMode():
        x = torch.empty(3, 5, 64, dtype=torch.bfloat16, requires_grad=True)
        w = torch.empty(64, requires_grad=True)
        b = torch.empty(64, dtype=torch.bfloat16)
        y = layer_norm(x, w, b, EPS)
        dx, dw = torch.autograd.grad(y, [x, w], torch.empty_like(y))
    assert (y.shape, y.dtype) == (dx.shape, dx.dtype) == ((3, 5, 64), torch.bfloat16)
    assert (dw.shape, dw.dtype) == ((64,), torch.float32)


def test_the_way_through_the_operator_gives_the_same(live_bytes):
    x, w = leaves((5, 32), torch.bfloat16, True)
    r, dy, dtotal = torch.randn(3, 5, 32).bfloat16().unbind()

    def run():
        y, total = fused_add_rms_norm(x, r, w, EPS)
        return y, *torch.autograd.grad([y, total], [x, w], [dy, dtotal])

    direct = run()
    with live_bytes():  # a dispatch mode
        seen = run()
    assert all(torch.equal(one, other) for one, other in zip(direct, seen, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_checkpoint(reentrant):
    x, w, b = leaves((5, 32), torch.float32, True, True)

    def block(x):
        return layer_norm(rms_norm(x, w, EPS), w, b, EPS)

    expected = torch.autograd.grad(block(x).sum(), [x, w, b])
    checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    assert all(torch.equal(t.grad, wanted) for t, wanted in zip((x, w, b), expected, strict=True))


def test_function_transforms_are_refused_and_not_answered_wrongly():
    x, w = leaves((5, 32), torch.float32, False)
    with pytest.raises(RuntimeError, match="functorch transforms"):  # by torch, as for any operator registered as these are
        torch.func.grad(lambda x: rms_norm(x, w, EPS).square().sum())(x.detach())


def test_autocast_leaves_the_dtype_of_the_input():
    x, w = leaves((5, 32), torch.bfloat16, True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = rms_norm(x, w.detach().float(), EPS)
    assert y.dtype == torch.bfloat16 and torch.equal(y, rms_norm(x, w.detach().float(), EPS))


def test_modules():
    x, r = torch.randn(2, 5, 32).unbind()
    rms, layer, added = (
        RMSNorm(32, offset=1.0, casting_mode="gemma", init_fn="zeros"),
        LayerNorm(32, bias=True),
        FusedAddRMSNorm(32),
    )
    assert torch.equal(rms(x), rms_norm(x, torch.zeros(32), 1e-6, 1.0, "gemma"))
    assert torch.equal(layer(x), layer_norm(x, layer.weight, layer.bias, 1e-6))
    assert torch.equal(added(x, r)[0], rms(x + r))
    scale_free = RMSNorm(32, elementwise_affine=False)
    assert not list(scale_free.parameters()) and torch.equal(scale_free(x), rms(x))
    assert set(layer.state_dict()) == {"weight", "bias"} and set(rms.state_dict()) == {"weight"}
    assert "eps=1e-06" in repr(rms) and "eps=1e-06" in repr(layer) and "offset=0.0" in repr(added)


X = torch.zeros(2, 8)
MISTAKES = {
    "X: got torch.int64": lambda: rms_norm(X.long(), None, EPS),
    r"X: got shape \(\)": lambda: rms_norm(torch.zeros(()), None, EPS),
    r"X: got shape \(2, 0\)": lambda: rms_norm(torch.zeros(2, 0), None, EPS),
    r"W: got shape \(7,\) with X \(2, 8\), wanted \(8,\)": lambda: rms_norm(X, torch.zeros(7), EPS),
    r"B: got shape \(8, 1\)": lambda: layer_norm(X, None, torch.zeros(8, 1), EPS),
    "W: got torch.int32": lambda: rms_norm(X, torch.zeros(8, dtype=torch.int32), EPS),
    "W: got device meta": lambda: rms_norm(X, torch.zeros(8, device="meta"), EPS),
    r"W: got shape \(0,\) without values": lambda: rms_norm(X, torch.zeros(0), EPS),
    r"R: got shape \(1, 8\)": lambda: fused_add_rms_norm(X, X[:1], None, EPS),
    "R: got device meta": lambda: fused_add_rms_norm(X, X.to("meta"), None, EPS),
    "casting_mode: got 'bf16'": lambda: rms_norm(X, None, EPS, 0.0, "bf16"),
    "eps: got -1e-06, wanted a finite number of at least 0": lambda: layer_norm(X, None, None, -1e-6),
    "eps: got nan": lambda: rms_norm(X, None, math.nan),
    "eps: got inf": lambda: RMSNorm(8, eps=math.inf),
    "casting_mode: got 3": lambda: RMSNorm(8, casting_mode=3),
    "init_fn: got 'random'": lambda: FusedAddRMSNorm(8, init_fn="random"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        MISTAKES[message]()


def test_a_dtensor_is_refused():
    class DTensor(torch.Tensor):
        """Stands for torch's own, which needs a process group."""

    with pytest.raises(TypeError, match=r"X: got a DTensor.*to_local"):
        rms_norm(X.as_subclass(DTensor), None, EPS)
    with pytest.raises(TypeError, match="W: got a DTensor"):
        rms_norm(X, torch.ones(8).as_subclass(DTensor), EPS)
