"""Against Liger-Kernel 0.8.5's own module, called the same way; without a GPU its kernel runs in Triton's interpreter, which
cannot follow a softcap or weights of classes."""

from __future__ import annotations

import pytest
import torch
from cross_entropy_reference import EVERYTHING, Problem

from frostline.kernels import CrossEntropyOutput, FusedLinearCrossEntropyLoss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "smooth": {"label_smoothing": 0.1},
    "z loss": {"lse_square_scale": 0.1},
    "another index": {"ignore_index": 7},
    "token scaling": {"use_token_scaling": True, "lse_square_scale": 0.1},
    "of each row": {"reduction": "none", "label_smoothing": 0.1, "lse_square_scale": 0.1},
    "capped": {"softcap": 3.0},
    "weights of classes": {"ce_weight": True, "label_smoothing": 0.1, "lse_square_scale": 0.1},
}


@pytest.fixture
def theirs():
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed")
    from importlib.metadata import version

    if not version("liger_kernel").startswith("0.8."):
        pytest.skip(f"liger-kernel {version('liger_kernel')} is installed, 0.8 is what is compared")
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss


@pytest.mark.parametrize("options, trained", [*((name, True) for name in OPTIONS), ("plain", False), ("capped", False)])
def test_the_same_call_gives_the_same(theirs, options, trained):
    if DEVICE == "cpu" and options in ("capped", "weights of classes"):
        pytest.skip("Triton's interpreter cannot follow it")
    needs = (True, trained, trained)
    problem = Problem((7,), 8, 70, needs=needs, bias=trained, ignored=0.3, device=DEVICE, **OPTIONS[options])
    found = []
    for kind in (FusedLinearCrossEntropyLoss, theirs):
        module = kind(**problem.options, **EVERYTHING)
        found.append(
            problem.outcome(lambda hidden, weight, targets, bias, module=module, **_: module(weight, hidden, targets, bias))
        )
    ours, liger = (one.numbers() for one in found)
    assert ours.keys() == liger.keys()
    for name, value in liger.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5, msg=name)
    for name in ("token_accuracy", "predicted_tokens"):
        torch.testing.assert_close(getattr(found[0].output, name), getattr(found[1].output, name), msg=name)


def test_the_returned_value_has_their_fields(theirs):
    from dataclasses import fields

    from liger_kernel.transformers.functional import CrossEntropyOutput as Theirs

    assert [field.name for field in fields(CrossEntropyOutput)] == [field.name for field in fields(Theirs)]


def test_the_modules_take_the_same_arguments_in_the_same_order(theirs):
    from inspect import signature

    for method in ("__init__", "forward"):
        wanted = signature(getattr(theirs, method)).parameters
        found = dict(list(signature(getattr(FusedLinearCrossEntropyLoss, method)).parameters.items())[: len(wanted)])
        assert list(found) == list(wanted)
        assert [one.default for one in found.values()] == [one.default for one in wanted.values()]
