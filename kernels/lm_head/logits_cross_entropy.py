"""Cross entropy of logits that are there: their gradient takes their place, so that nothing else of their size is made.

The loss is that of `cross_entropy`, the work on a tile that of `tiles`; a block of rows at a time is widened to fp32, where the
logits are narrower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frostline.kernels.arguments import check_floating
from frostline.kernels.lm_head import tiles, walk
from frostline.kernels.lm_head.checks import check_device, check_shape
from frostline.kernels.lm_head.cross_entropy import (
    CrossEntropyOptions,
    CrossEntropyOutput,
    Reduction,
    check_class_weights,
    make_loss,
    outputs_of,
)
from frostline.kernels.lm_head.first_order import first_order_only
from frostline.kernels.lm_head.head import Head, OntoLogits, Statistics
from frostline.kernels.lm_head.known_loss import KnownLoss
from frostline.kernels.lm_head.rows import Rows
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.lm_head.walk import Running
from frostline.kernels.matmul import accumulator_dtype
from frostline.kernels.uncompiled import uncompiled

_BLOCK_BYTES = 1 << 28  # of a block of rows in fp32


@uncompiled
def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    softcap: float | None = None,
    logit_scale: float = 1.0,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    """Cross entropy of `logits` with `target`. **Where a gradient is asked for, it is written over the logits**: they hold none
    afterwards, and a second backward through one forward is refused. Without one they are left alone.

    Statistics and sums are fp32 (fp64 for fp64), whatever the logits are.

    Args:
        logits: [..., V] bf16, fp16, fp32 or fp64. Where rows are not dense they are copied first, and stay.
        target: [...] integers in [0, V), or `ignore_index`.
        weight: [V] weights of the classes, any floating dtype; not differentiated.
        ignore_index, lse_square_scale, label_smoothing, reduction, softcap, logit_scale, return_z_loss, return_token_accuracy,
            return_predicted_tokens: as of `linear_cross_entropy`.

    Returns:
        The loss, fp32 (fp64): a scalar, or in the shape of `target`; or a `CrossEntropyOutput`.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or range, in one line that names it.
        RuntimeError: in a second backward.
    """
    options = CrossEntropyOptions(
        ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss,
        return_token_accuracy=return_token_accuracy, return_predicted_tokens=return_predicted_tokens, logit_scale=logit_scale,
    )  # fmt: skip
    _check(logits, target)
    check_class_weights(weight, logits.shape[-1], logits, "weight", "logits")
    labels = target.long()
    rows = Rows.of(labels.numel(), labels != ignore_index, None, gather=False)
    chosen = rows.targets(labels, logits.shape[-1])
    loss = make_loss(chosen, logits.shape[-1], weight, options, accumulator_dtype(logits.dtype))
    call = _Call(loss, Transform.of(1.0, softcap, logit_scale), rows.masked, weight, torch.is_grad_enabled())
    value, z_loss, *best = _OnLogits.apply(logits.flatten(0, -2) if logits.ndim != 2 else logits, chosen, call)
    return outputs_of(value, (z_loss, *best), rows, chosen, target, loss)


@dataclass(frozen=True)
class _Call:
    """What one call asks for besides its tensors."""

    loss: KnownLoss
    transform: Transform
    masked: bool
    column_weight: Tensor | None
    grad: bool

    def head(self, logits: Tensor, targets: Tensor) -> Head:
        """Rows of logits as a pass sees a head's: there is no product any more, so the weight has no rows."""
        return Head(logits, logits[:0], targets, None, self.transform, self.masked, self.column_weight)


class _OnLogits(torch.autograd.Function):
    """(logits [n, V], targets [n], call) -> (loss, *metrics)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, call: _Call) -> tuple[Tensor, ...]:
        formed = call.grad and ctx.needs_input_grad[0]
        plain = logits.detach()
        dense = plain if plain.stride(-1) == 1 and plain.stride(0) >= plain.shape[1] else plain.contiguous()
        with torch.autocast(logits.device.type, enabled=False):
            head = call.head(dense, targets.contiguous())
            statistics = _pass(head, call.loss, formed)
            value, metrics = call.loss.total(statistics)
        if formed and dense is plain:  # whoever saved the logits for a backward must be told
            torch.autograd.graph.increment_version(logits)
        ctx.spent, ctx.gradient = False, dense if formed else None
        ctx.mark_non_differentiable(*metrics)
        return value, *metrics

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, None, None]:
        if ctx.spent:
            raise RuntimeError(
                "cross_entropy: a second backward through one forward; the gradient took the place of the logits and was scaled"
                " there by the first one: call cross_entropy again, or take torch's own"
            )
        ctx.spent, gradient = True, ctx.gradient
        ctx.gradient = None
        tiles.rescale_rows(gradient, grad_loss.to(accumulator_dtype(gradient.dtype)).expand(gradient.shape[0]))
        return gradient, None, None


def _pass(head: Head, loss: KnownLoss, formed: bool) -> Statistics:
    """The statistics of all rows, and where it is `formed` the gradient over the logits."""
    logits, wants = head.hidden, loss.wants
    count, vocab = logits.shape
    result, scalars = Statistics.new(head, wants), walk.scalars(head)
    height = max(1, min(count, _BLOCK_BYTES // (4 * vocab)))
    buffer = None if logits.dtype == head.wide else head.empty(height, vocab)
    for first in range(0, count, height):
        rows = slice(first, min(first + height, count))
        block, found = head.rows(rows), result.rows(rows)
        x = logits[rows] if buffer is None else buffer[: rows.stop - first].copy_(logits[rows])
        running = Running.begun(block, wants, _with_targets(block, x))
        state = running.reference, running.total, running.moment, running.best
        tiles.reduce_tile(x, None, block.targets, *state, 0, *scalars)
        if running.spread is not None:
            into = running.target_logit, head.column_weight, running.spread
            tiles.spread_tile(x, None, block.targets, *into, 0, *scalars)
        running.finish(block, found)
        if formed:
            onto = OntoLogits.of(loss.upstream(found, rows), found.miss)
            walk.gradient(block, slice(0, vocab), x, None if buffer is None else logits[rows], found, onto)
    return result


def _with_targets(block: Head, x: Tensor) -> Tensor:
    """Memory [6, rows] that begins with the transformed logit of each target, 0 for a row that does not count.

    A target outside of the vocabulary gives NaN, as a pass over a head does.
    """
    rows, vocab = block.empty(6, x.shape[0]), x.shape[1]
    there = (block.targets >= 0) & (block.targets < vocab)
    own = x.gather(1, block.targets.clamp(0, vocab - 1)[:, None])[:, 0]
    inner, outer, capped = walk.scalars(block)
    own = outer * torch.tanh(inner * own) if capped else outer * own
    own = torch.where(there, own, torch.nan)
    rows[0] = own.masked_fill(block.targets == tiles.INACTIVE, 0.0)
    return rows


def _check(logits: Tensor, target: Tensor) -> None:
    check_floating(logits, "logits")
    if logits.ndim < 2 or logits.shape[-1] < 1:
        raise ValueError(f"logits: got shape {tuple(logits.shape)}, wanted [..., V] with V at least 1")
    if target.dtype.is_floating_point or target.dtype.is_complex or target.dtype == torch.bool:
        raise TypeError(f"target: got {target.dtype}, wanted an integer dtype")
    check_shape(target, tuple(logits.shape[:-1]), "target", "one for each row of logits")
    check_device(target, logits, "target", "logits")
