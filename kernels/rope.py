"""Rotary position embedding (Su et al. 2021) of the form that rotates halves: y = x cos + rotate_half(x) sin."""

from __future__ import annotations

import torch
from torch import Tensor

from frostline.kernels.arguments import check_floating
from frostline.kernels.pointwise import tiles


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, as transformers' function of this name does, in one kernel.

    With x1 and x2 the halves of the last dimension: y1 = x1 cos1 - x2 sin1 and y2 = x2 cos2 + x1 sin2, in fp32 (fp64 for fp64),
    rounded once. The backward is the transposed rotation, of those alone that need a gradient. Nothing is written in place.

    Args:
        q, k: [B, heads, S, D], or [B, S, heads, D] with `unsqueeze_dim` 2; any number of heads each, any strides. D is even.
        cos, sin: [B, S, D], [1, S, D] or [S, D]; constants, as tables of positions are.
        unsqueeze_dim: where the heads are, 1 or 2 (or -3 or -2).

    Returns:
        Rotated q and k, each of its own dtype and layout.

    Raises:
        TypeError: a dtype that cannot be, or a DTensor.
        ValueError: a shape or device that does not fit, or a cos or sin that requires a gradient.
    """
    dim = unsqueeze_dim + 4 if unsqueeze_dim < 0 else unsqueeze_dim
    if dim not in (1, 2):
        raise ValueError(f"unsqueeze_dim: got {unsqueeze_dim}, wanted 1 ([B, heads, S, D]) or 2 ([B, S, heads, D])")
    _check(q, k, cos, sin, dim)
    table = [x if x.ndim == 3 else x[None] for x in (cos, sin)]
    if dim == 2:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    with torch.autocast(q.device.type, enabled=False):
        q, k = tiles.rotate(q, k, table[0], table[1], False)
    return (q, k) if dim == 1 else (q.transpose(1, 2), k.transpose(1, 2))


def _check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, heads: int) -> None:
    for name, x in (("q", q), ("k", k), ("cos", cos), ("sin", sin)):
        check_floating(x, name)
        if x.device != q.device:
            raise ValueError(f"{name}: got device {x.device}, wanted {q.device}, that of q")
    form = "[B, heads, S, D]" if heads == 1 else "[B, S, heads, D]"
    for name, x in (("q", q), ("k", k)):
        if x.ndim != 4 or x.shape[-1] % 2 or x.shape[-1] < 2:
            raise ValueError(f"{name}: got shape {tuple(x.shape)}, wanted {form} with an even D")
    batch, tokens, width = q.shape[0], q.shape[3 - heads], q.shape[3]
    if (k.shape[0], k.shape[3 - heads], k.shape[3]) != (batch, tokens, width):
        raise ValueError(f"k: got shape {tuple(k.shape)} with q {tuple(q.shape)}, wanted the same but for the heads: {form}")
    for name, x in (("cos", cos), ("sin", sin)):
        if x.shape not in ((batch, tokens, width), (1, tokens, width), (tokens, width)) or x.shape != cos.shape:
            wanted = f"({batch}, {tokens}, {width}), (1, {tokens}, {width}) or ({tokens}, {width}), the same of both"
            raise ValueError(f"{name}: got shape {tuple(x.shape)} with q {tuple(q.shape)}, wanted {wanted}")
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name}: got one that requires a gradient, wanted a constant: pass {name}.detach()")
