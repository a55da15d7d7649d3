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


def _without_target(z: Tensor, targets: Tensor, start: int) -> Tensor:
    """`z` with -inf in the target's column, in place: what is summed is the other columns."""
    column, inside = _column_of_target(targets, start, z.shape[1])
    return z.scatter_(1, column, torch.where(inside, -torch.inf, z.gather(1, column).squeeze(1)).unsqueeze(1))


def _finite_maximum(z: Tensor) -> Tensor:
    """The row maximum, but never -inf: a row of -inf alone would otherwise subtract -inf from itself."""
    return z.amax(1).clamp_(min=torch.finfo(z.dtype).min)


def _moved(total: Tensor, moment: Tensor | None, scale: Tensor, step: Tensor) -> None:
    """Express sums relative to a reference that moved by `step`, with `scale` = exp(-step), in place."""
    if moment is not None:
        moment.sub_(torch.where(scale > 0, step, 0.0) * total).mul_(scale)
    total.mul_(scale)


def _add(total: Tensor, moment: Tensor | None, shifted: Tensor) -> Tensor:
    """Add the sums of a slab of z - reference, and turn it into its exponentials, in place."""
    if moment is None:
        total += shifted.exp_().sum(1)
        return shifted
    logits = shifted.clone()
    p = shifted.exp_()
    moment += logits.mul_(p).masked_fill_(p == 0, 0.0).sum(1)
    total += p.sum(1)
    return p


def _improve(best: Tensor | None, rows: slice, z: Tensor, start: int) -> None:
    """Let the first maximum of a slab take the place of the best column so far, where it is larger."""
    if best is None:
        return
    value, column = best[0, rows], best[1, rows]
    highest = z.amax(1)
    first = (z == highest.unsqueeze(1)).to(torch.uint8).argmax(1)  # argmax alone promises no order among equals
    better = highest > value
    column.copy_(torch.where(better, (first + start).to(column.dtype), column))
    value.copy_(torch.where(better, highest, value))


def target_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    out: Tensor,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """The transformed logit of each row's target (see `tiles`)."""
    vocab = weight.shape[0]
    for rows in _slabs(*hidden.shape):
        column = targets[rows].clamp(0, vocab - 1)
        z = (hidden[rows].to(out.dtype) * weight[column].to(out.dtype)).sum(1, keepdim=True)
        z = _transform_(z, None if bias is None else bias[column].unsqueeze(1), inner, outer, capped).squeeze(1)
        z = torch.where(targets[rows] >= vocab, torch.nan, z)
        out[rows] = torch.where(targets[rows] == INACTIVE, 0.0, z)


def reduce_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    reference: Tensor,
    total: Tensor,
    moment: Tensor | None,
    best: Tensor | None,
    start: int,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Fold a tile into the running statistics (see `tiles`)."""
    for rows in _slabs(*x.shape):
        z = _transform_(x[rows].clone(), bias, inner, outer, capped)
        _improve(best, rows, z, start)
        z = _without_target(z, targets[rows], start)
        before = reference[rows].clone()
        reference[rows] = torch.maximum(before, _finite_maximum(z))
        step = reference[rows] - before
        sums = total[rows], None if moment is None else moment[rows]
        _moved(*sums, torch.exp(-step), step)
        _add(*sums, z.sub_(reference[rows].unsqueeze(1)))


def fold_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    p: Tensor | None,
    reference: Tensor,
    total: Tensor,
    moment: Tensor | None,
    best: Tensor | None,
    rescale: Tensor,
    start: int,
    limit: float,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Fold a tile into the running statistics and turn it into unnormalised probabilities (see `tiles`)."""
    some_inactive = _any_inactive(targets)
    for rows in _slabs(*x.shape):
        z = _transform_(x[rows], bias, inner, outer, capped)
        _improve(best, rows, z, start)
        slope = _tanh_slope(z, outer) if capped else None
        z = _without_target(z, targets[rows], start)
        maximum, before = _finite_maximum(z), reference[rows].clone()
        grown = (maximum > before + limit) & (targets[rows] != INACTIVE)
        reference[rows] = torch.where(grown, maximum, before)
        step = reference[rows] - before
        rescale[rows] = torch.where(grown, torch.exp(-step), 1.0)
        sums = total[rows], None if moment is None else moment[rows]
        _moved(*sums, rescale[rows], step)
        probabilities = _add(*sums, z.sub_(reference[rows].unsqueeze(1)))
        if slope is not None:
            probabilities.mul_(slope)
        if some_inactive:
            probabilities.masked_fill_((targets[rows] == INACTIVE).unsqueeze(1), 0.0)
        if p is not None:
            p[rows] = probabilities


def gradient_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    reference: Tensor,
    log_total: Tensor,
    at_target: Tensor,
    onto_p: Tensor,
    grad_entropy: Tensor | None,
    entropy: Tensor | None,
    onto_all: Tensor | None,
    column_weight: Tensor | None,
    out: Tensor | None,
    start: int,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Turn a tile into the gradient with respect to its raw logits (see `tiles`)."""
    some_inactive = _any_inactive(targets)
    for rows in _slabs(*x.shape):
        z = _transform_(x[rows], bias, inner, outer, capped)
        slope = _tanh_slope(z, outer).mul_(inner) if capped else None
        column, inside = _column_of_target(targets[rows], start, z.shape[1])
        log_p = z.sub_(reference[rows].unsqueeze(1)).sub_(log_total[rows].unsqueeze(1))
        surprise = None
        if grad_entropy is not None and entropy is not None:
            surprise = (log_p + entropy[rows].unsqueeze(1)).mul_((grad_entropy[rows] * -outer).to(z.dtype).unsqueeze(1))
        p = log_p.exp_()
        if surprise is not None:  # where p underflowed, log p may be -inf
            surprise = surprise.mul_(p).masked_fill_(p == 0, 0.0)
        gradient = p.mul_((onto_p[rows].to(z.dtype) * outer).unsqueeze(1))
        own = torch.where(inside, at_target[rows].to(z.dtype) * outer, gradient.gather(1, column).squeeze(1))
        gradient.scatter_(1, column, own.unsqueeze(1))
        if surprise is not None:
            gradient.add_(surprise)
        if onto_all is not None:
            every = (onto_all[rows].to(z.dtype) * outer).unsqueeze(1)
            gradient.add_(every if column_weight is None else every * column_weight.to(z.dtype))
        if slope is not None:
            gradient.mul_(slope)
        if some_inactive:
            gradient.masked_fill_((targets[rows] == INACTIVE).unsqueeze(1), 0.0)
        if out is not None:
            out[rows] = gradient


def spread_tile(
    x: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    target_logit: Tensor,
    column_weight: Tensor | None,
    spread: Tensor,
    start: int,
    inner: float,
    outer: float,
    capped: bool,
) -> None:
    """Add a tile's logits relative to the target's (see `tiles`)."""
    for rows in _slabs(*x.shape):
        z = _transform_(x[rows].clone(), bias, inner, outer, capped).sub_(target_logit[rows].unsqueeze(1))
        if column_weight is not None:
            z.mul_(column_weight.to(z.dtype))
        column, inside = _column_of_target(targets[rows], start, z.shape[1])
        z.scatter_(1, column, torch.where(inside, 0.0, z.gather(1, column).squeeze(1)).unsqueeze(1))
        spread[rows] += torch.where(targets[rows] == INACTIVE, 0.0, z.sum(1))


def rescale_rows(values: Tensor, factor: Tensor) -> None:
    """values[r] *= factor[r]; rows whose factor is 1 are not touched, so that the common case costs nothing."""
    if values.device.type == "cpu" and not bool((factor != 1).any()):
        return
    values.mul_(factor.unsqueeze(1))


def scaled_rows(values: Tensor, factor: Tensor, out: Tensor) -> None:
    """out[r] = values[r] * factor[r], rounded once."""
    torch.mul(values, factor.unsqueeze(1), out=out)


def finish_rows(mean: Tensor, weight: Tensor, targets: Tensor, onto_target: Tensor, onto_mean: Tensor, out: Tensor) -> None:
    """out[r] = onto_target[r] * weight[targets[r]] - onto_mean[r] * mean[r] (see `tiles`)."""
    vocab, some_inactive = weight.shape[0], _any_inactive(targets)
    for rows in _slabs(*mean.shape):
        target = weight[targets[rows].clamp(0, vocab - 1)].to(mean.dtype)
        result = target.mul_(onto_target[rows].unsqueeze(1)).sub_(mean[rows] * onto_mean[rows].unsqueeze(1))
        out[rows] = result.masked_fill_((targets[rows] == INACTIVE).unsqueeze(1), 0.0) if some_inactive else result
