"""The tiles in torch operators: what runs on a CPU, and what the Triton kernels are checked against. Contracts are in `tiles`.

Each op walks its tile in slabs of rows that fit a core's cache, so that its temporaries are small beside the tile and the
elementwise chain over a slab does not go through memory once per operator.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

INACTIVE = -1  # the target of a row that does not count

# A slab holds at most this many elements: 512 KiB in fp32.
_SLAB_ELEMENTS = 1 << 17


def _slabs(rows: int, width: int) -> Iterator[slice]:
    height = max(1, _SLAB_ELEMENTS // max(1, width))
    for first in range(0, rows, height):
        yield slice(first, min(first + height, rows))


def _logits(x: Tensor, bias: Tensor | None, inner: float, outer: float, capped: bool) -> Tensor:
    """The transformed logits of a slab, in a tensor of their own."""
    z = x + bias if bias is not None else x.clone()
    return z.mul_(inner).tanh_().mul_(outer) if capped else z.mul_(outer)


def _column_of_target(targets: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """The target's column within the tile, clamped into it, and whether it really lies there."""
    column = targets - start
    inside = (column >= 0) & (column < width) & (targets != INACTIVE)
    return column.clamp(0, width - 1).unsqueeze(1), inside


def _keep_target_logit(z: Tensor, targets: Tensor, target_logit: Tensor, start: int, first: bool) -> None:
    column, inside = _column_of_target(targets, start, z.shape[1])
    before = torch.full_like(target_logit, float("nan")) if first else target_logit
    target_logit.copy_(torch.where(inside, z.gather(1, column).squeeze(1), before))


def _finite_maximum(z: Tensor) -> Tensor:
    """The row maximum, but never -inf: a row of -inf alone would otherwise subtract -inf from itself."""
    return z.amax(1).clamp_(min=torch.finfo(z.dtype).min)


def reduce_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    maximum: Tensor,
    total: Tensor,
    moment: Tensor | None,
    target_logit: Tensor,
    start: int,
    first: bool,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Fold a tile into the running statistics (see `tiles`)."""
    for rows in _slabs(*x.shape):
        z = _logits(x[rows], bias, inner, outer, capped)
        _keep_target_logit(z, targets[rows], target_logit[rows], start, first)
        tile_maximum = _finite_maximum(z)
        new_maximum = tile_maximum if first else torch.maximum(maximum[rows], tile_maximum)
        scale = torch.zeros_like(new_maximum) if first else torch.exp(maximum[rows] - new_maximum)
        p = torch.exp(z - new_maximum.unsqueeze(1))
        if moment is not None:
            before = scale.new_zeros(()) if first else moment[rows] * scale
            moment[rows] = before + torch.where(p > 0, p * z, 0.0).sum(1)
        total[rows] = (p.sum(1) if first else total[rows] * scale + p.sum(1)).to(total.dtype)
        maximum[rows] = new_maximum


def fold_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    p: Tensor | None,
    maximum: Tensor,
    total: Tensor,
    target_logit: Tensor,
    rescale: Tensor,
    start: int,
    first: bool,
    limit: float,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Fold a tile into the running statistics and turn it into unnormalised probabilities (see `tiles`)."""
    for rows in _slabs(*x.shape):
        z = _logits(x[rows], bias, inner, outer, capped)
        _keep_target_logit(z, targets[rows], target_logit[rows], start, first)
        tile_maximum = _finite_maximum(z)
        if first:
            rescale[rows] = 1.0
            maximum[rows] = tile_maximum
        else:
            grown = (tile_maximum > maximum[rows] + limit) & (targets[rows] != INACTIVE)
            new_maximum = torch.where(grown, tile_maximum, maximum[rows])
            rescale[rows] = torch.where(grown, torch.exp(maximum[rows] - new_maximum), 1.0)
            maximum[rows] = new_maximum
        slope = (z / outer).square_().neg_().add_(1.0) if capped else None
        z.sub_(maximum[rows].unsqueeze(1)).exp_()
        total[rows] = z.sum(1) if first else total[rows] * rescale[rows] + z.sum(1)
        if slope is not None:
            z.mul_(slope)
        (x if p is None else p)[rows] = z


def gradient_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    log_z: Tensor,
    grad_logp: Tensor,
    grad_entropy: Tensor | None,
    entropy: Tensor | None,
    out: Tensor | None,
    start: int,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Turn a tile into the gradient with respect to its raw logits (see `tiles`).

    d logp / d z_j = [j is the target] - p_j and d entropy / d z_j = -p_j (log p_j + entropy).
    """
    for rows in _slabs(*x.shape):
        active = targets[rows] != INACTIVE
        z = _logits(x[rows], bias, inner, outer, capped)
        slope = (z / outer).square_().neg_().add_(1.0).mul_(inner * outer) if capped else None
        log_p = z.sub_(log_z[rows].unsqueeze(1))
        upstream = grad_logp[rows].to(z.dtype)
        p = torch.exp(log_p)
        gradient = p * -upstream.unsqueeze(1)
        if grad_entropy is not None and entropy is not None:
            surprise = log_p.add_(entropy[rows].unsqueeze(1)).mul_(p).mul_(-grad_entropy[rows].to(z.dtype).unsqueeze(1))
            gradient += torch.where(p > 0, surprise, 0.0)
        column, inside = _column_of_target(targets[rows], start, z.shape[1])
        gradient.scatter_add_(1, column, torch.where(inside, upstream, 0.0).unsqueeze(1))
        gradient.mul_(slope if slope is not None else outer)
        (x if out is None else out)[rows] = gradient.masked_fill_(~active.unsqueeze(1), 0.0)


def rescale_rows(values: Tensor, factor: Tensor) -> None:
    """values[r] *= factor[r]; rows whose factor is 1 are not touched, so that the common case costs nothing."""
    if values.device.type == "cpu" and not bool((factor != 1).any()):
        return
    values.mul_(factor.unsqueeze(1))


def finish_rows(mean: Tensor, weight: Tensor, targets: Tensor, onto_target: Tensor, onto_mean: Tensor, out: Tensor) -> None:
    """out[r] = onto_target[r] * weight[targets[r]] - onto_mean[r] * mean[r] (see `tiles`)."""
    vocab = weight.shape[0]
    for rows in _slabs(*mean.shape):
        target = weight[targets[rows].clamp(0, vocab - 1)].to(mean.dtype)
        result = target.mul_(onto_target[rows].unsqueeze(1)).sub_(mean[rows] * onto_mean[rows].unsqueeze(1))
        out[rows] = result.masked_fill_((targets[rows] == INACTIVE).unsqueeze(1), 0.0)
