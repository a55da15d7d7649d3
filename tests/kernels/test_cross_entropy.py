"""`linear_cross_entropy` against float64: every option, every two of them together, every strategy, dtype and need."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest
import torch
from cross_entropy_reference import EVERYTHING, RETURNS, Problem, covering, eager
from torch.nn.functional import cross_entropy

from frostline.kernels import CrossEntropyOutput, FusedLinearCrossEntropyLoss, linear_cross_entropy
from frostline.kernels.lm_head.plan import override
from frostline.kernels.matmul import target_device

TRAINED, FROZEN = (True, True, True), (True, False, False)
TILES = {"row_block": 4, "vocab_tile": 128}  # 300 columns are more than one tile and no multiple of it
# Every way through the logits: (what is trained, sizes of the plan, arguments of the call).
WAYS = {
    "one tile": (TRAINED, {}, {}),
    "one tile, frozen": (FROZEN, {}, {}),
    "stream": (FROZEN, TILES, {}),
    "blocks, tiles kept": (TRAINED, {**TILES, "keep_tiles": True}, {}),
    "blocks, accumulator": (TRAINED, {**TILES, "keep_tiles": False}, {}),
    "recompute": (TRAINED, TILES, {"memory_budget": 1}),
    "lean, frozen": (FROZEN, {}, {"memory_budget": 1}),
    "unpruned": (FROZEN, TILES, {"prune": False}),
}
FACTORS = {
    "way": list(WAYS),
    "dtype": [torch.float32, torch.bfloat16, torch.float16, torch.float64],
    "kind": ["cpu", "cuda"],  # whose branches are taken
    "reduction": ["mean", "sum", "none"],
    "label_smoothing": [0.0, 0.1],
    "ce_weight": [None, True],
    "lse_square_scale": [0.0, 0.02],
    "softcap": [None, 3.0],
    "use_token_scaling": [False, True],
    "logit_scale": [1.0, 0.4],
    "ignored": [0.0, 0.4],
    "ignore_index": [-100, 7],
    "bias": [False, True],
}


def named(point):
    return " ".join(str(value).removeprefix("torch.") for value in point.values())


def in_way(way, kind="cpu"):
    """The context of a way, what is trained, and what the call is given."""
    needs, sizes, given = WAYS[way]
    stack = ExitStack()
    stack.enter_context(override(**sizes))
    stack.enter_context(target_device(kind))
    return stack, needs, given


@pytest.mark.parametrize("point", covering(FACTORS), ids=named)
def test_options_two_by_two(point):
    point = dict(point)
    context, needs, given = in_way(point.pop("way"), point.pop("kind"))
    problem = Problem(needs=needs, **point)
    with context:
        problem.check(problem.ours(**given))


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.3},
        {"ce_weight": True},
        {"lse_square_scale": 0.1},
        {"softcap": 2.0},
        {"use_token_scaling": True},
        {"logit_scale": 0.3},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"label_smoothing": 0.2, "ce_weight": True, "lse_square_scale": 0.05, "softcap": 4.0, "use_token_scaling": True},
    ],
    ids=str,
)
def test_every_option_in_every_way(options, way):
    context, needs, given = in_way(way)
    problem = Problem(dtype=torch.float64, needs=needs, ignored=0.3, **options)
    with context:
        problem.check(problem.ours(**given))


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "reduction": "none"}], ids=["plain", "smooth, per token"])
@pytest.mark.parametrize("sizes", [{}, TILES], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)))
def test_every_combination_of_needs(needs, sizes, options):
    """What is frozen has no gradient, and the others have the right one."""
    problem = Problem(dtype=torch.float64, needs=needs, ignored=0.3, **options)
    with override(**sizes):
        found = problem.check()
    assert [gradient is not None for gradient in found.gradients] == list(needs)


@pytest.mark.parametrize("needs", [TRAINED, FROZEN], ids=["trainable", "frozen"])
@pytest.mark.parametrize("upstream", ["zeros", "negative", "random", "one row", "expanded"])
def test_any_upstream_of_single_tokens(upstream, needs):
    problem = Problem(needs=needs, ignored=0.2, reduction="none", label_smoothing=0.1, lse_square_scale=0.01)
    shape, one = problem.targets.shape, torch.zeros(problem.targets.shape)
    one[1, 2] = 3.0
    problem.upstream = {
        "zeros": torch.zeros(shape),
        "negative": -torch.rand(shape) - 0.1,
        "random": torch.randn(shape),
        "one row": one,
        "expanded": torch.tensor(0.5).expand(shape),
    }[upstream]
    with override(**TILES):
        found = problem.check()
    if upstream == "zeros":
        assert not any(gradient.any() for gradient in found.gradients if gradient is not None)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("factor", [0.0, -2.5, 1.0, 65536.0])
def test_any_upstream_of_the_loss(factor, reduction):
    problem = Problem(ignored=0.2, reduction=reduction)
    problem.upstream = torch.tensor(factor)
    found = problem.check()
    if not factor:
        assert not any(gradient.any() for gradient in found.gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_loss_scale_keeps_small_gradients(dtype):
    """A mean over many tokens has gradients below what fp16 can hold; with a loss scale on top it must not have lost them."""
    problem = Problem((600,), 16, 50, dtype=dtype)
    problem.upstream = torch.tensor(2.0**14)
    problem.check()


@pytest.mark.parametrize("way", list(WAYS))
def test_backward_twice_gives_the_same(way):
    """Nothing that is kept may be scaled in place."""
    context, needs, given = in_way(way)
    for reduction in ("mean", "none"):
        problem = Problem(needs=needs, ignored=0.2, reduction=reduction)
        hidden, weight, bias = problem.leaves()
        leaves = [leaf for leaf in (hidden, weight, bias) if leaf.requires_grad]
        with context:
            loss = linear_cross_entropy(hidden, weight, problem.targets, bias, reduction=reduction, **given)
            first = torch.autograd.grad(loss, leaves, problem.upstream, retain_graph=True)
            second = torch.autograd.grad(loss, leaves, problem.upstream)
        assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
        context, needs, given = in_way(way)


@pytest.mark.parametrize("way", ["stream", "blocks, tiles kept", "blocks, accumulator", "recompute"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradcheck(reduction, way):
    """Along a random direction, whose first derivative an error in any element would change."""
    context, needs, given = in_way(way)
    problem = Problem((5,), 4, 70, torch.float64, needs=needs)
    problem.targets[2] = -100
    options = {"reduction": reduction, "label_smoothing": 0.1, "lse_square_scale": 0.1, "softcap": 2.0, "logit_scale": 0.6}
    leaves = problem.leaves()

    def function(*varied):
        hidden, weight, bias = (*varied, *leaves[len(varied) :])
        return linear_cross_entropy(hidden, weight, problem.targets, bias, **options, **given)

    with context:
        assert torch.autograd.gradcheck(function, leaves if needs == TRAINED else leaves[:1], fast_mode=True)


def test_a_second_derivative_is_refused():
    """A gradient penalty would miss a term."""
    hidden, weight, bias = (problem := Problem()).leaves()
    loss = linear_cross_entropy(hidden, weight, problem.targets, bias)
    (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.square().sum().backward()


# --- What is returned ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [names for n in range(4) for names in itertools.combinations(RETURNS, n)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_what_was_not_asked_for_is_none(reduction, asked):
    problem = Problem(ignored=0.2, lse_square_scale=0.1)
    given = dict.fromkeys(asked, True)
    found = linear_cross_entropy(
        problem.hidden, problem.weight, problem.targets, problem.bias, reduction=reduction, lse_square_scale=0.1, **given
    )
    if not asked:
        assert isinstance(found, torch.Tensor)
        return
    assert isinstance(found, CrossEntropyOutput)
    assert {name for name in RETURNS if getattr(found, name.removeprefix("return_")) is not None} == set(asked)


def test_only_the_loss_has_a_gradient():
    hidden, weight, bias = (problem := Problem(lse_square_scale=0.1, ignored=0.2)).leaves()
    found = linear_cross_entropy(hidden, weight, problem.targets, bias, lse_square_scale=0.1, **EVERYTHING)
    assert found.loss.requires_grad
    assert not any(one.requires_grad for one in (found.z_loss, found.token_accuracy, found.predicted_tokens))


@pytest.mark.parametrize("asked", RETURNS)
@pytest.mark.parametrize("way", ["stream", "blocks, tiles kept", "recompute"])
def test_what_is_returned_changes_no_gradient(way, asked):
    found = []
    for given in ({}, {asked: True}):
        context, needs, more = in_way(way)
        torch.manual_seed(1)
        problem = Problem(needs=needs, ignored=0.2)
        with context:
            leaves = problem.leaves()
            result = linear_cross_entropy(leaves[0], leaves[1], problem.targets, leaves[2], **given, **more)
            (result.loss if given else result).backward()
        found.append([leaf.grad for leaf in leaves])
    for plain, other in zip(*found, strict=True):
        assert (plain is None) == (other is None) and (plain is None or torch.equal(plain, other))


def test_losses_may_be_changed_in_place():
    """As those of plain torch: nothing that the backward needs lies in what was returned."""
    problem, found = Problem(reduction="none"), []
    for in_place in (False, True):
        hidden, weight, bias = problem.leaves()
        loss = linear_cross_entropy(hidden, weight, problem.targets, bias, reduction="none")
        loss = loss.mul_(3.0) if in_place else loss * 3.0
        found.append(torch.autograd.grad(loss.sum(), (hidden, weight, bias)))
    torch.testing.assert_close(*found)


# --- The module ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ce_weight": True, "label_smoothing": 0.1, "reduction": "sum"},
        {"ignore_index": 7, "lse_square_scale": 0.1, "softcap": 3.0, "logit_scale": 0.5, "use_token_scaling": True},
    ],
    ids=str,
)
def test_the_module_is_the_function(options):
    problem = Problem(ignored=0.3, **options)
    module = FusedLinearCrossEntropyLoss(**problem.options, **EVERYTHING)

    def called(hidden, weight, targets, bias, **_):
        return module(weight, hidden, targets, bias)

    ours, modules = problem.ours(), problem.outcome(called)
    for name, value in ours.numbers().items():
        assert torch.equal(value, modules.numbers()[name]), name


def test_the_module_takes_its_options_in_ligers_order():
    weights = torch.rand(300)
    positional = FusedLinearCrossEntropyLoss(weights, 7, 0.1, 0.2, "sum", 3.0, True, torch.float32, True, True, True)
    named_ones = FusedLinearCrossEntropyLoss(
        ce_weight=weights,
        ignore_index=7,
        lse_square_scale=0.1,
        label_smoothing=0.2,
        reduction="sum",
        softcap=3.0,
        accum_dtype=torch.float32,
        use_token_scaling=True,
        **EVERYTHING,
    )
    problem = Problem(ignored=0.3, ignore_index=7)
    given = (problem.weight, problem.hidden, problem.targets, problem.bias)
    for ours, theirs in zip(vars(positional(*given)).values(), vars(named_ones(*given)).values(), strict=True):
        assert torch.equal(ours, theirs)


# --- The reference itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_reference_is_torchs_cross_entropy(weighted, label_smoothing, reduction):
    """What torch has of it, in float64."""
    problem = Problem(dtype=torch.float64, ignored=0.3)
    weights = torch.rand(300, dtype=torch.float64) if weighted else None
    options = {"label_smoothing": label_smoothing, "reduction": reduction, "ignore_index": -100}
    found = eager(problem.hidden, problem.weight, problem.targets, problem.bias, ce_weight=weights, **options)
    logits = problem.hidden @ problem.weight.t() + problem.bias
    wanted = cross_entropy(logits.reshape(-1, 300), problem.targets.reshape(-1), weight=weights, **options)
    torch.testing.assert_close(found.loss.reshape(wanted.shape), wanted, rtol=1e-12, atol=1e-14)
