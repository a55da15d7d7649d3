"""The head: one streaming pass over the logits of `hidden @ weight.T`, and the losses on it."""

from frostline.kernels.lm_head.cross_entropy import CrossEntropyOutput, linear_cross_entropy
from frostline.kernels.lm_head.cross_entropy_module import FusedLinearCrossEntropyLoss
from frostline.kernels.lm_head.grpo import Reference, fused_linear_grpo_loss
from frostline.kernels.lm_head.grpo_module import FusedLinearGRPOLoss
from frostline.kernels.lm_head.head_module import head_parameters
from frostline.kernels.lm_head.logits_cross_entropy import cross_entropy
from frostline.kernels.lm_head.logprob import linear_logprob
from frostline.kernels.lm_head.policy_options import PolicyOptions

__all__ = [
    "CrossEntropyOutput",
    "FusedLinearCrossEntropyLoss",
    "FusedLinearGRPOLoss",
    "PolicyOptions",
    "Reference",
    "cross_entropy",
    "fused_linear_grpo_loss",
    "head_parameters",
    "linear_cross_entropy",
    "linear_logprob",
]
