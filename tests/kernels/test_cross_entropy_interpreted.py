"""`linear_cross_entropy` by the kernels of a GPU, in Triton's interpreter, against float64."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from cross_entropy_reference import Problem, covering

from frostline.kernels import linear_cross_entropy
from frostline.kernels.lm_head import fused, tiles
from frostline.kernels.lm_head import plan as plans
from frostline.kernels.lm_head.plan import override
from frostline.kernels.matmul import target_device

if torch.cuda.is_available():
    pytest.skip("compiled, not interpreted, where there is a GPU: see test_gpu_cross_entropy", allow_module_level=True)

TRAINED, FROZEN = (True, True, True), (True, False, False)
# What is trained, sizes of the plan, arguments of the call.
WAYS = {
    "stream": (FROZEN, {}, {}),
    "blocks, tiles kept": (TRAINED, {"keep_tiles": True}, {}),
    "blocks, accumulator": (TRAINED, {"keep_tiles": False}, {}),
    "recompute": (TRAINED, {}, {"memory_budget": 1}),
}
OPTIONS = {
    "plain": {},
    "all that a sum has": {
        "label_smoothing": 0.2,
        "ce_weight": True,
        "lse_square_scale": 0.1,
        "softcap": 2.0,
        "logit_scale": 0.7,
    },
    "token scaling, no bias": {"use_token_scaling": True, "lse_square_scale": 0.1, "bias": False},
    "of each row": {"reduction": "none", "label_smoothing": 0.2, "lse_square_scale": 0.1},
}
ULP = 2**-10  # of fp16: of so few values eager code may round all luckily
KERNELS = {"fused": (torch.float16, 64), "product and tile": (torch.float32, 20)}  # dtype and width that lead to them
FACTORS = {"kernels": list(KERNELS), "way": list(WAYS), "options": list(OPTIONS)}


@contextmanager
def gpu(**sizes):
    """Every branch and kernel of a GPU, interpreted."""
    with target_device("cuda"), fused.interpreted(), tiles.interpreted(), override(**sizes):
        yield


@pytest.fixture
def formed_in_fp16(monkeypatch):
    """The interpreter multiplies fp16 rightly, and bf16 not. In fp16 no gradient is formed in the forward: here it is."""
    rule = plans.obstacle
    monkeypatch.setattr(plans, "obstacle", lambda problem: "" if problem.dtype == torch.float16 else rule(problem))
    plans._make_plan.cache_clear()
    yield
    plans._make_plan.cache_clear()


@pytest.mark.parametrize("point", covering(FACTORS), ids=lambda point: ": ".join(point.values()))
@pytest.mark.usefixtures("formed_in_fp16")
def test_options_by_way_and_by_kernel(point):
    check(point["kernels"], point["way"], OPTIONS[point["options"]], rows=9)


@pytest.mark.usefixtures("formed_in_fp16")
def test_several_blocks_of_rows():
    check("fused", "stream", OPTIONS["token scaling, no bias"], rows=130)


def check(kernels, way, options, rows):
    """Two tiles of the vocabulary, the last not full, and a third of the rows ignored."""
    (dtype, width), (needs, sizes, given) = KERNELS[kernels], WAYS[way]
    problem = Problem((rows,), width, 300, dtype, needs=needs, ignored=0.3, **options)
    problem.targets[:2] = torch.tensor([0, 299])
    problem.hidden[~problem.counted] = float("nan")
    block = 128 if kernels == "fused" else 4
    with gpu(row_block=block, vocab_tile=256, **sizes):
        found = problem.ours(**given)
    problem.check(found, luck=ULP)


@pytest.mark.parametrize("dtype, width", KERNELS.values(), ids=list(KERNELS))
@pytest.mark.parametrize("copies", [(5, 140), (130, 260, 299)], ids=str)
def test_the_first_of_equal_maxima(copies, dtype, width):
    """In one slice of the vocabulary and in two."""
    problem = Problem((6,), width, 300, dtype, bias=False)
    problem.hidden = torch.randint(1, 4, (6, width)).to(dtype)
    problem.weight = torch.randint(-1, 2, (300, width)).to(dtype)
    problem.weight[list(copies)] = 2.0
    problem.targets[:] = max(copies)
    for needs in (FROZEN, TRAINED):
        hidden, weight = (t.clone().requires_grad_(n) for t, n in zip((problem.hidden, problem.weight), needs, strict=False))
        with gpu(row_block=128, vocab_tile=256):
            found = linear_cross_entropy(
                hidden, weight, problem.targets, return_predicted_tokens=True, return_token_accuracy=True
            )
        assert (found.predicted_tokens == min(copies)).all() and found.token_accuracy == 0


@pytest.mark.parametrize("needs", [TRAINED, FROZEN], ids=["trainable", "frozen"])
@pytest.mark.parametrize("vocab", [2, 257])
@pytest.mark.usefixtures("formed_in_fp16")
def test_columns_that_are_padding_count_for_nothing(vocab, needs):
    """Beyond the last column a capped logit would be softcap * tanh(0): as large as any, where a plain one can be -inf."""
    for dtype, width in KERNELS.values():
        options = {"softcap": 1.0, "label_smoothing": 0.2, "lse_square_scale": 0.1, "ce_weight": True}
        problem = Problem((3,), width, vocab, dtype, needs=needs, **options)
        problem.targets[-1] = vocab - 1
        with gpu(row_block=128, vocab_tile=256):
            problem.check(luck=ULP)
