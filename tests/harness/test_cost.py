"""The cost model: a prediction is what the meters say of the same step on real tensors, at any size."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional

from frostline.harness.cost import NotPredictable
from frostline.harness.cost import predict as predict_cost
from frostline.harness.declare import Skipped, Step, skip
from frostline.harness.meters.counts import count
from frostline.harness.meters.memory import LiveBytes, measure_peaks
from frostline.results.record import UsageError
from frostline.suites.grpo import grpo


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> Iterator[None]:
    """Put what other modules made out of the collector's sight: a collection a step takes 0.2 s otherwise."""
    gc.freeze()
    yield
    gc.unfreeze()


def predict(build: Callable[[], Step], **options: Any) -> dict[str, float]:
    return dict(predict_cost(build, **options).figures)


def head(rows: int, width: int, vocab: int, *, frozen: bool, dtype: torch.dtype = torch.float32) -> Step:
    """The eager head: logits, log-probabilities of the targets, backward."""
    hidden = torch.randn(rows, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, width, dtype=dtype, requires_grad=not frozen)
    targets = torch.randint(0, vocab, (rows,))

    def run() -> None:
        functional.cross_entropy(functional.linear(hidden, weight).float(), targets).backward()

    def reset() -> None:
        hidden.grad = weight.grad = None

    return Step(run=run, reset=reset)


def measured(build: Callable[[], Step]) -> dict[str, float]:
    tracker = LiveBytes()
    with tracker:
        step = build()
    return measure_peaks(step, "cpu", repeats=1, tracker=tracker) | count(step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_prediction_is_the_measurement(frozen: bool, dtype: torch.dtype) -> None:
    def build() -> Step:
        return head(48, 32, 300, frozen=frozen, dtype=dtype)

    predicted = predict(build)
    assert predicted == measured(build)
    assert predicted["flops"] == (2 if frozen else 3) * 2 * 48 * 32 * 300


def test_a_module_and_its_optimizer_state() -> None:
    def build() -> Step:
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 16))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(20, 32)

        def run() -> None:
            model(x).sum().backward()
            optimizer.step()

        return Step(run=run, reset=optimizer.zero_grad)

    assert predict(build) == measured(build)


def test_full_size_takes_neither_memory_nor_time() -> None:
    rows, width, vocab = 8192, 4096, 151_936
    inputs = 2 * (rows * width + vocab * width) + 8 * rows
    weight_gradient = 2 * vocab * width
    start = time.perf_counter()
    predicted = predict(lambda: head(rows, width, vocab, frozen=False, dtype=torch.bfloat16))
    assert time.perf_counter() - start < 10
    assert predicted["flops"] == 3 * 2 * rows * width * vocab
    assert predicted["peak_allocated"] - predicted["peak_above_inputs"] == inputs
    assert predicted["peak_above_inputs"] >= max(2 * 4 * rows * vocab, weight_gradient)


def grpo_case(implementation: str, **params: Any) -> Callable[[], Step]:
    small = {"vocab": 1000, "seq_len": 8, "batch": 2, "hidden": 64, "bias": False, "dtype": "float32", "masked": 0.0}
    question = {"loss_type": "dapo", "level": "token", "ref_model": "none", "beta": 0.0}
    return lambda: grpo.function(implementation, "cpu", **{**small, **question, **params})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lm_head", ["frozen", "trainable"])
@pytest.mark.parametrize("implementation", ["unpruned", "pruned", "torch"])
def test_the_bundled_head_is_predicted_as_it_is_measured(implementation: str, lm_head: str, dtype: str) -> None:
    """Exactly for plain torch. The fused head reads its mask on a CPU and cannot on fake tensors (nor does it on a GPU).

    There it prepares for inactive rows: with a copy of the hidden states, and without the operators that read.
    """
    build = grpo_case(implementation, lm_head=lm_head, dtype=dtype, masked=0.25)
    predicted, found = predict(build), measured(build)
    if implementation == "torch":
        assert predicted == found
    hidden_copy = 2 * 8 * 64 * 4
    assert predicted["flops"] == found["flops"]
    for peak in ("peak_allocated", "peak_above_inputs"):
        assert 0 <= predicted[peak] - found[peak] <= 1.1 * hidden_copy


@pytest.mark.parametrize(("lm_head", "products", "gib"), [("frozen", 2, 0.5), ("trainable", 3, 4.0)])
def test_the_pruned_head_at_full_size_on_a_gpu(lm_head: str, products: int, gib: float) -> None:
    size = {"vocab": 151_936, "seq_len": 1024, "batch": 8, "hidden": 4096, "dtype": "bfloat16", "lm_head": lm_head}
    assert grpo.target_device is not None
    predicted = predict(grpo_case("pruned", **size), context=grpo.target_device("cuda"), device="cuda")
    assert predicted["flops"] == products * 2 * 8192 * 4096 * 151_936
    assert predicted["peak_above_inputs"] <= gib * 2**30


def test_a_cuda_device_is_predicted_in_its_allocators_granules() -> None:
    def build() -> Step:
        x = torch.randn(100)  # 400 bytes: one granule
        return Step(run=lambda: x.repeat(2))  # 800 bytes: two

    assert predict(build, device="cuda:0")["peak_allocated"] == 512 + 1024
    assert predict(build)["peak_allocated"] == 1200


def test_the_context_is_entered_for_building_and_running() -> None:
    device = ["cpu"]
    seen: list[str] = []

    @contextmanager
    def target_device() -> Iterator[None]:
        device.append("cuda")
        try:
            yield
        finally:
            device.pop()

    def build() -> Step:
        seen.append(device[-1])
        return Step(run=lambda: seen.append(device[-1]))

    predict(build, context=target_device())
    assert set(seen) == {"cuda"} and len(seen) > 1
    assert device == ["cpu"]


def test_a_case_that_cannot_be_stays_skipped() -> None:
    with pytest.raises(Skipped, match="no such head"):
        predict(lambda: skip("no such head"))


def run_of(use: Callable[[torch.Tensor], Any]) -> Callable[[], Step]:
    def build() -> Step:
        x = torch.randn(4, 4)
        return Step(run=lambda: use(x))

    return build


OUTSIDE = torch.ones(4, 4)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x: x.sum().item(), r"_local_scalar_dense.default at test_cost.py:\d+ reads a tensor's data"),
        (lambda x: bool(x.sum() > 0), r"_local_scalar_dense.default at test_cost.py:\d+ reads a tensor's data"),
        (lambda x: x[x > 0], r"the shape of what aten.nonzero.default at test_cost.py:\d+ returns depends on a tensor's data"),
        (lambda x: x + OUTSIDE, r"test_cost.py:\d+ uses a tensor that was made outside the suite's function"),
    ],
    ids=["item", "bool", "mask", "outside"],
)
def test_a_step_that_needs_data_is_a_clear_error(use: Callable[[torch.Tensor], Any], message: str) -> None:
    with pytest.raises(NotPredictable, match=message) as raised:
        predict(run_of(use))
    assert isinstance(raised.value, UsageError)
    assert "\n" not in str(raised.value)


def test_an_operator_without_a_fake_is_not_run_for_real() -> None:
    library = torch.library.Library("frostline_test_cost", "DEF")
    library.define("unknown(Tensor x) -> Tensor")
    ran = []
    library.impl("unknown", lambda x: ran.append(x) or x.clone(), "CPU")
    try:
        with pytest.raises(NotPredictable, match=r"frostline_test_cost.unknown.default at .* register a fake"):
            predict(run_of(torch.ops.frostline_test_cost.unknown))
    finally:
        library._destroy()
    assert not ran


def test_other_assertions_of_a_step_are_its_own() -> None:
    def use(x: torch.Tensor) -> None:
        assert x.shape == (5, 5), "a claim of the suite"

    with pytest.raises(AssertionError, match="a claim of the suite"):
        predict(run_of(use))
