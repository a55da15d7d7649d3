"""What is measured: kernels that compute only the gradients that are asked for. torch and triton only."""

from frostline.kernels.lm_head import (
    CrossEntropyOutput,
    FusedLinearCrossEntropyLoss,
    FusedLinearGRPOLoss,
    cross_entropy,
    fused_linear_grpo_loss,
    head_parameters,
    linear_cross_entropy,
    linear_logprob,
)
from frostline.kernels.lm_head.alternatives import alternatives
from frostline.kernels.lm_head.plan import Needs, Plan, plan
from frostline.kernels.lm_head.policy_options import PolicyOptions
from frostline.kernels.norm import FusedAddRMSNorm, LayerNorm, RMSNorm, fused_add_rms_norm, layer_norm, rms_norm
from frostline.kernels.rope import apply_rotary_pos_emb
from frostline.kernels.swiglu import SwiGLUMLP, swiglu

__all__ = [
    "CrossEntropyOutput",
    "FusedAddRMSNorm",
    "FusedLinearCrossEntropyLoss",
    "FusedLinearGRPOLoss",
    "LayerNorm",
    "Needs",
    "Plan",
    "PolicyOptions",
    "RMSNorm",
    "SwiGLUMLP",
    "alternatives",
    "apply_rotary_pos_emb",
    "cross_entropy",
    "fused_add_rms_norm",
    "fused_linear_grpo_loss",
    "head_parameters",
    "layer_norm",
    "linear_cross_entropy",
    "linear_logprob",
    "plan",
    "rms_norm",
    "swiglu",
]
