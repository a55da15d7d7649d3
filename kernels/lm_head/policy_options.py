"""The numbers of a policy loss, checked once when they are given. Names of losses are those of TRL and Liger-Kernel."""

from __future__ import annotations

from dataclasses import dataclass

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
LEVELS = ("token", "sequence")


@dataclass(frozen=True)
class PolicyOptions:
    """The numbers of a policy loss.

    Attributes:
        loss_type: a key of `policy_losses.LOSSES`.
        beta: weight of the KL penalty; 0 leaves it out altogether.
        epsilon_low, epsilon_high: the ratio is clipped to [1 - epsilon_low, 1 + epsilon_high]; for cispo its weight is at most
            epsilon_high itself.
        level: "token", a ratio per token, or "sequence", one per completion (GSPO, https://arxiv.org/abs/2507.18071).
        delta: upper bound of the unclipped ratio (INTELLECT-2, https://arxiv.org/abs/2505.07291); None for none. Without effect
            for cispo, sapo and vespo.
        bias_correction: multiply the KL estimate by the ratio of the same level, unclipped, gradient and all (DeepSeek-V3.2,
            https://arxiv.org/abs/2512.02556).
        max_completion_length: the constant that dr_grpo divides by.
        sapo_temperatures: of tokens whose advantage is positive, and of the others.
        vespo_positive, vespo_negative: (k, lambda) of completions whose advantage is at least 0, and of the others.
        off_policy_threshold: tokens of negative advantage do not count in completions that moved further than this from the
            policy that sampled them, in nats per token (DeepSeek-V3.2); None for none.
        top_entropy: the share of tokens, those of the highest entropy, that the policy gradient is taken of
            (https://arxiv.org/abs/2506.01939); 1 for all.
        entropy_coef: weight of an entropy bonus: the loss falls by entropy_coef times the mean entropy.
        report_entropy: whether the mean entropy is among the metrics even where the loss does not need it.
    """

    loss_type: str = "dapo"
    beta: float = 0.04
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    level: str = "token"
    delta: float | None = None
    bias_correction: bool = False
    max_completion_length: int | None = None
    sapo_temperatures: tuple[float, float] = (1.0, 1.05)
    vespo_positive: tuple[float, float] = (2.0, 3.0)
    vespo_negative: tuple[float, float] = (3.0, 2.0)
    off_policy_threshold: float | None = None
    top_entropy: float = 1.0
    entropy_coef: float = 0.0
    report_entropy: bool = False

    def __post_init__(self) -> None:
        if self.loss_type not in LOSS_TYPES:
            raise ValueError(f"loss_type: got {self.loss_type!r}, wanted one of {', '.join(LOSS_TYPES)}")
        if self.level not in LEVELS:
            raise ValueError(f"importance_sampling_level: got {self.level!r}, wanted one of {', '.join(LEVELS)}")
        if self.loss_type == "vespo" and self.level == "sequence":
            raise ValueError(
                "importance_sampling_level: got 'sequence' with loss_type 'vespo', wanted 'token': it weighs whole"
                " completions by itself"
            )
        if self.loss_type == "dr_grpo" and (self.max_completion_length or 0) <= 0:
            raise ValueError(f"max_completion_length: got {self.max_completion_length}, wanted a positive number for dr_grpo")
        self._check_ranges()

    def _check_ranges(self) -> None:
        positive = {
            "delta": self.delta,
            "sapo_temperature_pos": self.sapo_temperatures[0],
            "sapo_temperature_neg": self.sapo_temperatures[1],
            "off_policy_mask_threshold": self.off_policy_threshold,
        }
        for name, value in positive.items():
            if value is not None and not value > 0:
                none = " or None" if name in ("delta", "off_policy_mask_threshold") else ""
                raise ValueError(f"{name}: got {value}, wanted a positive number{none}")
        if not 0 <= self.top_entropy <= 1:
            raise ValueError(f"top_entropy_quantile: got {self.top_entropy}, wanted a share from 0 to 1")

    @property
    def by_completion(self) -> bool:
        """Whether a token's loss depends on the other tokens of its completion."""
        return self.level == "sequence" or self.loss_type == "vespo" or self.off_policy_threshold is not None

    @property
    def by_batch(self) -> bool:
        """Whether a token's loss depends on the whole batch: the highest entropies are known when all are."""
        return self.top_entropy < 1.0

    @property
    def by_advantage(self) -> bool:
        """Whether the loss and its metrics need no log-prob of a token without advantage (and, where a completion is judged as
        a whole, none of a completion without any): every surrogate has its advantage as a factor, and nothing of it is clipped.
        """
        return self.beta == 0.0 and not self.entropy

    @property
    def entropy(self) -> bool:
        """Whether entropies are needed at all, for the loss or to be reported."""
        return self.report_entropy or self.by_batch or self.entropy_trained

    @property
    def entropy_trained(self) -> bool:
        """Whether the loss has a gradient through the entropy."""
        return self.entropy_coef != 0.0
