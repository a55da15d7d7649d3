"""The head: one streaming pass over the logits of `hidden @ weight.T`, and the losses on it."""

from frostline.kernels.lm_head.grpo import FusedLinearGRPOLoss, fused_linear_grpo_loss
from frostline.kernels.lm_head.logprob import linear_logprob
from frostline.kernels.lm_head.policy_losses import PolicyOptions

__all__ = ["FusedLinearGRPOLoss", "PolicyOptions", "fused_linear_grpo_loss", "linear_logprob"]
