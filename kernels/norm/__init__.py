"""Norms that compute only the gradients that are asked for."""

from frostline.kernels.norm.fused_add_rms_norm import FusedAddRMSNorm, fused_add_rms_norm
from frostline.kernels.norm.layer_norm import LayerNorm, layer_norm
from frostline.kernels.norm.rms_norm import RMSNorm, rms_norm

__all__ = ["FusedAddRMSNorm", "LayerNorm", "RMSNorm", "fused_add_rms_norm", "layer_norm", "rms_norm"]
