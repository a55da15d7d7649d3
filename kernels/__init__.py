"""What is measured: kernels that compute only the gradients that are asked for. torch and triton only."""

from frostline.kernels.lm_head import FusedLinearGRPOLoss, fused_linear_grpo_loss, linear_logprob

__all__ = ["FusedLinearGRPOLoss", "fused_linear_grpo_loss", "linear_logprob"]
