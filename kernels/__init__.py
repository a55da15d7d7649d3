"""What is measured: kernels that compute only the gradients that are asked for. torch and triton only."""

from frostline.kernels.lm_head import FusedLinearGRPOLoss, fused_linear_grpo_loss, head_parameters, linear_logprob
from frostline.kernels.lm_head.alternatives import alternatives
from frostline.kernels.lm_head.plan import Needs, Plan, plan
from frostline.kernels.lm_head.policy_options import PolicyOptions

__all__ = [
    "FusedLinearGRPOLoss",
    "Needs",
    "Plan",
    "PolicyOptions",
    "alternatives",
    "fused_linear_grpo_loss",
    "head_parameters",
    "linear_logprob",
    "plan",
]
