"""Rotary embeddings and SwiGLU in torch operators: what runs on a CPU and for float64. Contracts are in `tiles`."""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.kernels.matmul import accumulator_dtype


def rotate(
    q: Tensor | None, k: Tensor | None, cos: Tensor, sin: Tensor, transposed: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Rotate the halves of the last dimension; see `tiles`."""
    rotated = [None if x is None else _rotated(x, cos[:, None], sin[:, None], transposed) for x in (q, k)]
    return rotated[0], rotated[1]


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, transposed: bool) -> Tensor:
    wide = accumulator_dtype(x.dtype)
    (first, second), (cos_1, cos_2), (sin_1, sin_2) = (part.to(wide).chunk(2, dim=-1) for part in (x, cos, sin))
    if transposed:  # the transpose of the matrix [[cos_1, -sin_1], [sin_2, cos_2]]
        sin_1, sin_2 = -sin_2, -sin_1
    out = torch.empty_like(x)
    half = x.shape[-1] // 2
    out[..., :half] = first * cos_1 - second * sin_1
    out[..., half:] = second * cos_2 + first * sin_2
    return out


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up; see `tiles`."""
    wide = accumulator_dtype(gate.dtype)
    return torch.empty_like(gate).copy_(torch.nn.functional.silu(gate.to(wide)) * up.to(wide))


def swiglu_backward(
    dy: Tensor, gate: Tensor, up: Tensor, needs_gate: bool, needs_up: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients that are asked for; see `tiles`."""
    wide = accumulator_dtype(gate.dtype)
    upstream, x = dy.to(wide), gate.to(wide)
    sigmoid = torch.sigmoid(x)
    dgate = dup = None
    if needs_up:
        dup = torch.empty_like(gate, dtype=up.dtype).copy_(upstream * x * sigmoid)
    if needs_gate:
        slope = sigmoid * (1 + x * (1 - sigmoid))
        dgate = torch.empty_like(gate).copy_(upstream * up.to(wide) * slope)
    return dgate, dup
