"""The tiles in torch operators: what runs on a CPU, and what the Triton kernels are checked against. Contracts are in `tiles`.

Each op walks its tile in slabs of rows that fit a core's cache, so that a chain of operators over a slab does not go through
memory once per operator. `fold_tile` and `gradient_tile` own the tile and work in place on it; temporaries are a slab at most.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

INACTIVE = -1  # the target of a row that does not count

# A slab holds at most this many elements: 1 MiB in fp32.
_SLAB_ELEMENTS = 1 << 18


def _slabs(rows: int, width: int) -> Iterator[slice]:
    height = max(1, _SLAB_ELEMENTS // max(1, width))
    for first in range(0, rows, height):
        yield slice(first, min(first + height, rows))


def _transform_(x: Tensor, bias: Tensor | None, inner: float, outer: float, capped: bool) -> Tensor:
    """Turn a slab of raw logits into transformed ones, in place."""
    if bias is not None:
        x.add_(bias)
    if capped:
        x.mul_(inner).tanh_()
    return x if outer == 1.0 else x.mul_(outer)


def _tanh_slope(z: Tensor, outer: float) -> Tensor:
    """1 - tanh^2 where z = outer * tanh."""
    return (z / outer).square_().neg_().add_(1.0)


def _any_inactive(targets: Tensor) -> bool:
    """Whether zeros must be written; a device is not asked, but served as if there were some."""
    return targets.device.type != "cpu" or bool((targets == INACTIVE).any())


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
    plain = bias is None and not capped and outer == 1.0
    for rows in _slabs(*x.shape):
        z = x[rows] if plain else _transform_(x[rows].clone(), bias, inner, outer, capped)
        _keep_target_logit(z, targets[rows], target_logit[rows], start, first)
        tile_maximum = _finite_maximum(z)
        new_maximum = tile_maximum if first else torch.maximum(maximum[rows], tile_maximum)
        scale = torch.zeros_like(new_maximum) if first else torch.exp(maximum[rows] - new_maximum)
        p = (z - new_maximum.unsqueeze(1)).exp_()
        if moment is not None:
            before = scale.new_zeros(()) if first else moment[rows] * scale
            moment[rows] = before + torch.where(p > 0, p * z, 0.0).sum(1)
        total[rows] = p.sum(1) if first else total[rows] * scale + p.sum(1)
        maximum[rows] = new_maximum


def fold_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    p: Tensor | None,
    maximum: Tensor,
    total: Tensor,
    moment: Tensor | None,
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
        z = _transform_(x[rows], bias, inner, outer, capped)
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
        slope = _tanh_slope(z, outer) if capped else None
        logits = None if moment is None else z.clone()
        z.sub_(maximum[rows].unsqueeze(1)).exp_()
        total[rows] = z.sum(1) if first else total[rows] * rescale[rows] + z.sum(1)
        if moment is not None and logits is not None:
            added = logits.mul_(z).masked_fill_(z == 0, 0.0).sum(1)
            moment[rows] = added if first else moment[rows] * rescale[rows] + added
        if slope is not None:
            z.mul_(slope)
        if p is not None:
            p[rows] = z


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
    some_inactive = _any_inactive(targets)
    for rows in _slabs(*x.shape):
        z = _transform_(x[rows], bias, inner, outer, capped)
        slope = _tanh_slope(z, outer).mul_(inner) if capped else None
        upstream = grad_logp[rows].to(z.dtype) * outer
        column, inside = _column_of_target(targets[rows], start, z.shape[1])
        log_p = z.sub_(log_z[rows].unsqueeze(1))
        surprise = None
        if grad_entropy is not None and entropy is not None:
            surprise = (log_p + entropy[rows].unsqueeze(1)).mul_((grad_entropy[rows] * -outer).to(z.dtype).unsqueeze(1))
        p = log_p.exp_()
        if surprise is not None:  # where p underflowed, log p may be -inf
            surprise = surprise.mul_(p).masked_fill_(p == 0, 0.0)
        gradient = p.mul_(-upstream.unsqueeze(1)).scatter_add_(1, column, torch.where(inside, upstream, 0.0).unsqueeze(1))
        if surprise is not None:
            gradient.add_(surprise)
        if slope is not None:
            gradient.mul_(slope)
        if some_inactive:
            gradient.masked_fill_((targets[rows] == INACTIVE).unsqueeze(1), 0.0)
        if out is not None:
            out[rows] = gradient


def rescale_rows(values: Tensor, factor: Tensor) -> None:
    """values[r] *= factor[r]; rows whose factor is 1 are not touched, so that the common case costs nothing."""
    if values.device.type == "cpu" and not bool((factor != 1).any()):
        return
    values.mul_(factor.unsqueeze(1))


def finish_rows(mean: Tensor, weight: Tensor, targets: Tensor, onto_target: Tensor, onto_mean: Tensor, out: Tensor) -> None:
    """out[r] = onto_target[r] * weight[targets[r]] - onto_mean[r] * mean[r] (see `tiles`)."""
    vocab, some_inactive = weight.shape[0], _any_inactive(targets)
    for rows in _slabs(*mean.shape):
        target = weight[targets[rows].clamp(0, vocab - 1)].to(mean.dtype)
        result = target.mul_(onto_target[rows].unsqueeze(1)).sub_(mean[rows] * onto_mean[rows].unsqueeze(1))
        out[rows] = result.masked_fill_((targets[rows] == INACTIVE).unsqueeze(1), 0.0) if some_inactive else result
