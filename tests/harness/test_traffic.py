"""Bytes that operators read and write at least, against hand counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from frostline.harness.meters.counts import Tally
from frostline.harness.meters.dispatch import OperatorWatch

A, B = torch.ones(6, 5), torch.ones(5, 7)
INDEX = torch.tensor([0, 2])


def moved(run: Callable[[], Any], **options: Any) -> int:
    tally = Tally(**options)
    with OperatorWatch(call=tally.seen):
        run()
    return sum(one.bytes * one.calls for one in tally.calls)


@pytest.mark.parametrize(
    ("run", "values"),
    [
        (lambda: A @ B, 6 * 5 + 5 * 7 + 6 * 7),
        (lambda: torch.mm(A, B, out=torch.empty(6, 7)), 6 * 5 + 5 * 7 + 6 * 7),
        (lambda: torch.ones(6, 7).addmm_(A, B), 6 * 7 + 6 * 5 + 5 * 7 + 2 * 6 * 7),
        (lambda: A * A, 2 * 30),
        (lambda: A.clone().mul_(2), 2 * 30 + 2 * 30),
        (lambda: torch.empty(100).zero_(), 100),
        (lambda: torch.empty(6, 5).copy_(A), 2 * 30),
        (lambda: A.t()[1:3].reshape(-1, 6), 0),
        (lambda: A.view(-1).detach().expand(4, 30), 0),
        (lambda: torch.ones(1).expand(1000) + 1, 1 + 1 + 1000),
        (lambda: torch.empty_strided((10,), (1,)), 0),
        (lambda: torch.cat([A, A]), 30 + 60),
    ],
)
def test_hand_counts(run: Callable[[], Any], values: int) -> None:
    assert moved(run) == 4 * values


def test_of_what_an_index_picks_from_only_that_much() -> None:
    source = torch.ones(1000, 8)
    assert moved(lambda: source.index_select(0, INDEX)) == 4 * (16 + 16) + 8 * 2
    assert moved(lambda: source.index_add_(0, INDEX, torch.ones(2, 8))) == 4 * 16 + 4 * (16 + 16 + 16) + 8 * 2


@pytest.fixture(scope="module")
def halved() -> Any:
    library = torch.library.Library("frostline_test_traffic", "DEF")
    library.define("halve(Tensor(a!) x) -> ()")

    def halve(x: Tensor) -> None:
        x.div_(2)

    library.impl("halve", halve, "CPU")
    yield torch.ops.frostline_test_traffic.halve
    library._destroy()


def test_a_declaration_wins(halved: Any) -> None:
    def declared(x: Tensor) -> int:
        return 1000 + x.numel()

    x = torch.ones(10)
    tally = Tally(traffic={halved: declared})
    with OperatorWatch(call=tally.seen):
        halved(x)
        halved(x)
    (one,) = tally.calls
    assert (one.operator, one.bytes, one.declared, one.calls) == ("frostline_test_traffic.halve", 1010, True, 2)
    assert moved(lambda: halved(x)) == 4 * 2 * 10


def test_flops_stand_by_operator_and_dtype() -> None:
    tally, narrow = Tally(), (A.bfloat16(), B.bfloat16())
    with OperatorWatch(call=tally.seen):
        torch.mm(A, B)
        torch.mm(A, B)
        torch.mm(*narrow)
        torch.mm(*narrow, out=torch.empty(6, 7, dtype=torch.bfloat16))
    products = [(one.dtype, one.calls) for one in tally.calls if one.flops == 2 * 6 * 5 * 7]
    assert products == [("float32", 2), ("bfloat16", 2)]
    assert tally.totals()["flops"] == 4 * 2 * 6 * 5 * 7
