"""Predictions against measurements of the same steps, and FLOPs against counts by hand."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from frostline.harness import selection
from frostline.harness.cost import predict
from frostline.harness.declare import Step
from frostline.harness.meters.counts import count
from frostline.harness.meters.memory import LiveBytes, measure_peaks
from frostline.kernels.matmul import target_device
from frostline.results.record import Params
from frostline.suites.cost_model import cost_model
from frostline.suites.lora_decoder import RANK

CASES = [dict(case.params) for case in selection.select(cost_model, cost_model.preset("small"), [])]
SIDES = ("torch", "known", "unknown")
PEAKS = ("peak_allocated", "peak_above_inputs")


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


def named(case: Params) -> str:
    return f"{case['layers']} layers, {case['lm_head']}, {case['masked']} masked"


def builder(side: str, case: Params) -> Callable[[], Step]:
    return lambda: cost_model.function(side, "cpu", **case)


def measured(build: Callable[[], Step]) -> dict[str, float]:
    torch.manual_seed(0)
    tracker = LiveBytes()
    with tracker:
        step = build()
    return measure_peaks(step, "cpu", repeats=1, tracker=tracker) | count(step)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_branches_of_a_gpu_are_predicted_as_they_are_tracked(case: Params, side: str) -> None:
    """Real tensors on the CPU take them too: every byte, FLOP and operator is the same."""
    with target_device("cuda"):
        found = measured(builder(side, case))
    assert predict(builder(side, case), context=target_device("cuda")).figures == found


@pytest.mark.parametrize("case", CASES, ids=named)
def test_plain_code_on_a_cpu_is_predicted_as_it_is_measured(case: Params) -> None:
    assert predict(builder("torch", case)).figures == measured(builder("torch", case))


@pytest.mark.parametrize("side", ["known", "unknown"])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_head_on_a_cpu_reads_its_mask_where_a_prediction_prepares_for_it(case: Params, side: str) -> None:
    """At most one copy of the hidden states, with zeros in rows that do not count."""
    predicted, found = predict(builder(side, case)).figures, measured(builder(side, case))
    copy = 4 * int(case["batch"]) * int(case["seq_len"]) * int(case["hidden"])
    assert predicted["flops"] == found["flops"]
    for peak in PEAKS:
        assert 0 <= predicted[peak] - found[peak] <= 1.1 * copy


def products(case: dict[str, Any], side: str) -> int:
    """FLOPs of a step, by hand."""
    rows, width, vocab, layers = case["batch"] * case["seq_len"], case["hidden"], case["vocab"], case["layers"]
    trained, known = case["lm_head"] == "trainable", side != "unknown"
    counted = rows if side == "torch" else round(rows * (1 - case["masked"]))
    logits = 1 if known or not trained else 2  # once more where the loss is not known before the backward
    head = (logits + 1 + trained) * 2 * counted * width * vocab
    square, down, up = 2 * rows * width * width, 2 * rows * width * RANK, 2 * rows * RANK * width
    scores = 2 * rows * case["seq_len"] * width  # one of attention's products, over all heads: torch counts no causal half
    forward = 4 * square + 3 * 3 * square + 2 * (down + up) + 2 * scores
    # Frozen layers have a gradient of their input alone, adapters of their two weights besides; attention has five products.
    backward = 4 * square + 3 * 3 * square + 2 * (2 * down + 2 * up) + 5 * scores
    # Below the first block nothing is trained: no gradient of the input of its three projections and two adapters.
    untrained = 3 * square + 2 * down
    # nor does its key need any: but value and query lead there through attention, whose backward gives all three
    return head + (layers * (forward + backward) - untrained if layers else 0)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_flops_are_those_counted_by_hand(case: dict[str, Any], side: str) -> None:
    for context in (nullcontext(), target_device("cuda")):
        assert predict(builder(side, case), context=context).figures["flops"] == products(case, side)


def test_a_frozen_weight_has_no_gradient_anywhere() -> None:
    case = next(case for case in CASES if case["layers"] and case["lm_head"] == "frozen")
    assert products(case, "known") < products({**case, "lm_head": "trainable"}, "known")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_peaks_above_the_inputs_on_a_gpu(case: dict[str, Any], side: str) -> None:
    case = {**case, "vocab": 32000, "hidden": 1024, "seq_len": 256, "dtype": "bfloat16"}
    predicted = predict(builder(side, case), context=target_device("cuda"), device="cuda").figures["peak_above_inputs"]
    step = cost_model.function(side, "cuda", **case)
    found = measure_peaks(step, "cuda")["peak_above_inputs"]
    assert abs(predicted - found) <= 0.02 * found
