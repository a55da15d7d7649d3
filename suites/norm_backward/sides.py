"""The norms whose backwards are compared: the package's own, torch's, the same compiled, and Liger-Kernel's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from frostline.harness import skip
from frostline.kernels.norm import fused_add_rms_norm, layer_norm, rms_norm
from frostline.suites.norm_backward.problem import EPS, FUSED_ADD, LAYER_NORM, Inputs, Norm, Problem


def own_norm(op: str) -> Norm:
    """The package's own."""
    own: Mapping[str, Norm] = {
        LAYER_NORM: lambda x, weight, bias: layer_norm(x, weight, bias, EPS),
        FUSED_ADD: lambda x, residual, weight: fused_add_rms_norm(x, residual, weight, EPS),
    }
    return own.get(op, lambda x, weight: rms_norm(x, weight, EPS))


def torch_norm(op: str) -> Norm:
    """torch's own; the addition before it is an operator of its own."""

    def fused_add(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return functional.rms_norm(total, total.shape[-1:], weight, EPS), total

    norms: Mapping[str, Norm] = {
        LAYER_NORM: lambda x, weight, bias: functional.layer_norm(x, x.shape[-1:], weight, bias, EPS),
        FUSED_ADD: fused_add,
    }
    return norms.get(op, lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight, EPS))


def compiled_norm(problem: Problem) -> Norm:
    """torch's own norm under torch.compile. Raises Skipped without a GPU."""
    if not problem.device.startswith("cuda"):
        skip("torch_compile is compared on a GPU alone")
    from torch._functorch import config

    config.donated_buffer = False  # the graph of a forward serves many backwards here
    return torch.compile(torch_norm(problem.op), dynamic=False)


def liger_norm(problem: Problem) -> Norm:
    """Liger-Kernel's. Raises Skipped without a GPU, or where it is not installed."""
    if not problem.device.startswith("cuda"):
        skip("Liger-Kernel's norms run on CUDA alone")
    if importlib.util.find_spec("liger_kernel") is None:
        skip("liger-kernel is not installed: pip install 'frostline[peers]'")
    # Not in place, as it is by default: that would write over the upstream gradient, which is used again.
    if problem.op == FUSED_ADD:
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

        return lambda x, residual, weight: LigerFusedAddRMSNormFunction.apply(x, residual, weight, EPS, 0.0, "llama", False)
    if problem.op == LAYER_NORM:
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPS)
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)


def norm_of(implementation: str, problem: Problem) -> Norm:
    """The norm that an implementation stands for."""
    if implementation == "torch_compile":
        return compiled_norm(problem)
    if implementation == "liger":
        return liger_norm(problem)
    return torch_norm(problem.op) if implementation == "torch" else own_norm(problem.op)


def bound_of(inputs: Inputs) -> Callable[[], Tensor]:
    """What a frozen backward cannot do without moving: it reads x and every upstream gradient, and writes one gradient.

    torch's `add` of two tensors does that, and of three `addcmul`.
    """
    read = inputs.leaves[0].detach(), *inputs.upstream
    return lambda: torch.addcmul(*read) if len(read) > 2 else torch.add(*read)
