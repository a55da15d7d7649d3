"""`linear_cross_entropy`: cross entropy straight from hidden states, without logits that anybody has to keep.

Of a row with logits z, target y, class weights w (1 where none are given) and V classes,

    loss = (1 - eps) w_y (lse - z_y) + eps / V sum_j w_j (lse - z_j) + s lse^2,        lse = log sum exp z

with eps the label smoothing (Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7) and s the scale of the z loss
(Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, section 5). The loss is known while the logits are at hand, so the
gradients are formed there: two products with the weight where the head is frozen, three where it is trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from frostline.kernels.lm_head.autograd import checked_inputs, flat
from frostline.kernels.lm_head.checks import (
    ActiveRows,
    check_device,
    check_memory_budget,
    check_shape,
)
from frostline.kernels.lm_head.head import Onto, Statistics, Wants
from frostline.kernels.lm_head.known_loss import LossCall, linear_loss
from frostline.kernels.lm_head.rows import Rows
from frostline.kernels.lm_head.tiles import INACTIVE
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.matmul import accumulator_dtype
from frostline.kernels.uncompiled import uncompiled

Reduction: TypeAlias = Literal["mean", "sum", "none"]
_NAMES = {"hidden": "hidden", "weight": "weight", "bias": "bias", "targets": "targets"}


@dataclass
class CrossEntropyOutput:
    """What was asked for beside the loss; None for the rest.

    Attributes:
        loss: a scalar, or one of each row with reduction "none", fp32 (fp64). The z loss is in it.
        z_loss: its part of the loss, without a gradient.
        token_accuracy: share of the rows that count whose largest logit is the target's; with "none" 1 or 0 of each row.
        predicted_tokens: int64 in the shape of the targets, the column of the largest logit, the first of equals; -1 in rows
            that do not count.
    """

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


@dataclass(frozen=True)
class CrossEntropyOptions:
    """The numbers of the loss and what is returned with it; meanings in `FusedLinearCrossEntropyLoss`.

    Raises:
        ValueError, TypeError: one out of range.
    """

    ignore_index: int = -100
    lse_square_scale: float = 0.0
    label_smoothing: float = 0.0
    reduction: Reduction = "mean"
    softcap: float | None = None
    return_z_loss: bool = False
    accum_dtype: torch.dtype | None = None
    use_token_scaling: bool = False
    return_token_accuracy: bool = False
    return_predicted_tokens: bool = False
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.reduction not in get_args(Reduction):
            raise ValueError(f"reduction: got {self.reduction!r}, wanted one of {', '.join(get_args(Reduction))}")
        if not isinstance(self.ignore_index, Integral) or isinstance(self.ignore_index, bool):
            raise ValueError(f"ignore_index: got {self.ignore_index!r}, wanted a whole number")
        if not (_is_finite(self.label_smoothing) and 0 <= self.label_smoothing <= 1):
            raise ValueError(f"label_smoothing: got {self.label_smoothing!r}, wanted a number from 0 to 1")
        if not _is_finite(self.lse_square_scale):
            raise ValueError(f"lse_square_scale: got {self.lse_square_scale!r}, wanted a finite number")
        if self.accum_dtype is not None and not getattr(self.accum_dtype, "is_floating_point", False):
            raise TypeError(f"accum_dtype: got {self.accum_dtype!r}, wanted a floating dtype or None")
        Transform.of(softcap=self.softcap, logit_scale=self.logit_scale)

    @property
    def returns_more(self) -> bool:
        """Whether a `CrossEntropyOutput` is returned instead of the loss alone."""
        return self.return_z_loss or self.return_token_accuracy or self.return_predicted_tokens

    @property
    def wants_best(self) -> bool:
        """Whether the best column of a row is looked at."""
        return self.return_token_accuracy or self.return_predicted_tokens


@dataclass(frozen=True)
class CrossEntropy:
    """The loss over flat rows, a `KnownLoss`. All of it [n], 0 in rows that do not count:

    onto_target, onto_all: what the target's log-prob is multiplied by, and the sum of w_j log p_j over the classes (None: by
    nothing). onto_square: the same of lse^2. classes: the sum of all w_j.
    """

    targets: Tensor
    onto_target: Tensor
    onto_all: Tensor | None
    onto_square: Tensor | None
    classes: Tensor | float
    options: CrossEntropyOptions

    group = 1
    entropy_trained = False

    @property
    def per_row(self) -> bool:
        """Whether it gives a loss of each row."""
        return self.options.reduction == "none"

    @property
    def wants(self) -> Wants:
        """What it looks at beside the log-probs."""
        return Wants(spread=self.onto_all is not None, best=self.options.wants_best)

    def total(self, found: Statistics) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss, the z loss, and the best columns where they are wanted."""
        counts = self.targets != INACTIVE
        loss, z_loss = self.onto_target * found.logp, torch.zeros_like(found.logp)
        if self.onto_all is not None and found.spread is not None:  # sum_j w_j log p_j, by way of the target's
            every = self.classes * found.logp + found.spread
            every = torch.where(found.logp == -torch.inf, found.logp, every)  # a forbidden target
            loss = loss + torch.where(counts, self.onto_all * every, 0.0)
        if self.onto_square is not None:
            z_loss = torch.where(counts, self.onto_square * found.log_normaliser.square(), 0.0)
            loss = loss + z_loss
        if self.options.use_token_scaling:
            loss, z_loss = loss * found.logp.exp(), z_loss * found.logp.exp()
        best = () if found.best is None else (torch.where(counts, found.best, -1),)
        return (loss, (z_loss, *best)) if self.per_row else (loss.sum(), (z_loss.sum(), *best))

    def upstream(self, found: Statistics, rows: slice) -> Onto:
        """What it asks of some rows."""
        onto_all = None if self.onto_all is None else self.onto_all[rows]
        onto_lse = None if onto_all is None else -self.classes * onto_all
        if self.onto_square is not None:
            onto_square = 2.0 * self.onto_square[rows] * found.log_normaliser
            onto_lse = onto_square if onto_lse is None else onto_lse + onto_square
        onto = Onto(self.onto_target[rows], None, onto_lse, onto_all)
        if not self.options.use_token_scaling:
            return onto
        factor = found.logp.exp()  # not differentiated
        return onto.map(lambda values: values * factor)


@uncompiled  # the engine drives its own kernels; what is around it compiles
def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    accum_dtype: torch.dtype | None = None,
    use_token_scaling: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    *,
    logit_scale: float = 1.0,
    active_rows: ActiveRows = None,
    prune: bool = True,
    memory_budget: int | None = None,
) -> Tensor | CrossEntropyOutput:
    """Cross entropy of `hidden @ weight.T + bias` with `targets`, in logits, statistics and sums of fp32 (fp64 for fp64).

    Differentiable in hidden, weight and bias, each computed only when it requires a gradient; nothing of them is computed or
    allocated under `no_grad` and `inference_mode`. Nothing waits for the device, unless `active_rows` says so.

    Args:
        hidden: [..., H] bf16, fp16, fp32 or fp64.
        weight: [V, H], same dtype (under autocast, any that autocast would cast).
        targets: [...] integers in [0, V), or `ignore_index`. Anything else gives NaN on a GPU (checking would stall it), and an
            error on the CPU.
        bias: [V] or None.
        ce_weight: [V] weights of the classes, any floating dtype; not differentiated.
        ignore_index: the target of rows that do not count: they add nothing, get zero gradient, and may hold anything, NaN
            included. Where no row counts the loss is 0.
        lse_square_scale: weight of the z loss, lse^2.
        label_smoothing: share of the loss that all classes have, 0 to 1.
        reduction: "mean" over the class weights of the rows that count (the z loss: over their number), "sum", or "none".
        softcap: logits become softcap * tanh(logits / softcap); None for none.
        return_z_loss, return_token_accuracy, return_predicted_tokens: return a `CrossEntropyOutput`. Costs no product.
        accum_dtype: accepted without effect: the weight gradient is always summed in fp32.
        use_token_scaling: multiply each row's loss by the probability of its target, as a constant (Wu et al. 2025,
            https://arxiv.org/abs/2508.05629).
        logit_scale: multiplies the logits in fp32, before the softcap.
        active_rows: how many rows count, where the host knows it: then only those are computed. "ask" counts them on the
            device, and waits once. On the CPU they are counted whatever is given. More than declared give NaN.
        prune: False computes every parameter gradient and every row, and throws away what nobody asked for.
        memory_budget: bytes above the inputs that may be used; None: at most what plain code would need (`plan`). Less than the
            logits take is paid with smaller tiles, or with a product more.

    Returns:
        The loss, fp32 (fp64): a scalar, or in the shape of `targets`; or a `CrossEntropyOutput`.

    Raises:
        TypeError, ValueError: an argument of the wrong dtype, shape, device or range, in one line that names it.
        RuntimeError: a weight whose values are not here (ZeRO-3, FSDP, DTensor).
    """
    options = CrossEntropyOptions(
        ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss, accum_dtype, use_token_scaling,
        return_token_accuracy, return_predicted_tokens, logit_scale,
    )  # fmt: skip
    hidden, weight, bias = checked_inputs(hidden, weight, bias, targets, _NAMES)
    check_memory_budget(memory_budget)
    check_class_weights(ce_weight, weight.shape[0], hidden, "ce_weight", "hidden")
    labels = targets.long()  # a narrow dtype would wrap the number it is compared with: in uint8, -100 is 156
    rows = Rows.of(labels.numel(), labels != ignore_index, active_rows, gather=prune)
    chosen = rows.targets(labels, weight.shape[0])
    loss = make_loss(chosen, weight.shape[0], ce_weight, options, accumulator_dtype(hidden.dtype))
    transform, grad = Transform.of(1.0, softcap, logit_scale), torch.is_grad_enabled()
    call = LossCall(
        loss, transform, rows.masked, rows.gathered_from, prune, memory_budget, grad=grad, column_weight=ce_weight
    )  # fmt: skip
    value, (z_loss, *best) = linear_loss(flat(hidden, rows), weight, bias, chosen, call)
    return outputs_of(value, (z_loss, *best), rows, chosen, targets, loss)


def outputs_of(
    value: Tensor, metrics: tuple[Tensor, ...], rows: Rows, chosen: Tensor, targets: Tensor, loss: CrossEntropy
) -> Tensor | CrossEntropyOutput:
    """What is returned of the `value` and `metrics` of a loss over the computed rows, which hold the targets `chosen`."""
    options, (z_loss, *best) = loss.options, metrics
    value = rows.put(value).reshape(targets.shape) if loss.per_row else rows.whole(value)
    if not options.returns_more:
        return value
    predicted = best[0] if best else None
    return CrossEntropyOutput(
        value,
        _reported(z_loss, rows, targets, loss.per_row) if options.return_z_loss else None,
        _accuracy(predicted, chosen, rows, targets, loss) if options.return_token_accuracy and predicted is not None else None,
        _spread_out(predicted, rows, targets) if options.return_predicted_tokens and predicted is not None else None,
    )


def make_loss(
    targets: Tensor, vocab: int, ce_weight: Tensor | None, options: CrossEntropyOptions, dtype: torch.dtype
) -> CrossEntropy:
    """The loss over the rows that are computed, whose `targets` [n] say which of them count."""
    counts = targets != INACTIVE
    number = counts.to(dtype)
    of_classes = None if ce_weight is None else ce_weight.detach().to(dtype)
    # Not multiplied by the number: 0 times an infinite weight is NaN.
    weights = number if of_classes is None else torch.where(counts, of_classes[targets.clamp(0, vocab - 1)], 0.0)
    smoothing, square = options.label_smoothing, options.lse_square_scale
    share = _share(weights) if options.reduction == "mean" else 1.0
    share_of_number = _share(number) if options.reduction == "mean" else 1.0
    return CrossEntropy(
        targets=targets,
        onto_target=weights * ((smoothing - 1.0) * share),
        onto_all=number * (-smoothing / vocab * share) if smoothing else None,
        onto_square=number * (square * share_of_number) if square else None,
        classes=float(vocab) if of_classes is None else of_classes.sum(),
        options=options,
    )


def _share(weights: Tensor) -> Tensor:
    """1 / the sum of weights, a scalar; 0 where that is 0."""
    total = weights.sum()
    return torch.where(total == 0, 0.0, 1.0 / total)


def _reported(values: Tensor, rows: Rows, targets: Tensor, per_row: bool) -> Tensor:
    return rows.put(values).reshape(targets.shape) if per_row else rows.whole(values)


def _accuracy(predicted: Tensor, chosen: Tensor, rows: Rows, targets: Tensor, loss: CrossEntropy) -> Tensor:
    """Whether each row was predicted right, or the share of those that count."""
    counts = chosen != INACTIVE
    right = ((predicted == chosen) & counts).float()
    return _reported(right if loss.per_row else right.sum() * _share(counts.float()), rows, targets, loss.per_row)


def _spread_out(predicted: Tensor, rows: Rows, targets: Tensor) -> Tensor:
    """The predicted tokens in the shape of `targets`, -1 where nothing was computed."""
    return (rows.put(predicted + 1, left_out=0) - 1).reshape(targets.shape)


def check_class_weights(ce_weight: Tensor | None, vocab: int, like: Tensor, name: str, like_name: str) -> None:
    """Check weights of `vocab` classes, called `name`. Raises TypeError or ValueError."""
    if ce_weight is None:
        return
    if not isinstance(ce_weight, Tensor) or not ce_weight.is_floating_point():
        got = ce_weight.dtype if isinstance(ce_weight, Tensor) else type(ce_weight).__name__
        raise TypeError(f"{name}: got {got}, wanted a tensor of a floating dtype, or None")
    check_shape(ce_weight, (vocab,), name, "one for each class")
    check_device(ce_weight, like, name, like_name)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
