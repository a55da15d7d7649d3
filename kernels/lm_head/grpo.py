"""`FusedLinearGRPOLoss`: GRPO and its relatives straight from hidden states, drop-in for Liger-Kernel 0.8.5's module.

The loss is known when the forward runs, so the gradients are formed there: two products with the weight when the head is
frozen, three when it is trained. Where that cannot be (a sequence-level ratio whose completions do not fit a block of rows, or
fp16, whose small gradients only survive once the loss scale has been applied), the loss stands on `linear_logprob` instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frostline.kernels.lm_head.checks import check_device, check_head, check_shape
from frostline.kernels.lm_head.known_loss import LossCall, linear_loss
from frostline.kernels.lm_head.logprob import as_autocast_would, flat, logprob_of_rows
from frostline.kernels.lm_head.plan import Needs, Problem, fits_in_blocks
from frostline.kernels.lm_head.policy_losses import LOSSES, PolicyBatch, PolicyOptions, policy_loss, terms
from frostline.kernels.lm_head.rows import Rows
from frostline.kernels.lm_head.transform import Transform
from frostline.kernels.matmul import device_kind
from frostline.kernels.uncompiled import uncompiled

_NAMES = {"hidden": "_input", "weight": "lin_weight", "bias": "bias", "targets": "selected_token_ids"}
_REFERENCE_NAMES = {"hidden": "ref_input", "weight": "ref_weight", "bias": "ref_bias", "targets": "selected_token_ids"}
_ELSEWHERE = ("cispo", "sapo", "luspo", "vespo")  # loss types of Liger-Kernel that are not here


@dataclass(frozen=True)
class Reference:
    """A reference model's head: its hidden states [B, T, H'], weight [V, H'] and bias."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class _GroupedLoss:
    """A policy loss over flat rows [n], in groups of consecutive rows: a `KnownLoss`."""

    batch: PolicyBatch
    options: PolicyOptions
    group: int

    def total(self, logp: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return policy_loss(self._grouped(logp), self.batch.map(self._grouped), self.options)

    def part(self, logp: Tensor, rows: slice) -> Tensor:
        batch = self.batch.map(lambda values: self._grouped(values[rows]))
        return (terms(self._grouped(logp), batch, self.options).loss * batch.weights).sum()

    def _grouped(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0] // max(self.group, 1), self.group)


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
    items: float | Tensor | None = None,
    active_rows: int | None = None,
    prune: bool = True,
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
        correction: [B, T] or [B, 1], multiplied onto the surrogate (the sampler's importance ratio).
        items: tokens of the whole batch over accumulation steps and processes, for dapo.
        active_rows: number of tokens that count, where the host knows it: the others are then not computed.
        prune: False computes every parameter gradient and every row, and throws away what nobody asked for.

    Returns:
        The loss, and the metrics: mean KL (when beta is not 0), then the share of tokens that were clipped.

    Raises:
        TypeError, ValueError, RuntimeError: see `linear_logprob`.
    """
    hidden, weight, bias = as_autocast_would(hidden, weight, bias)
    _check(hidden, weight, bias, targets, mask, advantages)
    transform = Transform.of(temperature)
    rows = Rows.of(mask.numel(), mask != 0, active_rows, gather=prune)
    reference_logps = _reference_logps(reference, targets, rows, transform, options)
    batch = _clean_batch(mask, advantages, old_logps, reference_logps, correction, items, options, hidden)
    group = mask.shape[1] if options.level == "sequence" else 1
    if _formed_in_forward(hidden, weight, bias, rows, group, prune):
        loss = _GroupedLoss(batch.map(lambda values: rows.take(values.reshape(-1))), options, group)
        found: tuple[Tensor, tuple[Tensor, ...]]
        found = _known_loss(hidden, weight, bias, targets, rows, LossCall(loss, transform, rows.masked, prune))
        return found
    logp, _ = logprob_of_rows(hidden, weight, bias, targets, rows, transform, prune=prune)
    return policy_loss(logp.reshape(mask.shape), batch, options)


@uncompiled  # the engine drives its own kernels; what is around it compiles
def _known_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: Rows, call: LossCall
) -> tuple[Tensor, tuple[Tensor, ...]]:
    return linear_loss(flat(hidden, rows), weight, bias, rows.targets(targets, weight.shape[0]), call)


def _formed_in_forward(hidden: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows, group: int, prune: bool) -> bool:
    """Whether the gradients can be formed while the logits are at hand."""
    trained = Needs(hidden.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad)
    if not torch.is_grad_enabled() or not trained.any or hidden.dtype == torch.float16:
        return False
    if group > 1 and rows.index is not None:  # gathered rows of a completion: how many is known to the device alone
        return False
    needs = trained if prune else Needs(trained.hidden, True, bias is not None)
    vocab, width = weight.shape
    return fits_in_blocks(
        Problem(rows.count, width, vocab, hidden.dtype, needs, loss_known=True, group=group, device=device_kind(hidden))
    )


def _check(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, mask: Tensor, advantages: Tensor) -> None:
    check_head(hidden, weight, bias, targets, _NAMES)
    if hidden.ndim != 3:
        raise ValueError(f"_input: got shape {tuple(hidden.shape)}, wanted (batch, sequence, hidden)")
    check_shape(mask, tuple(targets.shape), "attention_mask", "that of selected_token_ids")
    if advantages.shape != mask.shape:
        check_shape(advantages, tuple(mask.shape[:1]), "advantages", f"or {tuple(mask.shape)}, one per completion or per token")
    for tensor, name in ((mask, "attention_mask"), (advantages, "advantages")):
        check_device(tensor, hidden, name, "_input")


def _clean_batch(
    mask: Tensor,
    advantages: Tensor,
    old: Tensor | None,
    reference: Tensor | None,
    correction: Tensor | None,
    items: float | Tensor | None,
    options: PolicyOptions,
    hidden: Tensor,
) -> PolicyBatch:
    """The batch in the dtype of the log-probs, with zeros where padding may hold -inf, NaN or values far away."""
    dtype, active = torch.promote_types(hidden.dtype, torch.float32), mask != 0

    def clean(values: Tensor | None, name: str) -> Tensor | None:
        if values is None:
            return None
        check_device(values, hidden, name, "_input")
        if tuple(values.shape) != (mask.shape[0], 1):
            check_shape(values, tuple(mask.shape), name, "that of attention_mask")
        return torch.where(active, values.detach().to(dtype), 0.0)

    count = active.to(dtype)
    per_token = advantages if advantages.ndim == 2 else advantages.unsqueeze(1)
    return PolicyBatch(
        mask=count,
        weights=LOSSES[options.loss_type](count, options, items),
        advantages=torch.where(active, per_token.detach().to(dtype), 0.0),
        old=clean(old, "old_per_token_logps"),
        reference=clean(reference, "ref_per_token_logps"),
        correction=clean(correction, "vllm_is_ratio"),
    )


def _reference_logps(
    reference: Tensor | Reference | None, targets: Tensor, rows: Rows, transform: Transform, options: PolicyOptions
) -> Tensor | None:
    """[B, T] log-probs of the reference, by one forward-only product where a model is given. Nothing when beta is 0."""
    if options.beta == 0.0 or reference is None:
        return None
    if isinstance(reference, Tensor):
        return reference
    with torch.no_grad():
        hidden, weight, bias = as_autocast_would(reference.hidden, reference.weight, reference.bias)
        check_head(hidden, weight, bias, targets, _REFERENCE_NAMES)
        logp: Tensor = logprob_of_rows(hidden, weight, bias, targets, rows, transform)[0]
    return logp.reshape(targets.shape)


class FusedLinearGRPOLoss(nn.Module):
    """GRPO, BNPO, Dr. GRPO and DAPO losses over a linear head that never holds all logits and trains only what requires it.

    Arguments, their order, their defaults and the returned value are those of Liger-Kernel 0.8.5's
    `LigerFusedLinearGRPOLoss`, so that swapping the import is enough.

    Args:
        beta: weight of the KL penalty. With 0, reference inputs are not looked at.
        compiled, chunk_size: accepted without effect; tiles are planned.
        use_ref_model: whether a reference takes part: without it the KL is that of the policy to itself, 0.
        epsilon_low, epsilon_high: clip range of the importance ratio.
        loss_type: grpo, bnpo, dr_grpo or dapo (`policy_losses.LOSSES`).
        max_completion_length: for dr_grpo.
        importance_sampling_level: "token" or "sequence".
        sapo_temperature_pos, sapo_temperature_neg, vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg: accepted;
            their losses are not available here.
        temperature: divides the logits.
        delta: upper bound of the unclipped ratio, or None.
        use_bias_correction_kl: multiply the KL estimate by the importance ratio of the same level.
        prune: False runs what a trained head would run, whatever is frozen: the gradients are the same, for more work.

    Raises:
        ValueError: a loss type or level that is not available, or a number out of range.
    """

    def __init__(
        self,
        beta: float = 0.04,
        compiled: bool = True,
        use_ref_model: bool = True,
        chunk_size: int = 1,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dapo",
        max_completion_length: int | None = None,
        importance_sampling_level: str = "token",
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        temperature: float = 1.0,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        vespo_k_pos: float = 2.0,
        vespo_lambda_pos: float = 3.0,
        vespo_k_neg: float = 3.0,
        vespo_lambda_neg: float = 2.0,
        *,
        prune: bool = True,
    ) -> None:
        super().__init__()
        if loss_type in _ELSEWHERE:
            raise ValueError(f"loss_type: {loss_type!r} is not available, wanted one of {', '.join(LOSSES)}")
        for name, value in (("sapo_temperature_pos", sapo_temperature_pos), ("sapo_temperature_neg", sapo_temperature_neg)):
            if value <= 0:
                raise ValueError(f"{name}: got {value}, wanted a positive number")
        self.options = PolicyOptions(
            loss_type=loss_type,
            beta=beta,
            epsilon_low=epsilon_low,
            epsilon_high=epsilon_high,
            level=importance_sampling_level,
            delta=delta,
            bias_correction=use_bias_correction_kl,
            max_completion_length=max_completion_length,
        )
        Transform.of(temperature)  # refuses a bad temperature now rather than at the first step
        self.temperature = temperature
        self.use_ref_model = use_ref_model
        self.prune = prune
        self.compiled, self.chunk_size = compiled, chunk_size
        self.sapo_temperature_pos, self.sapo_temperature_neg = sapo_temperature_pos, sapo_temperature_neg
        self.vespo_k_pos, self.vespo_lambda_pos = vespo_k_pos, vespo_lambda_pos
        self.vespo_k_neg, self.vespo_lambda_neg = vespo_k_neg, vespo_lambda_neg

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        selected_token_ids: Tensor,
        attention_mask: Tensor,
        advantages: Tensor,
        bias: Tensor | None = None,
        ref_per_token_logps: Tensor | None = None,
        old_per_token_logps: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        vllm_is_ratio: Tensor | None = None,
        num_items_in_batch: float | Tensor | None = None,
        *,
        active_rows: int | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss and its metrics.

        Args:
            _input: hidden states [B, T, H]. lin_weight: [V, H], same dtype. bias: [V].
            selected_token_ids: [B, T]. attention_mask: [B, T], tokens that count are not 0. Elsewhere anything may stand.
            advantages: [B] or [B, T].
            ref_per_token_logps: [B, T] log-probs under the reference model; or else its head, ref_input [B, T, H'],
                ref_weight [V, H'] and ref_bias [V].
            old_per_token_logps: [B, T] log-probs under the policy that sampled; None: ratio 1.
            vllm_is_ratio: [B, T] or [B, 1], corrects for the sampler's own probabilities.
            num_items_in_batch: tokens of the whole batch, over accumulation steps and processes (dapo).
            active_rows: number of tokens that count, where the host knows it: the others are then not computed.

        Returns:
            (loss, metrics): metrics are the mean KL (when beta is not 0), then the share of tokens that were clipped.

        Raises:
            TypeError, ValueError: an argument of the wrong dtype, shape or device; no reference where one takes part.
            RuntimeError: a weight whose values are not here (ZeRO-3, FSDP, DTensor).
        """
        return fused_linear_grpo_loss(
            _input,
            lin_weight,
            selected_token_ids,
            attention_mask,
            advantages,
            bias,
            options=self.options,
            temperature=self.temperature,
            old_logps=old_per_token_logps,
            reference=self._reference(ref_per_token_logps, ref_input, ref_weight, ref_bias),
            correction=vllm_is_ratio,
            items=num_items_in_batch,
            active_rows=active_rows,
            prune=self.prune,
        )

    def _reference(
        self, logps: Tensor | None, hidden: Tensor | None, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor | Reference | None:
        if not self.use_ref_model or self.options.beta == 0.0:
            return None
        if logps is not None:
            return logps
        if hidden is None or weight is None:
            raise ValueError(
                "ref_per_token_logps: got None with use_ref_model=True and beta not 0, wanted reference log-probs, or both"
                " ref_input and ref_weight, or use_ref_model=False"
            )
        return Reference(hidden, weight, bias)
