"""`FusedLinearGRPOLoss`: GRPO and its relatives straight from hidden states, drop-in for Liger-Kernel 0.8.5's module."""

from __future__ import annotations

from torch import Tensor, nn

from frostline.kernels.lm_head.checks import ActiveRows, check_memory_budget
from frostline.kernels.lm_head.grpo import Reference, fused_linear_grpo_loss
from frostline.kernels.lm_head.policy_options import PolicyOptions
from frostline.kernels.lm_head.transform import Transform


class FusedLinearGRPOLoss(nn.Module):
    """The losses of the GRPO family over a linear head, which never hold all logits and train only what requires it.

    Arguments, their order, their defaults and the returned value are those of Liger-Kernel 0.8.5's
    `LigerFusedLinearGRPOLoss`, so that swapping the import is enough. What TRL 1.16 has beyond it comes behind, by keyword.

    Args:
        beta: weight of the KL penalty. With 0, reference inputs are not looked at.
        compiled, chunk_size: accepted without effect; tiles are planned.
        use_ref_model: whether a reference takes part: without it the KL is that of the policy to itself, 0.
        epsilon_low, epsilon_high: clip range of the importance ratio. For cispo epsilon_high is the largest weight itself.
        loss_type: grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo or vespo (`policy_losses.LOSSES`).
        max_completion_length: for dr_grpo.
        importance_sampling_level: "token" or "sequence"; vespo knows "token" alone.
        sapo_temperature_pos, sapo_temperature_neg: of tokens whose advantage is positive, and of the others.
        temperature: divides the logits.
        delta: upper bound of the unclipped ratio, or None.
        use_bias_correction_kl: multiply the KL estimate by the importance ratio of the same level.
        vespo_k_pos, vespo_lambda_pos: shape of the weight where the advantage is at least 0.
        vespo_k_neg, vespo_lambda_neg: the same elsewhere.
        prune: False runs what a trained head would run, whatever is frozen: the gradients are the same, for more work.
        off_policy_mask_threshold: leave out tokens of negative advantage in completions that moved further than this, in nats
            per token, from what sampled them.
        top_entropy_quantile: the share of tokens, those of the highest entropy, that the policy gradient is taken of. Below 1
            the loss is known only after all log-probs are, which with a trained head costs a fourth product.
        entropy_coef: weight of an entropy bonus, a mean over tokens.
        report_entropy: append the mean entropy to the metrics. Costs no product.
        memory_budget: bytes above the inputs that the head may use; None for a small default, never above what plain code would
            need. With a trained head little memory takes a fourth product (`plan`).

    Raises:
        ValueError: a loss type or level that there is not, or a number out of range.
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
        off_policy_mask_threshold: float | None = None,
        top_entropy_quantile: float = 1.0,
        entropy_coef: float = 0.0,
        report_entropy: bool = False,
        memory_budget: int | None = None,
    ) -> None:
        super().__init__()
        self.options = PolicyOptions(
            loss_type=loss_type,
            beta=beta,
            epsilon_low=epsilon_low,
            epsilon_high=epsilon_high,
            level=importance_sampling_level,
            delta=delta,
            bias_correction=use_bias_correction_kl,
            max_completion_length=max_completion_length,
            sapo_temperatures=(sapo_temperature_pos, sapo_temperature_neg),
            vespo_positive=(vespo_k_pos, vespo_lambda_pos),
            vespo_negative=(vespo_k_neg, vespo_lambda_neg),
            off_policy_threshold=off_policy_mask_threshold,
            top_entropy=top_entropy_quantile,
            entropy_coef=entropy_coef,
            report_entropy=report_entropy,
        )
        Transform.of(temperature)  # refuses a bad temperature now rather than at the first step
        self.temperature = temperature
        self.use_ref_model = use_ref_model
        check_memory_budget(memory_budget)
        self.prune, self.memory_budget = prune, memory_budget
        self.compiled, self.chunk_size = compiled, chunk_size

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
        active_rows: ActiveRows = None,
        sampling_per_token_logps: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss and its metrics.

        Args:
            _input: hidden states [B, T, H]. lin_weight: [V, H], same dtype. bias: [V].
            selected_token_ids: [B, T]. attention_mask: [B, T], tokens that count are not 0. Elsewhere anything may stand.
            advantages: [B] or [B, T].
            ref_per_token_logps: [B, T] log-probs under the reference model; or else its head, ref_input [B, T, H'],
                ref_weight [V, H'] and ref_bias [V].
            old_per_token_logps: [B, T] log-probs under the policy that sampled; None: ratio 1.
            vllm_is_ratio: [B], [B, 1] or [B, T], corrects for the sampler's own probabilities.
            num_items_in_batch: tokens of the whole batch, over accumulation steps and processes (dapo, cispo, vespo).
            active_rows: number of tokens that contribute, where the host knows it: the others are then not computed. Those are
                the tokens that count and, without KL and entropy terms, have an advantage; more than there are is harmless.
                "ask" counts them on the device, which waits once.
            sampling_per_token_logps: [B, T] the sampler's log-probs, for the off-policy mask; None: the old ones.

        Returns:
            (loss, metrics): metrics are the mean KL (when beta is not 0), then the share of tokens that were clipped (0 for
            sapo and vespo), then the mean entropy where an option for it was given.

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
            sampling_logps=sampling_per_token_logps,
            items=num_items_in_batch,
            active_rows=active_rows,
            prune=self.prune,
            memory_budget=self.memory_budget,
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
