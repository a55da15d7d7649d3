"""The head's plan and the cost model say the same of a step: every large tensor to the byte, single rows within an allowance.

A bias adds vectors of the vocabulary's length, and a CPU slabs of widened operands: of those the plan has an upper bound.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from frostline.harness.cost import Cost, predict
from frostline.harness.declare import Step
from frostline.kernels import FusedLinearGRPOLoss, linear_logprob
from frostline.kernels.lm_head.peaks import row_allowance
from frostline.kernels.lm_head.plan import Needs, Plan, Problem, make_plan
from frostline.kernels.matmul import target_device

H, V, BATCH = 1024, 64000, 8
SLAB = 2**24  # bytes: what a CPU widens at a time


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


@dataclass(frozen=True)
class Case:
    rows: int
    known: bool
    trained: bool = False
    bias: bool = False
    active: int = 0
    entropy: bool = False
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"

    def build(self) -> Step:
        shape = (BATCH, self.rows // BATCH)
        hidden = torch.randn(*shape, H, dtype=self.dtype, requires_grad=True)
        weight = torch.randn(V, H, dtype=self.dtype, requires_grad=self.trained)
        bias = torch.randn(V, dtype=self.dtype, requires_grad=self.trained) if self.bias else None
        targets, mask = torch.randint(V, shape), torch.ones(shape)
        options: dict[str, Any] = {"entropy_coef": 0.1} if self.entropy else {}
        module = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, **options)

        def reset() -> None:
            hidden.grad = weight.grad = None
            if bias is not None:
                bias.grad = None

        def known() -> None:
            advantages, active = torch.ones(BATCH), self.active or None
            module(hidden, weight, targets, mask, advantages, bias, active_rows=active)[0].backward()

        def unknown() -> None:
            active = {"active": mask.bool(), "active_rows": self.active} if self.active else {}
            found = linear_logprob(hidden, weight, targets, bias, return_entropy=self.entropy, **active)
            (found[0].sum() + found[1].sum() if self.entropy else found.sum()).backward()

        return Step(run=known if self.known else unknown, reset=reset)

    def plan(self) -> Plan:
        return make_plan(
            Problem(
                rows=self.active or self.rows,
                hidden=H,
                vocab=V,
                dtype=self.dtype,
                needs=Needs(True, self.trained, self.trained and self.bias),
                loss_known=self.known,
                entropy=self.entropy,
                masked=self.known or bool(self.active),
                gathered_from=self.rows if self.active else 0,
                device=self.device,
                fusable=self.device == "cuda" and self.dtype.itemsize == 2,
            )
        )

    def cost(self) -> Cost:
        return predict(self.build, context=target_device(self.device), device="cpu")  # to the byte, not in CUDA's granules

    def large(self, cost: Cost) -> int:
        """Bytes of the large tensors at the peak that are no inputs."""
        inputs = (self.rows + V) * H * self.dtype.itemsize
        return sum(one.bytes for one in cost.peak.alive if one.bytes > 64 * self.rows) - inputs


CASES = [
    Case(rows, known, trained, active=active, dtype=dtype)
    for rows, dtype in ((2048, torch.bfloat16), (16384, torch.bfloat16), (16384, torch.float32))
    for known in (True, False)
    for trained in (False, True)
    for active in (0, rows // 2)
]
CASES += [Case(8192, known, trained, entropy=True) for known in (True, False) for trained in (False, True)]
BIASED = [
    Case(rows, known, True, True, active) for rows in (2048, 16384) for known in (True, False) for active in (0, rows // 2)
]
ON_CPU = [
    Case(2048, known, trained, active=active, dtype=dtype, device="cpu")
    for dtype in (torch.bfloat16, torch.float32)
    for known in (True, False)
    for trained in (False, True)
    for active in (0, 1024)
]


def named(case: Case) -> str:
    changed = {name: value for name, value in vars(case).items() if value != getattr(Case(1, True), name)}
    return " ".join(f"{name}={value}" for name, value in changed.items())


@pytest.mark.parametrize("case", CASES, ids=named)
def test_to_the_byte(case: Case) -> None:
    plan, cost = case.plan(), case.cost()
    assert plan.peak_bytes - row_allowance(plan) == case.large(cost)
    assert 0 < cost.figures["peak_above_inputs"] - case.large(cost) <= row_allowance(plan)


def within(case: Case, slack: int) -> None:
    plan, above = case.plan(), case.cost().figures["peak_above_inputs"]
    assert above <= plan.peak_bytes <= above + row_allowance(plan) + slack


@pytest.mark.parametrize("case", BIASED, ids=named)
def test_a_bias_adds_at_most_three_vectors_of_the_vocabulary(case: Case) -> None:
    within(case, 3 * 4 * V)


@pytest.mark.parametrize("case", ON_CPU, ids=named)
def test_on_a_cpu_at_most_a_slab_more(case: Case) -> None:
    within(case, SLAB if case.dtype == torch.bfloat16 else 0)


def test_rows_that_are_gathered_are_in_the_plan() -> None:
    half = Case(16384, True, active=8192)
    copy = 8192 * H * 2
    without = make_plan(Problem(**{**vars(half.plan().problem), "gathered_from": 0}))
    assert half.plan().peak_bytes - row_allowance(half.plan()) == without.peak_bytes - row_allowance(without) + copy


def test_flops_are_the_plans(make: Callable[[Case], Cost] = Case.cost) -> None:
    for case in (Case(2048, True), Case(2048, True, True), Case(2048, False, True), Case(2048, True, active=1024)):
        assert make(case).figures["flops"] == case.plan().flops
