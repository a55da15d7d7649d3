"""One backward of a norm: the tensors that it needs, and its gradients by autograd.

A norm is called with `inputs.leaves` and then `inputs.parameters`, and gives one output or several. `fused_add_rms_norm` has
two leaves, which are added, and two outputs: the normalised rows, and the sum, whose gradient comes from the next residual
connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Norm: TypeAlias = Callable[..., Tensor | tuple[Tensor, ...]]

LAYER_NORM, FUSED_ADD = "layer_norm", "fused_add_rms_norm"
OPS = ("rms_norm", LAYER_NORM, FUSED_ADD)
EPS = 1e-6


@dataclass(frozen=True)
class Problem:
    """What is asked: which norm, of [rows, columns] of which dtype, and whether its parameters are trained."""

    op: str
    rows: int
    columns: int
    dtype: torch.dtype
    trained: bool
    device: str


@dataclass(frozen=True)
class Inputs:
    """The tensors of one backward.

    Attributes:
        leaves: [rows, columns] each, which the norm takes; their gradients are always asked for.
        parameters: [columns] each; their gradients are asked for where they require one.
        upstream: the gradient of each output, [rows, columns].
    """

    leaves: Sequence[Tensor]
    parameters: Sequence[Tensor]
    upstream: Sequence[Tensor]

    def asked(self) -> list[Tensor]:
        """The tensors whose gradients are asked for."""
        return [*self.leaves, *(parameter for parameter in self.parameters if parameter.requires_grad)]

    def doubles(self) -> Inputs:
        """The same in float64."""
        return Inputs(
            [leaf.detach().double().requires_grad_() for leaf in self.leaves],
            [one.detach().double().requires_grad_(one.requires_grad) for one in self.parameters],
            [one.double() for one in self.upstream],
        )


def make_inputs(problem: Problem) -> Inputs:
    """Random tensors of their own."""

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, device=problem.device).to(problem.dtype)

    sizes = problem.rows, problem.columns
    number = 1 + (problem.op == FUSED_ADD)
    return Inputs(
        [randn(*sizes).requires_grad_() for _ in range(number)],
        [randn(problem.columns).requires_grad_(problem.trained) for _ in range(1 + (problem.op == LAYER_NORM))],
        [randn(*sizes) for _ in range(number)],
    )


class Backward:
    """The backward of a norm, over and over; the forward is done when it is called first, or by `prepare`."""

    def __init__(self, norm: Norm, inputs: Inputs) -> None:
        self._norm, self._inputs, self._asked = norm, inputs, inputs.asked()
        self._outputs: tuple[Tensor, ...] = ()

    def prepare(self) -> None:
        """Do the forward."""
        outputs = self._norm(*self._inputs.leaves, *self._inputs.parameters)
        self._outputs = outputs if isinstance(outputs, tuple) else (outputs,)

    def __call__(self) -> tuple[Tensor, ...]:
        """The gradients that are asked for."""
        if not self._outputs:
            self.prepare()
        return torch.autograd.grad(self._outputs, self._asked, self._inputs.upstream, retain_graph=True)


def named(problem: Problem, gradients: Sequence[Tensor]) -> dict[str, Tensor]:
    """Gradients by name, those that were asked for."""
    leaves = ("d_x", "d_residual") if problem.op == FUSED_ADD else ("d_x",)
    return dict(zip((*leaves, "d_weight", "d_bias"), gradients, strict=False))
