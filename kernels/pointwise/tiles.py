"""Rotary embeddings and SwiGLU as registered ops of `torch.ops.frostline`.

`rotate(q, k, cos, sin, transposed)`: q [B, Hq, S, D] and k [B, Hk, S, D], either may be None; cos and sin [B or 1, S, D]. Of
the halves x1, x2 of the last dimension

    y1 = x1 cos1 - x2 sin1,    y2 = x2 cos2 + x1 sin2,

or, `transposed`, the vector-Jacobian product of that, which is another such rotation: the op is its own derivative.

`swiglu(gate, up)`: silu(gate) * up, with silu(x) = x / (1 + exp(-x)). `swiglu_backward(dy, gate, up, needs_gate, needs_up)`:

    d up = dy silu(gate),    d gate = dy up s (1 + gate (1 - s)),    s = 1 / (1 + exp(-gate)).

Values are computed in fp32 (fp64 for fp64) and rounded once. Results lie as their inputs do. What is not asked for is empty: an
operator cannot leave a result out; it is neither computed nor allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from frostline.kernels.backends import Backends
from frostline.kernels.pointwise import tiles_torch
from frostline.kernels.traffic import size_of

_SCHEMAS = {
    "rotate": "(Tensor? q, Tensor? k, Tensor cos, Tensor sin, bool transposed) -> (Tensor, Tensor)",
    "swiglu": "(Tensor gate, Tensor up) -> Tensor",
    "swiglu_backward": "(Tensor dy, Tensor gate, Tensor up, bool needs_gate, bool needs_up) -> (Tensor, Tensor)",
}

_backends = Backends(tiles_torch, "frostline.kernels.pointwise.tiles_triton")
interpreted = _backends.interpreted


def rotate(q: Tensor | None, k: Tensor | None, cos: Tensor, sin: Tensor, transposed: bool) -> tuple[Tensor, Tensor]:
    """Rotate by an op that autograd, the compiler and dispatch modes see."""
    return torch.ops.frostline.rotate.default(q, k, cos, sin, transposed)  # type: ignore[no-any-return]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up by an op that autograd, the compiler and dispatch modes see."""
    return torch.ops.frostline.swiglu.default(gate, up)  # type: ignore[no-any-return]


def _rotate(q: Tensor | None, k: Tensor | None, cos: Tensor, sin: Tensor, transposed: bool) -> tuple[Tensor, Tensor]:
    rotated = _backends.of(cos).rotate(q, k, cos, sin, transposed)
    return _or_empty(rotated[0], cos), _or_empty(rotated[1], cos)


def _rotate_fake(q: Tensor | None, k: Tensor | None, cos: Tensor, sin: Tensor, transposed: bool) -> tuple[Tensor, Tensor]:
    del sin, transposed
    made = [cos.new_empty(0) if x is None else torch.empty_like(x) for x in (q, k)]
    return made[0], made[1]


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return _backends.of(gate).swiglu(gate, up)  # type: ignore[no-any-return]  # a module's attribute


def _swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor, needs_gate: bool, needs_up: bool) -> tuple[Tensor, Tensor]:
    dgate, dup = _backends.of(gate).swiglu_backward(dy, gate, up, needs_gate, needs_up)
    return _or_empty(dgate, gate), _or_empty(dup, up)


def _swiglu_backward_fake(dy: Tensor, gate: Tensor, up: Tensor, needs_gate: bool, needs_up: bool) -> tuple[Tensor, Tensor]:
    del dy
    return (
        torch.empty_like(gate) if needs_gate else gate.new_empty(0),
        torch.empty_like(gate, dtype=up.dtype) if needs_up else up.new_empty(0),
    )


def _or_empty(result: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if result is None else result


def _keep_rotation(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    del output
    q, k, cos, sin, ctx.transposed = inputs
    ctx.given = q is not None, k is not None
    ctx.save_for_backward(cos, sin)
    ctx.set_materialize_grads(False)


def _differentiate_rotation(ctx: Any, dq: Tensor | None, dk: Tensor | None) -> tuple[Tensor | None, ...]:
    cos, sin = ctx.saved_tensors
    (given_q, given_k), (needs_q, needs_k) = ctx.given, ctx.needs_input_grad[:2]
    dq, dk = dq if given_q and needs_q else None, dk if given_k and needs_k else None
    if dq is None and dk is None:
        return (None,) * 5
    found_q, found_k = rotate(dq, dk, cos, sin, not ctx.transposed)
    return None if dq is None else found_q, None if dk is None else found_k, None, None, None


def _keep_operands(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _differentiate_swiglu(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    needs_gate, needs_up = ctx.needs_input_grad
    dgate, dup = torch.ops.frostline.swiglu_backward.default(dy, *ctx.saved_tensors, needs_gate, needs_up)
    return dgate if needs_gate else None, dup if needs_up else None


def _no_second_derivative(*_: Any) -> None:
    raise RuntimeError("swiglu has no second derivative here: take a penalty of gradients on torch's own silu")


_library = torch.library.Library("frostline", "FRAGMENT")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema)
for _key in ("CPU", "CUDA"):
    _library.impl("rotate", _rotate, _key)
    _library.impl("swiglu", _swiglu, _key)
    _library.impl("swiglu_backward", _swiglu_backward, _key)
_library.impl("rotate", _rotate_fake, "Meta")
_library.impl("swiglu", lambda gate, _: torch.empty_like(gate), "Meta")
_library.impl("swiglu_backward", _swiglu_backward_fake, "Meta")
torch.library.register_autograd("frostline::rotate", _differentiate_rotation, setup_context=_keep_rotation, lib=_library)
torch.library.register_autograd("frostline::swiglu", _differentiate_swiglu, setup_context=_keep_operands, lib=_library)
torch.library.register_autograd("frostline::swiglu_backward", _no_second_derivative, lib=_library)


def _rotate_bytes(q: Tensor | None, k: Tensor | None, cos: Tensor, sin: Tensor, transposed: bool) -> int:
    del transposed
    written = sum(x.numel() * x.element_size() for x in (q, k) if x is not None)
    return size_of(q, k, cos, sin) + written


def _swiglu_bytes(gate: Tensor, up: Tensor) -> int:
    return size_of(gate, up) + gate.numel() * gate.element_size()


def _swiglu_backward_bytes(dy: Tensor, gate: Tensor, up: Tensor, needs_gate: bool, needs_up: bool) -> int:
    read = size_of(dy, gate, up if needs_gate else None)
    return read + gate.numel() * gate.element_size() * (needs_gate + needs_up)


# Bytes that an op's Triton kernels read and write, from its arguments (`frostline.kernels.traffic`).
TRAFFIC: dict[Any, Callable[..., int]] = {
    torch.ops.frostline.rotate: _rotate_bytes,
    torch.ops.frostline.swiglu: _swiglu_bytes,
    torch.ops.frostline.swiglu_backward: _swiglu_backward_bytes,
}
