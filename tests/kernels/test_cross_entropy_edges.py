"""`linear_cross_entropy` at the edges: sizes, labels, extreme logits, layouts and what ignored rows may hold."""

from __future__ import annotations

import itertools

import pytest
import torch
from cross_entropy_reference import Problem, eager

from frostline.kernels import linear_cross_entropy
from frostline.kernels.lm_head.plan import override
from frostline.kernels.matmul import target_device

TRAINED, FROZEN = (True, True, True), (True, False, False)
HEADS = pytest.mark.parametrize("needs", [TRAINED, FROZEN], ids=["trainable", "frozen"])
KINDS = pytest.mark.parametrize("kind", ["cpu", "cuda"])
SMOOTH = {"label_smoothing": 0.1, "lse_square_scale": 0.01}


@pytest.fixture(params=[{}, {"row_block": 4, "vocab_tile": 128}], ids=["one tile", "many tiles"])
def tiling(request):
    with override(**request.param):
        yield


# --- Sizes -----------------------------------------------------------------------------------------------------------------


@KINDS
@HEADS
@pytest.mark.parametrize("options", [{}, {**SMOOTH, "ce_weight": True, "reduction": "none"}], ids=["plain", "options"])
@pytest.mark.parametrize("vocab", [2, 3, 65, 2049, 262_144])
def test_vocabularies(vocab, options, needs, kind):
    """From the smallest to the largest; the labels are in the first and in the last column too."""
    problem = Problem((3,), 4, vocab, needs=needs, **options)
    problem.targets = torch.tensor([0, vocab - 1, vocab // 2])
    with target_device(kind):
        problem.check()


@HEADS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_token(dtype, needs):
    for reduction, kind in itertools.product(("mean", "none"), ("cpu", "cuda")):
        with target_device(kind):
            Problem((1,), 16, 67, dtype, needs=needs, reduction=reduction).check(luck=torch.finfo(dtype).eps)


@HEADS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(0,), (0, 7), (3, 0)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_token(reduction, shape, dtype, needs):
    """A loss of 0 and gradients of 0: a process whose batch is empty must not keep the others waiting."""
    problem = Problem(shape, dtype=dtype, needs=needs, reduction=reduction, lse_square_scale=0.1)
    found = problem.ours()
    assert found.output.loss.shape == (shape if reduction == "none" else ())
    assert found.output.predicted_tokens.shape == shape
    assert found.output.loss.sum() == 0 and found.output.z_loss.sum() == 0
    for gradient, leaf, need in zip(found.gradients, problem.leaves(), needs, strict=True):
        assert (gradient is not None) == need
        assert gradient is None or torch.equal(gradient, torch.zeros_like(leaf))


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3), ()], ids=str)
def test_shapes(shape):
    """As many dimensions as there are, none included."""
    for reduction in ("mean", "none"):
        Problem(shape, reduction=reduction).check()


# --- Labels ----------------------------------------------------------------------------------------------------------------


@KINDS
@HEADS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.usefixtures("tiling")
def test_all_labels_ignored(reduction, dtype, needs, kind):
    """The loss is a finite 0 and the backward reaches every parameter with zeros, or distributed training hangs."""
    problem = Problem(dtype=dtype, needs=needs, reduction=reduction, ce_weight=True, **SMOOTH)
    problem.targets.fill_(-100)
    problem.hidden.fill_(float("nan"))
    with target_device(kind):
        found = problem.ours()
    for value in (found.output.loss, found.output.z_loss, found.output.token_accuracy):
        assert torch.equal(value, torch.zeros_like(value))
    assert (found.output.predicted_tokens == -1).all()
    for gradient, leaf, need in zip(found.gradients, problem.leaves(), needs, strict=True):
        assert (gradient is not None) == need
        assert gradient is None or torch.equal(gradient, torch.zeros_like(leaf))


@KINDS
@HEADS
@pytest.mark.parametrize("declared", [None, "exactly", "more", "all"])
@pytest.mark.usefixtures("tiling")
def test_ignored_rows_hold_garbage(declared, needs, kind):
    """NaN in them reaches nothing, however many rows are declared to count."""
    for reduction in ("mean", "none"):
        problem = Problem((14,), needs=needs, ignored=0.4, reduction=reduction, **SMOOTH)
        problem.hidden[~problem.counted] = float("nan")
        count = int(problem.counted.sum())
        rows = {None: None, "exactly": count, "more": count + 1, "all": 14}[declared]
        with target_device(kind):
            found = problem.check(problem.ours(active_rows=rows))
        assert not found.gradients[0][~problem.counted].any()
        if reduction == "none":
            for value in (found.output.loss, found.output.z_loss, found.output.token_accuracy):
                assert not value[~problem.counted].any()


def test_a_declared_count_that_is_too_small_is_loud():
    """Without asking a device: the loss is NaN where the host cannot count, an error where it can."""
    problem = Problem((14,), ignored=0.3)
    count = int(problem.counted.sum())
    with target_device("cuda"):
        found = problem.ours(active_rows=count - 1).output
        assert found.loss.isnan() and found.z_loss.isnan() and found.token_accuracy.isnan()
        problem.options["reduction"], problem.upstream = "none", torch.ones(14)
        found = problem.ours(active_rows=count - 1).output
        for each in (found.loss, found.z_loss, found.token_accuracy):
            assert each.isnan().sum() == 1 and not each[~problem.counted].any()
    with pytest.raises(ValueError, match=f"active_rows: got {count - 1}, wanted {count}"):
        problem.ours(active_rows=count - 1)


@pytest.mark.parametrize("ignore_index", [-1, -100, 0, 299, 10**6])
def test_any_number_can_be_the_ignored_one(ignore_index):
    Problem((14,), ignored=0.4, ignore_index=ignore_index).check()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_other_integers(dtype):
    problem = Problem((14,), vocab=100, ignored=0.3, ignore_index=99)
    wanted = problem.exact()
    problem.targets = problem.targets.to(dtype)
    found = problem.ours()
    torch.testing.assert_close(found.output.loss.double(), wanted.output.loss, rtol=1e-5, atol=0)
    assert torch.equal(found.output.predicted_tokens, wanted.output.predicted_tokens)


@pytest.mark.parametrize(("dtype", "label"), [(torch.uint8, 156), (torch.int8, 28), (torch.int16, 156)])
def test_a_label_is_not_taken_for_the_ignored_one_because_its_dtype_is_narrow(dtype, label):
    """-100 is 156 in eight bits."""
    problem = Problem((14,), vocab=200)
    problem.targets[:] = label
    wanted = problem.exact().output
    problem.targets = problem.targets.to(dtype)
    for ignore_index in (-100, label + 2**8, label + 2**16):
        problem.options["ignore_index"] = ignore_index
        found = problem.ours().output
        torch.testing.assert_close(found.loss.double(), wanted.loss, rtol=1e-5, atol=0)
        assert torch.equal(found.predicted_tokens, wanted.predicted_tokens)


@KINDS
@pytest.mark.parametrize("weight", [float("inf"), float("nan")])
def test_the_weight_of_a_class_that_no_label_is(weight, kind):
    """Infinite, or no number: it reaches nothing, neither by the rows that count nor by those that do not."""
    for prune, reduction in itertools.product((True, False), ("mean", "none")):
        problem = Problem((14,), ignored=0.4, ce_weight=True, reduction=reduction)
        problem.options["ce_weight"][[0, 299]] = weight
        problem.targets[problem.counted] = torch.randint(1, 299, (int(problem.counted.sum()),))
        with target_device(kind):
            problem.check(problem.ours(prune=prune))


def test_a_label_out_of_range_is_nan_where_it_cannot_be_read():
    """And spoils its own row alone."""
    for label in (-5, 300, 10**9):
        problem = Problem((14,), reduction="none")
        wanted = problem.exact().output.loss
        problem.targets[4] = label
        with target_device("cuda"):
            loss = linear_cross_entropy(problem.hidden, problem.weight, problem.targets, problem.bias, reduction="none")
        others = torch.arange(14) != 4
        assert loss[4].isnan()
        torch.testing.assert_close(loss[others].double(), wanted[others], rtol=1e-5, atol=1e-5)


# --- Extreme logits --------------------------------------------------------------------------------------------------------


@KINDS
@HEADS
@pytest.mark.parametrize("offset", [-1e4, 1e4])
@pytest.mark.usefixtures("tiling")
def test_logits_far_from_zero_keep_their_digits(offset, needs, kind):
    """A common offset changes no loss and no gradient, but by the rounding of the logits: 1e4 has digits of 1e-3."""
    problem = Problem((12,), needs=needs, reduction="none")
    problem.bias.zero_()
    with target_device(kind):
        plain = problem.ours()
        problem.bias.fill_(offset)
        moved = problem.ours()
    torch.testing.assert_close(moved.output.loss, plain.output.loss, rtol=0, atol=3e-3)
    assert (moved.output.loss >= 0).all()
    for ours, theirs in zip(moved.gradients, plain.gradients, strict=True):
        if theirs is not None:
            assert (ours - theirs).norm() <= 3e-3 * theirs.norm()


@KINDS
@HEADS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("tiling")
def test_logits_of_ten_thousand(dtype, needs, kind):
    """Some +1e4, others -1e4: nothing overflows, and a certain label costs nothing."""
    problem = Problem((12,), 8, 300, dtype, needs=needs, bias=False, reduction="none")
    problem.hidden, problem.weight = torch.ones(12, 8).to(dtype), torch.full((300, 8), -1280.0).to(dtype)
    problem.weight[170] = 1280.0
    problem.targets[:6], problem.targets[6:] = 170, 5
    with target_device(kind):
        found = problem.ours()
    assert torch.equal(found.output.loss, torch.tensor([0.0] * 6 + [20480.0] * 6))
    assert (found.output.predicted_tokens == 170).all()
    assert all(torch.isfinite(gradient).all() for gradient in found.gradients if gradient is not None)
    problem.check(found, times=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("softcap, vocab", list(itertools.product([1.0, 30.0], [32_000, 65_537])))
def test_softcap_at_real_vocabularies(softcap, vocab, dtype):
    """Nothing beyond the last column counts: not in the loss, nor in smoothing, the z loss, predictions and gradients."""
    problem = Problem((3,), 8, vocab, dtype, needs=FROZEN, softcap=softcap, bias=False, **SMOOTH)
    problem.targets[-1] = vocab - 1
    for kind in ("cpu", "cuda"):
        with target_device(kind):
            problem.check()


@pytest.mark.parametrize("softcap", [1.0, 30.0])
@pytest.mark.parametrize("columns", [96, 128, 301])
def test_softcap_in_tiles_with_padding(columns, softcap):
    """Rows, the last tile and all of it narrower than what the device pads to."""
    for needs, kind in itertools.product((TRAINED, FROZEN), ("cpu", "cuda")):
        problem = Problem((7,), 8, 301, needs=needs, softcap=softcap, ce_weight=True, **SMOOTH)
        with override(row_block=3, vocab_tile=columns), target_device(kind):
            problem.check()


@HEADS
@pytest.mark.parametrize("width", [64, 60], ids=["fused", "product and tile"])
def test_a_token_that_is_almost_certain(width, needs):
    """Its gradient hangs on 1 - p, which probabilities rounded to bf16 would lose: each row against float64."""
    rows, vocab = 40, 300
    problem = Problem((rows,), width, vocab, torch.bfloat16, needs=needs, bias=False, reduction="none")
    problem.weight = torch.randn(vocab, width).bfloat16()
    scale = torch.linspace(0.1, 0.25, rows)[:, None]
    problem.hidden = (problem.weight[problem.targets].float() * scale).bfloat16()
    problem.upstream = torch.ones(rows)
    with target_device("cuda"):
        found = problem.ours()
    wanted = problem.exact()
    assert 1e-9 < wanted.output.loss.min() < 1e-3
    errors = (found.gradients[0].double() - wanted.gradients[0]).norm(dim=1) / wanted.gradients[0].norm(dim=1)
    assert errors.max() < 2**-7


@pytest.mark.parametrize("keep_tiles", [False, True])
@pytest.mark.parametrize("blocks", [1, 16, 64])
def test_weight_gradient_does_not_lose_digits_with_its_blocks(blocks, keep_tiles):
    """Over however many blocks it is formed, it is rounded to bf16 once; each of its terms is a bf16 tile's."""
    rows = 256
    problem = Problem((rows,), 32, 64, torch.bfloat16, bias=False)
    problem.upstream = torch.tensor(1.0)
    exact = problem.exact().gradients[1]
    with target_device("cuda"), override(row_block=rows // blocks, keep_tiles=keep_tiles):
        found = problem.ours().gradients[1]
    rounding = (exact.bfloat16().double() - exact).norm()
    assert (found.double() - exact).norm() <= 1.5 * rounding


# --- Layouts and modes -----------------------------------------------------------------------------------------------------


@HEADS
@pytest.mark.usefixtures("tiling")
def test_layouts(needs):
    """Transposed and expanded hidden states, a weight that is a transposed view, labels and a bias with gaps between them."""
    base, row = torch.randn(7, 2, 12), torch.randn(1, 1, 12)
    weight, bias = torch.randn(12, 300), torch.randn(600)
    targets = torch.randint(300, (7, 2)).t()
    for leaf, shape in ((base, lambda t: t.transpose(0, 1)), (row, lambda t: t.expand(2, 7, 12))):
        found = []
        for function, dtype in ((linear_cross_entropy, torch.float32), (eager, torch.float64)):
            leaves = [t.to(dtype, copy=True).requires_grad_(n) for t, n in zip((leaf, weight, bias), needs, strict=True)]
            result = function(shape(leaves[0]), leaves[1].t(), targets, leaves[2][::2], label_smoothing=0.1)
            (result if isinstance(result, torch.Tensor) else result.loss).backward()
            found.append([t.grad for t in leaves])
        for ours, theirs in zip(*found, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def test_expanded_labels_and_weights_of_classes():
    problem = Problem((4, 6), ce_weight=True)
    problem.targets = torch.randint(300, (1, 6)).expand(4, 6)
    problem.options["ce_weight"] = torch.rand(600)[::2]
    problem.check()
    problem.options["ce_weight"] = torch.rand(1).expand(300)
    problem.check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_classes_in_another_dtype(dtype):
    problem = Problem((14,), label_smoothing=0.1)
    problem.options["ce_weight"] = torch.rand(300).to(dtype)
    problem.check()


@HEADS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, needs):
    """Leaves in fp32 and 16-bit products: what the function computes of leaves that were cast by hand."""
    problem, found = Problem(needs=needs, **SMOOTH), []
    for cast in (False, True):
        leaves = problem.leaves()
        given = [leaf.to(dtype) for leaf in leaves] if cast else leaves
        with torch.autocast("cpu", dtype=dtype, enabled=not cast):
            loss = linear_cross_entropy(given[0], given[1], problem.targets, given[2], **SMOOTH)
        loss.backward()
        found.append([loss.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == torch.float32 and torch.equal(ours, theirs)


def test_compiled_around_gives_the_same():
    problem = Problem()

    def loss(states):
        return linear_cross_entropy(torch.tanh(states), problem.weight, problem.targets, problem.bias, reduction="none").sum()

    found = []
    for function in (loss, torch.compile(loss, backend="aot_eager")):
        hidden = problem.leaves()[0]
        value = function(hidden)
        value.backward()
        found.append((value.detach(), hidden.grad))
    torch.testing.assert_close(*found)
