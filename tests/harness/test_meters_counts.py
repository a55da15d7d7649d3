"""FLOPs and operators, against hand counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from frostline.harness.declare import Step
from frostline.harness.meters.counts import FORMULAS, Tally, count
from frostline.harness.meters.dispatch import OperatorWatch

M, K, N, B = 3, 5, 7, 2
aten = torch.ops.aten


def flops(run: Callable[[], Any]) -> float:
    return count(Step(run=run))["flops"]


def matrices(*batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A sum [m, n] and its factors [m, k] and [k, n]."""
    return torch.zeros(*batch, M, N), torch.ones(*batch, M, K), torch.ones(*batch, K, N)


@pytest.mark.parametrize("name", ["mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "addbmm", "addbmm_"])
def test_matrix_products(name: str) -> None:
    batched = "bmm" in name
    total, a, b = matrices(B) if batched else matrices()
    if name.startswith("addbmm"):
        total = total[0]
    factors = (a, b) if name in ("mm", "bmm") else (total, a, b)
    product = getattr(aten, name)
    expected = 2 * M * N * K * (B if batched else 1)
    assert flops(lambda: product(*factors)) == expected
    if not name.endswith("_"):
        assert flops(lambda: product.out(*factors, out=torch.empty_like(total))) == expected


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm"])
def test_products_with_a_result_of_another_dtype(name: str) -> None:
    """These overloads compute on CUDA alone, so fake tensors stand in: a formula sees nothing but shapes."""
    batch = B if name == "bmm" else 1
    with FakeTensorMode():
        total, a, b = matrices(B) if name == "bmm" else matrices()
        factors = [a.bfloat16(), b.bfloat16()] if name in ("mm", "bmm") else [total, a.bfloat16(), b.bfloat16()]
        product = getattr(aten, name)
        assert flops(lambda: product.dtype(*factors, torch.float32)) == batch * 2 * M * N * K
        assert flops(lambda: product.dtype_out(*factors, torch.float32, out=total)) == batch * 2 * M * N * K


def test_baddbmm_with_a_result_of_another_dtype() -> None:
    """torch 2.13 cannot run this one on fake tensors (it takes `out_dtype` for `beta`), so the formula is asked itself."""
    formula = FORMULAS[aten.baddbmm]
    assert formula((B, M, N), (B, M, K), (B, K, N), torch.float32, out_shape=(B, M, N)) == B * 2 * M * N * K


def test_products_with_vectors() -> None:
    _, a, _ = matrices()
    k, m = torch.ones(K), torch.ones(M)
    assert flops(lambda: a @ k) == 2 * M * K
    assert flops(lambda: torch.addmv(m, a, k)) == 2 * M * K
    assert flops(lambda: m.addmv_(a, k)) == 2 * M * K
    assert flops(lambda: k @ k) == 2 * K
    assert flops(lambda: torch.vdot(k, k)) == 2 * K


def test_attention_on_a_cpu_counts_forward_and_backward() -> None:
    batch, heads, length, width = 2, 3, 16, 8
    query = torch.randn(batch, heads, length, width, requires_grad=True)
    one_product = 2 * batch * heads * length * length * width
    assert flops(lambda: functional.scaled_dot_product_attention(query, query, query)) == 2 * one_product
    # Backward: the scores once more, then the gradients of scores, values, queries and keys.
    assert flops(lambda: functional.scaled_dot_product_attention(query, query, query).sum().backward()) == (2 + 5) * one_product


def test_elementwise_work_is_no_product() -> None:
    x = torch.ones(100)
    figures = count(Step(run=lambda: (x * x + x).softmax(0)))
    assert figures == {"flops": 0.0, "operators": 3.0}


@pytest.fixture(scope="module")
def tiles() -> Iterator[Any]:
    library = torch.library.Library("frostline_test_counts", "DEF")
    library.define("fold_(Tensor(a!) tile) -> ()")
    library.define("project(Tensor a, Tensor b) -> Tensor")

    def fold(tile: torch.Tensor) -> None:
        tile.exp_()

    library.impl("fold_", fold, "CPU")
    library.impl("project", lambda a, b: a @ b, "CPU")
    yield torch.ops.frostline_test_counts
    library._destroy()


def test_registered_operators_count_nothing_unless_told(tiles: Any) -> None:
    _, a, b = matrices()

    def run() -> None:
        tiles.fold_(a)
        tiles.project(a, b)

    assert count(Step(run=run)) == {"flops": 0.0, "operators": 2.0}

    def formula(a: Any, b: Any, **_: Any) -> int:
        return int(2 * a[0] * a[1] * b[1])

    assert count(Step(run=run), {tiles.project: formula}) == {"flops": 2 * M * N * K, "operators": 2.0}


def head(*, frozen: bool) -> Step:
    rows, width, vocab = 6, 8, 20
    hidden = torch.randn(rows, width, requires_grad=True)
    weight = torch.randn(vocab, width, requires_grad=not frozen)

    def run() -> None:
        (hidden @ weight.t()).square().sum().backward()

    def reset() -> None:
        hidden.grad = weight.grad = None

    return Step(run=run, reset=reset)


@pytest.mark.parametrize(("frozen", "products"), [(True, 2), (False, 3)])
def test_a_head_takes_two_products_frozen_and_three_trainable(frozen: bool, products: int) -> None:
    step = head(frozen=frozen)
    figures = count(step)
    assert figures["flops"] == products * 2 * 6 * 8 * 20
    assert count(step) == figures, "the same in every run"
    with FakeTensorMode():
        assert count(head(frozen=frozen)) == figures, "the same for fake tensors"


def test_reset_is_not_counted() -> None:
    x = torch.ones(3)
    assert count(Step(run=lambda: x + 1, reset=x.zero_))["operators"] == 1


def test_composite_operators_count_as_their_parts_in_every_mode() -> None:
    x, weight = torch.ones(2, M, K), torch.ones(N, K)
    plain = count(Step(run=lambda: functional.linear(x, weight)))
    with torch.inference_mode():
        assert count(Step(run=lambda: functional.linear(x, weight))) == plain
    assert plain["flops"] == 2 * 2 * M * N * K


def test_a_product_is_of_its_factors_dtype_whatever_it_is_added_to() -> None:
    sums, factors = torch.zeros(4, 4), torch.randn(4, 4, dtype=torch.bfloat16)
    tally = Tally()
    with FakeTensorMode(allow_non_fake_inputs=True), OperatorWatch(call=tally.seen):
        torch.ops.aten.addmm.dtype(sums, factors, factors, torch.float32)
    assert [(call.operator, call.dtype) for call in tally.calls] == [("aten.addmm", "bfloat16")]


@pytest.mark.parametrize("mode", [nullcontext, FakeTensorMode])
def test_an_operator_that_devices_run_as_one_is_one(mode: Any) -> None:
    """`silu_backward` could be taken apart, with three tensors more on the way: no device does that."""
    seen: list[str] = []
    with mode():
        x = torch.randn(8, requires_grad=True)
        y = functional.silu(x).sum()
        with OperatorWatch(call=lambda func, *_: seen.append(func.overloadpacket.__name__)):
            y.backward()
    assert "silu_backward" in seen and "sigmoid" not in seen


def test_questions_about_a_tensor_are_no_operators() -> None:
    with FakeTensorMode():
        x = torch.ones(4, 4)
        figures = count(Step(run=lambda: (x.device, x.size(), x.stride(), x.is_contiguous(), x.numel(), x.dim())))
    assert figures["operators"] == 0


def test_compiled_code_is_counted_as_it_is_written():
    """In the sight of a meter it runs eagerly; nothing is compiled anew for it, and afterwards the compiled code is back."""
    calls = []

    def backend(graph, _):
        calls.append("compiled")
        return lambda *inputs: calls.append("ran") or graph(*inputs)

    def plain(x):
        return (x @ x).sin().sum()

    x = torch.randn(8, 8)
    compiled = torch.compile(plain, backend=backend)
    compiled(x)
    assert count(Step(lambda: compiled(x))) == count(Step(lambda: plain(x)))
    compiled(x)
    assert calls == ["compiled", "ran", "ran"]
