"""SwiGLU (Shazeer 2020): silu(gate) * up, and the MLP around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from frostline.kernels.arguments import check_floating
from frostline.kernels.pointwise import tiles


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up in one kernel, computed in fp32 (fp64 for fp64) and rounded once.

    The backward reads gate and up again instead of keeping silu(gate), and computes the gradients alone that are asked for.
    Nothing is written in place.

    Args:
        gate, up: [...], of one shape and dtype, any strides.

    Returns:
        [...], of their dtype.

    Raises:
        TypeError: a dtype that cannot be, or a DTensor.
        ValueError: a shape or device that does not fit.
    """
    check_floating(gate, "gate")
    check_floating(up, "up")
    if up.shape != gate.shape:
        raise ValueError(f"up: got shape {tuple(up.shape)}, wanted {tuple(gate.shape)}, that of gate")
    if up.dtype != gate.dtype:
        raise TypeError(f"up: got {up.dtype}, wanted {gate.dtype}, that of gate")
    if up.device != gate.device:
        raise ValueError(f"up: got device {up.device}, wanted {gate.device}, that of gate")
    with torch.autocast(gate.device.type, enabled=False):
        return tiles.swiglu(gate, up)


class SwiGLUMLP(nn.Module):
    """down_proj(silu(gate_proj(x)) * up_proj(x)), with the names that Hugging Face's gated MLPs have."""

    def __init__(self, config: Any) -> None:
        """Make the three projections.

        Args:
            config: of a model, with `hidden_size`, `intermediate_size` and `hidden_act` or `hidden_activation`.

        Raises:
            ValueError: an activation other than SiLU.
        """
        super().__init__()
        act = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
        if act not in ("silu", "swish"):
            raise ValueError(f"config: got the activation {act!r}, wanted 'silu' or 'swish'")
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] to [..., H]."""
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]  # a module's call
