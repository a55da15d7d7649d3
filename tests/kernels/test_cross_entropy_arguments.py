"""What a user of cross entropy can get wrong, said in one line: the argument, what was given and what was wanted."""

from __future__ import annotations

import pytest
import torch
from cross_entropy_reference import Problem

from frostline.kernels import FusedLinearCrossEntropyLoss, linear_cross_entropy, linear_logprob

WIDTH, VOCAB = 12, 300
NUMBERS = [
    ({"reduction": "median"}, ValueError, "reduction: got 'median', wanted one of mean, sum, none"),
    ({"reduction": None}, ValueError, "reduction: got None"),
    ({"ignore_index": None}, ValueError, "ignore_index: got None, wanted a whole number"),
    ({"ignore_index": -100.5}, ValueError, "ignore_index: got -100.5"),
    ({"ignore_index": True}, ValueError, "ignore_index: got True"),
    ({"label_smoothing": -0.1}, ValueError, "label_smoothing: got -0.1, wanted a number from 0 to 1"),
    ({"label_smoothing": 1.5}, ValueError, "label_smoothing: got 1.5"),
    ({"label_smoothing": float("nan")}, ValueError, "label_smoothing: got nan"),
    ({"label_smoothing": True}, ValueError, "label_smoothing: got True"),
    ({"lse_square_scale": float("inf")}, ValueError, "lse_square_scale: got inf, wanted a finite number"),
    ({"lse_square_scale": "1e-4"}, ValueError, "lse_square_scale: got '1e-4'"),
    ({"softcap": 0.0}, ValueError, "softcap: got 0.0, wanted a positive number"),
    ({"softcap": -30.0}, ValueError, "softcap: got -30.0"),
    ({"logit_scale": float("inf")}, ValueError, "logit_scale: got inf"),
    ({"logit_scale": None}, ValueError, "logit_scale: got None"),
    ({"accum_dtype": torch.int32}, TypeError, "accum_dtype: got torch.int32, wanted a floating dtype"),
    ({"memory_budget": 0}, ValueError, "memory_budget: got 0, wanted a positive number of bytes"),
    ({"memory_budget": "1GiB"}, ValueError, "memory_budget: got '1GiB'"),
]
TENSORS = [
    ({"weight": torch.randn(VOCAB, WIDTH + 1)}, ValueError, "hidden: got shape"),
    ({"weight": torch.randn(VOCAB, WIDTH).bfloat16()}, TypeError, "weight: got torch.bfloat16, wanted torch.float32"),
    ({"weight": torch.nn.Linear(WIDTH, VOCAB)}, TypeError, "weight: got Linear, wanted a tensor"),
    ({"weight": torch.empty(0)}, RuntimeError, "weight: got shape .* empty storage"),
    ({"bias": torch.randn(VOCAB + 1)}, ValueError, r"bias: got shape \(301,\), wanted \(300,\)"),
    ({"targets": torch.zeros(3, 7).long()}, ValueError, r"targets: got shape \(3, 7\), wanted \(3, 6\)"),
    ({"targets": torch.zeros(3, 6)}, TypeError, "targets: got torch.float32, wanted an integer"),
    ({"targets": torch.full((3, 6), VOCAB)}, ValueError, "targets: got 300 in row 0, wanted 0 to 299"),
    ({"targets": torch.full((3, 6), -1)}, ValueError, "targets: got -1 in row 0"),
    ({"targets": [0] * 18}, TypeError, "targets: got list, wanted a tensor"),
    ({"bias": [0.0] * VOCAB}, TypeError, "bias: got list, wanted a tensor of a floating dtype, or None"),
    ({"bias": torch.zeros(VOCAB).long()}, TypeError, "bias: got torch.int64, wanted a tensor of a floating dtype"),
    ({"hidden": None}, TypeError, "hidden: got NoneType, wanted a tensor"),
    ({"hidden": torch.zeros(3, 6, WIDTH).long()}, TypeError, "hidden: got torch.int64"),
    ({"hidden": torch.zeros(3, 6, WIDTH, device="meta")}, ValueError, "weight: got device cpu, wanted meta"),
    ({"ce_weight": torch.ones(VOCAB - 1)}, ValueError, r"ce_weight: got shape \(299,\), wanted \(300,\)"),
    ({"ce_weight": torch.ones(VOCAB).long()}, TypeError, "ce_weight: got torch.int64, wanted a tensor of a floating dtype"),
    ({"ce_weight": [1.0] * VOCAB}, TypeError, "ce_weight: got list"),
    ({"ce_weight": torch.ones(VOCAB, device="meta")}, ValueError, "ce_weight: got device meta, wanted cpu"),
    ({"active_rows": 19}, ValueError, "active_rows: got 19, wanted a count from 0 to 18"),
    ({"active_rows": 3}, ValueError, "active_rows: got 3, wanted 18"),
    ({"active_rows": 4.5}, ValueError, "active_rows: got 4.5"),
]


@pytest.mark.parametrize("changes, error, words", [*NUMBERS, *TENSORS])
def test_errors_name_the_argument(changes, error, words):
    problem = Problem()
    given = {"hidden": problem.hidden, "weight": problem.weight, "targets": problem.targets, "bias": problem.bias}
    with pytest.raises(error, match=words):
        linear_cross_entropy(**given | changes)


@pytest.mark.parametrize("changes, error, words", NUMBERS)
def test_the_module_refuses_numbers_when_it_is_made(changes, error, words):
    with pytest.raises(error, match=words):
        FusedLinearCrossEntropyLoss(**changes)


def test_a_module_in_the_place_of_its_weight_is_left_as_it_is():
    """Autocast casts what it is given, and a module would be cast in place."""
    problem, head = Problem(), torch.nn.Linear(WIDTH, VOCAB)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(TypeError, match="weight: got Linear, wanted a tensor"):
        linear_cross_entropy(problem.hidden, head, problem.targets)
    assert head.weight.dtype == torch.float32


def test_a_freed_storage_is_refused():
    """FSDP frees a parameter's storage between uses and keeps its shape."""
    problem = Problem()
    problem.weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"weight: got shape .* gather it first"):
        linear_cross_entropy(problem.hidden, problem.weight, problem.targets)


@pytest.mark.parametrize("accum_dtype", [None, torch.float32, torch.bfloat16])
def test_the_accumulators_dtype_is_taken_without_effect(accum_dtype):
    problem = Problem((64,), dtype=torch.bfloat16)
    wanted = problem.ours()
    found = problem.ours(accum_dtype=accum_dtype)
    for name, value in wanted.numbers().items():
        assert torch.equal(value, found.numbers()[name]), name


def test_the_modules_options_are_attributes_that_can_be_set():
    """As of the module that it takes the place of."""
    hidden, weight, labels = torch.randn(6, 8), torch.randn(30, 8), torch.tensor([1, 2, 3, 0, 0, 29])
    module = FusedLinearCrossEntropyLoss(label_smoothing=0.1, reduction="sum")
    assert (module.label_smoothing, module.reduction, module.ignore_index) == (0.1, "sum", -100)
    assert repr(module) == "FusedLinearCrossEntropyLoss(label_smoothing=0.1, reduction='sum')"
    module.ignore_index = 0
    wanted = torch.nn.functional.cross_entropy(
        hidden @ weight.t(), labels, label_smoothing=0.1, reduction="sum", ignore_index=0
    )
    torch.testing.assert_close(module(weight, hidden, labels), wanted)


@pytest.mark.parametrize("function", [linear_logprob, linear_cross_entropy])
def test_a_module_given_as_weight_is_refused_as_it_was_under_autocast(function):
    head = torch.nn.Linear(8, 30, bias=False)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="weight: got Linear, wanted a tensor"):
        function(torch.randn(6, 8), head, torch.zeros(6, dtype=torch.int64))
    assert head.weight.dtype == torch.float32
