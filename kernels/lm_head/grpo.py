"""GRPO and its relatives straight from hidden states: the functional form of `FusedLinearGRPOLoss`.

The loss is known when the forward runs, so the gradients are formed there: two products with the weight when the head is
frozen, three when it is trained. Where that cannot be (a completion that is judged as a whole and does not fit a block of rows,
a choice of tokens by the entropies of the whole batch, or fp16, whose small gradients only survive once the loss scale has been
applied), the loss stands on `linear_logprob` instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from frostline.kernels.lm_head.autograd import checked_inputs, flat
from frostline.kernels.lm_head.checks import (
    ActiveRows,
    check_device,
    check_memory_budget,
    check_shape,
)
from frostline.kernels.lm_head.entropy import with_entropy_weights, with_highest_entropies
from frostline.kernels.lm_head.fused import fusable
from frostline.kernels.lm_head.head import Onto, Statistics, Wants
from frostline.kernels.lm_head.known_loss import LossCall, differentiated, linear_loss
from frostline.kernels.lm_head.logprob import logprob_of_rows
from frostline.kernels.lm_head.plan import Needs, Problem, forms_in_forward
from frostline.kernels.lm_head.policy_batch import Cleaner, PolicyBatch
from frostline.kernels.lm_head.policy_losses import LOSSES, policy_loss, terms, weighted
from frostline.kernels.lm_head.policy_options import PolicyOptions
from frostline.kernels.lm_head.rows import Rows
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.matmul import device_kind
from frostline.kernels.uncompiled import uncompiled

_NAMES = {"hidden": "_input", "weight": "lin_weight", "bias": "bias", "targets": "selected_token_ids"}
_REFERENCE_NAMES = {"hidden": "ref_input", "weight": "ref_weight", "bias": "ref_bias", "targets": "selected_token_ids"}


@dataclass(frozen=True)
class Reference:
    """A reference model's head: its hidden states [B, T, H'], weight [V, H'] and bias."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class _Given:
    """What the user gave besides the head, padding and all; meanings in `fused_linear_grpo_loss`."""

    mask: Tensor
    advantages: Tensor
    old_logps: Tensor | None
    reference: Tensor | None
    correction: Tensor | None
    sampling_logps: Tensor | None
    items: float | Tensor | None


@dataclass(frozen=True)
class _GroupedLoss:
    """A policy loss over flat rows [n], in groups of consecutive rows: a `KnownLoss`. `tokens`: see `policy_loss`."""

    batch: PolicyBatch
    options: PolicyOptions
    group: int
    tokens: Tensor

    per_row = False

    @property
    def wants(self) -> Wants:
        return Wants(entropy=self.options.entropy)

    @property
    def entropy_trained(self) -> bool:
        return self.options.entropy_trained

    def total(self, found: Statistics) -> tuple[Tensor, tuple[Tensor, ...]]:
        grouped_entropy = None if found.entropy is None else self._grouped(found.entropy)
        batch = self.batch.map(self._grouped)
        return policy_loss(self._grouped(found.logp), batch, self.options, grouped_entropy, tokens=self.tokens)

    def upstream(self, found: Statistics, rows: slice) -> Onto:
        batch = self.batch.map(lambda values: self._grouped(values[rows]))

        def part(logp: Tensor, entropy: Tensor | None) -> Tensor:
            grouped_entropy = None if entropy is None else self._grouped(entropy)
            return weighted(terms(self._grouped(logp), batch, self.options), batch, self.options, grouped_entropy)

        return differentiated(part, found, entropy=self.entropy_trained)

    def _grouped(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0] // max(self.group, 1), self.group)


@uncompiled  # the engine drives its own kernels; what is around it compiles
def fused_linear_grpo_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    mask: Tensor,
    advantages: Tensor,
    bias: Tensor | None = None,
    *,
    options: PolicyOptions,
    temperature: float = 1.0,
    old_logps: Tensor | None = None,
    reference: Tensor | Reference | None = None,
    correction: Tensor | None = None,
    sampling_logps: Tensor | None = None,
    items: float | Tensor | None = None,
    active_rows: ActiveRows = None,
    prune: bool = True,
    memory_budget: int | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The functional form of `FusedLinearGRPOLoss`, in the names of this package.

    Args:
        hidden: [B, T, H] bf16, fp16, fp32 or fp64.
        weight: [V, H], same dtype. Only trained when it requires a gradient.
        targets: [B, T] integers, the tokens that were sampled; anything where `mask` is zero.
        mask: [B, T]; tokens that count are those that are not zero.
        advantages: [B] or [B, T].
        bias: [V] or None.
        options: loss type and its numbers.
        temperature: divides the logits, the reference's as well.
        old_logps: [B, T] log-probs under the policy that sampled; None: the policy itself, ratio 1.
        reference: [B, T] log-probs under the reference model, or its head, for which one more product is computed; None: the
            policy itself, KL 0. Not looked at when `options.beta` is 0.
        correction: [B], [B, 1] or [B, T], multiplied onto the surrogate (the sampler's importance ratio); for vespo part of the
            completion's own weight.
        sampling_logps: [B, T] the sampler's log-probs, for the off-policy mask; None: the old ones. NaN where not known.
        items: tokens of the whole batch over accumulation steps and processes, for dapo, cispo and vespo.
        active_rows: number of tokens that contribute (`contributing`), where the host knows it: the others are then not
            computed. More than there are is harmless, fewer give NaN. "ask" counts them on the device, and waits once for what
            it has to do before. On the CPU they are counted whatever is given.
        prune: False computes every parameter gradient and every row, and throws away what nobody asked for.
        memory_budget: bytes above the inputs that the head may use, see `linear_logprob`. Where the gradients of a trained head
            cannot be formed in it while the logits are at hand, they are computed again in the backward: a product more.

    Returns:
        The loss, and the metrics: mean KL (when beta is not 0), the share of tokens that were clipped, and the mean entropy
        (where the options need or report it).

    Raises:
        TypeError, ValueError, RuntimeError: see `linear_logprob`.
    """
    hidden, weight, bias = checked_inputs(hidden, weight, bias, targets, _NAMES)
    _check(hidden, targets, mask, advantages)
    check_memory_budget(memory_budget)
    transform = Transform.of(temperature)
    contributes = contributing(mask, advantages, options)
    rows = Rows.of(mask.numel(), contributes, active_rows, gather=prune)
    reference_logps = _reference_logps(reference, targets, rows, transform, options, memory_budget)
    given = _Given(mask, advantages, old_logps, reference_logps, correction, sampling_logps, items)
    batch = _make_batch(given, contributes, options, hidden.dtype)
    group = max(mask.shape[1], 1) if options.by_completion else 1
    if not options.by_batch:
        batch = with_entropy_weights(batch, options)
        formed = _formed_in_forward(hidden, weight, bias, rows, options, group, prune, memory_budget)
        if formed is not None:
            known = _GroupedLoss(
                batch.map(lambda values: formed.take_counted(values.reshape(-1))), options, group, batch.mask.sum()
            )
            call = LossCall(known, transform, formed.masked, formed.gathered_from, prune, memory_budget, in_forward=True)
            loss, metrics = linear_loss(flat(hidden, formed), weight, bias, formed.targets(targets, weight.shape[0]), call)
            return formed.whole(loss), metrics
    logp, entropy = logprob_of_rows(
        hidden, weight, bias, targets, rows, transform,
        entropy=options.entropy, entropy_in_loss=options.entropy_trained, prune=prune, memory_budget=memory_budget,
    )  # fmt: skip
    entropy = None if entropy is None else entropy.reshape(mask.shape)
    if options.by_batch and entropy is not None:
        batch = with_entropy_weights(with_highest_entropies(batch, entropy, options), options)
    return policy_loss(logp.reshape(mask.shape), batch, options, entropy)


def contributing(mask: Tensor, advantages: Tensor, options: PolicyOptions) -> Tensor:
    """Which tokens the loss, its gradients or its metrics look at, [B, T] bool.

    Not where `mask` is zero. And where an advantage is the only factor (`PolicyOptions.by_advantage`), not where that is zero
    either; of a completion that is judged as a whole, every token counts until all its advantages are zero.
    """
    active = mask != 0
    if not options.by_advantage:
        return active
    by_token = advantages if advantages.ndim == 2 else advantages.unsqueeze(1)
    moving = active & (by_token != 0)
    return active & moving.any(-1, keepdim=True) if options.by_completion else moving


def _formed_in_forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: Rows,
    options: PolicyOptions,
    group: int,
    prune: bool,
    memory_budget: int | None,
) -> Rows | None:
    """The rows whose gradients can be formed while the logits are at hand; None where that cannot be, or is more work."""
    trained = Needs(hidden.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad)
    if not torch.is_grad_enabled() or not trained.any:
        return None
    needs = trained if prune else Needs(trained.hidden, True, bias is not None)
    if group > 1 and rows.index is not None:
        # How many of the gathered rows a completion has is known to the device alone, so its loss is not known while they
        # pass: either all rows are computed together, or the gathered ones with one product more where the head is trained.
        together = 1 + needs.hidden + needs.weight
        gathered = together + (needs.parameters or options.entropy_trained)
        if gathered == together or together * rows.count > gathered * rows.index.numel():
            return None
        rows = rows.together()
    vocab, width = weight.shape
    problem = Problem(
        rows.count if rows.index is None else rows.index.numel(),
        width,
        vocab,
        hidden.dtype,
        needs,
        loss_known=True,
        entropy=options.entropy_trained,
        group=group,
        masked=rows.masked,
        gathered_from=rows.gathered_from,
        device=device_kind(hidden),
        fusable=fusable(hidden, weight),
        memory_budget=memory_budget,
    )
    return rows if forms_in_forward(problem) else None


def _check(hidden: Tensor, targets: Tensor, mask: Tensor, advantages: Tensor) -> None:
    if hidden.ndim != 3:
        raise ValueError(f"_input: got shape {tuple(hidden.shape)}, wanted (batch, sequence, hidden)")
    check_shape(mask, tuple(targets.shape), "attention_mask", "that of selected_token_ids")
    if advantages.shape != mask.shape:
        check_shape(advantages, tuple(mask.shape[:1]), "advantages", f"or {tuple(mask.shape)}, one per completion or per token")
    for tensor, name in ((mask, "attention_mask"), (advantages, "advantages")):
        check_device(tensor, hidden, name, "_input")


def _make_batch(given: _Given, contributes: Tensor, options: PolicyOptions, dtype: torch.dtype) -> PolicyBatch:
    """The batch in the dtype of the log-probs, with zeros where nothing is looked at: -inf, NaN or values far away may stand
    there. The mask, and so the weights, count every token that is not padding."""
    clean = Cleaner(contributes, torch.promote_types(dtype, torch.float32))
    count = (given.mask != 0).to(clean.dtype)
    advantages = given.advantages if given.advantages.ndim == 2 else given.advantages.unsqueeze(1)
    folded = options.loss_type == "vespo"  # the correction is part of its weight
    return PolicyBatch(
        mask=count,
        weights=LOSSES[options.loss_type].weights(count, options, given.items),
        advantages=torch.where(clean.active, advantages.detach().to(clean.dtype), 0.0),
        old=clean.tokens(given.old_logps, "old_per_token_logps"),
        reference=clean.tokens(given.reference, "ref_per_token_logps"),
        correction=None if folded else clean.correction(given.correction, "vllm_is_ratio"),
        log_correction=clean.log_correction(given.correction, "vllm_is_ratio") if folded else None,
        sampling=clean.tokens(given.sampling_logps, "sampling_per_token_logps"),
    )


def _reference_logps(
    reference: Tensor | Reference | None,
    targets: Tensor,
    rows: Rows,
    transform: Transform,
    options: PolicyOptions,
    memory_budget: int | None,
) -> Tensor | None:
    """[B, T] log-probs of the reference, by one forward-only product where a model is given. Nothing when beta is 0."""
    if options.beta == 0.0 or reference is None:
        return None
    if isinstance(reference, Tensor):
        return reference
    with torch.no_grad():
        given = reference.hidden, reference.weight, reference.bias
        hidden, weight, bias = checked_inputs(*given, targets, _REFERENCE_NAMES)
        logp: Tensor = logprob_of_rows(hidden, weight, bias, targets, rows, transform, memory_budget=memory_budget)[0]
    return logp.reshape(targets.shape)
