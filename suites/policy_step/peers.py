"""Other packages' ways to compute the step, each called as its own users call it, and imported only when it is asked for.

| name | package | what is called |
|---|---|---|
| `torch_compile` | torch | `torch.compile` of the plain form, loss and all |
| `liger` | Liger-Kernel 0.8.5 | `LigerFusedLinearGRPOLoss` with its defaults |
| `trl` | TRL 1.16 | the log-prob function of its fused head, with the entropy that `GRPOTrainer` asks for, and the plain loss |
| `cce` | cut-cross-entropy 25.1 | `linear_cross_entropy` per token, negated, and the plain loss |

What one of them cannot do is a skip with the reason. The cost model follows `trl` and `liger` as they run on a GPU: the Triton
kernels that TRL launches are noted, and write what was allocated before; the loss math that Liger-Kernel compiles, a few values
a token, is followed as eager code. `torch_compile` and `cce` cannot be followed, and say why.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from frostline.harness import skip
from frostline.kernels.matmul import device_kind, kind_of
from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.implementation import (
    Implementation,
    logp_alone,
    module_loss,
    module_options,
    plain_loss_on,
)
from frostline.suites.policy_step.plain import Question, logp_of

# cut-cross-entropy drops blocks of the gradient below 2.4e-4 in bf16 by default. At a vocabulary of 128,256 nearly all of the
# softmax's share is below: its d_hidden is off by |E_p[w]| / |w| = hidden^-1/2, 1.6 %, where plain torch is off by 0.2 %.
# That is its trade of accuracy for time, so its time is shown together with its error instead of being called wrong.
CCE_BOUND = 12.0
_UNREAD_COMPILED = ("operators",)  # in the sight of a meter that watches operators, torch runs compiled code eagerly
_TRL_CHUNK = 32_768  # the width of the vocabulary's chunks in TRL's trainers
_NOT_IN_THE_TARGETS = -100


def make_peer(name: str, batch: Batch, question: Question) -> Implementation:
    """The implementation of that name. Skips what it cannot do."""
    return PEERS[name](batch, question)


def torch_compile(batch: Batch, question: Question) -> Implementation:
    """`torch.compile` of the plain form, for these shapes."""
    if _is_predicted(batch):
        skip("what torch_compile allocates its compiler decides, for the device that it finds: measure it")
    if not (batch.hidden.is_cuda or _compiles_for_cpu()):
        skip("torch.compile needs a C++ compiler and Python's headers on a CPU")

    def log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return logp_of(hidden, weight, bias, batch.targets)

    compiled = torch.compile(plain_loss_on(log_probs, batch, question), dynamic=False)
    alone = torch.compile(logp_alone(log_probs, batch), dynamic=False)
    omit = _UNREAD_COMPILED if batch.hidden.is_cuda else (*_UNREAD_COMPILED, "peak_allocated", "peak_above_inputs")
    return Implementation(compiled, alone, detail={"torch": torch.__version__}, omit=omit)


def liger(batch: Batch, question: Question) -> Implementation:
    """Liger-Kernel's module; compiled, as it is by default, on a GPU."""
    needs("liger_kernel", "liger-kernel")
    if question.level == "sequence" and question.loss_type in ("cispo", "sapo"):
        skip(f"Liger-Kernel has no {question.loss_type} at sequence level")
    if question.loss_type == "luspo" and batch.active < batch.targets.numel():
        skip("Liger-Kernel's luspo counts padding")
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss
    from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase

    module = LigerFusedLinearGRPOLoss(**module_options(batch, question), compiled=batch.hidden.is_cuda)

    def loss() -> Tensor:
        value = module_loss(module, batch)
        if _is_predicted(batch):
            value = _UnitGradient.apply(value)  # type: ignore[no-untyped-call]  # untyped in torch
        return value

    def logp() -> Tensor:
        found: Tensor = LigerFusedLinearPPOBase.chunk_forward(batch.hidden, batch.weight, batch.targets, batch.bias)
        return found

    omit = _UNREAD_COMPILED if module.compiled else ()
    return Implementation(loss, logp, detail={"liger-kernel": version("liger-kernel")}, omit=omit)


def trl(batch: Batch, question: Question) -> Implementation:
    """The log-prob function of TRL's fused head. On a GPU TRL computes the tokens that count alone; elsewhere all of them."""
    needs("trl", "trl")
    if importlib.util.find_spec("trl.kernels") is None:
        skip(f"TRL {version('trl')} has no fused head: pip install 'trl==1.16.*'")
    from trl.kernels import ChunkedLogProbFunction

    if _is_predicted(batch):
        _take_the_branches_of_a_gpu()
    mask = batch.mask != 0

    def log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        compact = device_kind(hidden) == "cuda"
        rows, targets = _counted(hidden, batch, mask) if compact else (hidden.flatten(0, 1), batch.targets.flatten())
        options = (1.0, _TRL_CHUNK, None, 1.0, ("log_probs", "entropy"))  # temperature, chunk, softcap, scale, outputs
        found: Tensor = ChunkedLogProbFunction.apply(rows, weight, bias, targets, *options)[0]
        if compact:
            return found.new_zeros(mask.shape).masked_scatter(mask, found)
        return found.view(mask.shape).masked_fill(~mask, 0)

    detail = {"trl": version("trl"), "transformers": version("transformers")}
    return Implementation(plain_loss_on(log_probs, batch, question), logp_alone(log_probs, batch), detail=detail)


def cce(batch: Batch, question: Question) -> Implementation:
    """cut-cross-entropy: the negated loss of each token is its log-prob. Tokens that do not count are no target."""
    needs("cut_cross_entropy", "cut-cross-entropy")
    if _is_predicted(batch):
        skip("cut-cross-entropy asks the device which tokens count, and launches kernels whose sizes depend on it: measure it")
    if device_kind(batch.hidden) != "cuda":
        skip("cut-cross-entropy's kernels run on CUDA alone")
    if batch.bias is not None:
        skip("cut-cross-entropy has no bias")
    from cut_cross_entropy import linear_cross_entropy

    targets = batch.targets.masked_fill(batch.mask == 0, _NOT_IN_THE_TARGETS)

    def log_probs(hidden: Tensor, weight: Tensor, _bias: Tensor | None) -> Tensor:
        losses: Tensor = linear_cross_entropy(hidden, weight, targets, reduction="none")
        return -losses

    detail = {"cut-cross-entropy": version("cut-cross-entropy")}
    loss, logp = plain_loss_on(log_probs, batch, question), logp_alone(log_probs, batch)
    return Implementation(loss, logp, CCE_BOUND, detail, omit=("flops",))  # its products are inside its own kernels


PEERS: dict[str, Callable[[Batch, Question], Implementation]] = {
    "torch_compile": torch_compile,
    "liger": liger,
    "trl": trl,
    "cce": cce,
}


def _is_predicted(batch: Batch) -> bool:
    return isinstance(batch.hidden, FakeTensor)


def _counted(hidden: Tensor, batch: Batch, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states and targets of the tokens that count, copied; where there is no mask to read, as many of them."""
    if not _is_predicted(batch):
        return hidden[mask], batch.targets[mask]
    index = torch.nonzero_static(mask.flatten(), size=batch.active).squeeze(1)
    return hidden.flatten(0, 1)[index], batch.targets.flatten()[index]


def _take_the_branches_of_a_gpu() -> None:
    """TRL asks a tensor's device whether to launch Triton kernels, and whether a product can have an fp32 result: a predicted
    tensor lives on the CPU."""
    from trl.kernels import chunked_logprob

    elsewhere = chunked_logprob._addmm_fp32

    def addmm(acc: Tensor, a: Tensor, b: Tensor) -> None:
        if kind_of(acc.device) == "cuda" and a.dtype != torch.float32:
            torch.addmm(acc, a, b, out_dtype=torch.float32, out=acc)
        else:
            elsewhere(acc, a, b)

    chunked_logprob._use_triton = lambda device: kind_of(device) == "cuda"
    chunked_logprob._addmm_fp32 = addmm


class _UnitGradient(torch.autograd.Function):
    """The identity, whose gradient is a 1 that can be read where tensors hold no data: Liger-Kernel asks whether it is one."""

    @staticmethod
    def forward(_ctx: Any, loss: Tensor) -> Tensor:
        """The loss, the root of a backward."""
        return loss.view_as(loss)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        """What arrives at the root of a backward."""
        return torch.tensor(1.0, dtype=gradients[0].dtype)


def needs(module: str, package: str) -> None:
    """Skip where a package is not installed."""
    if importlib.util.find_spec(module) is None:
        skip(f"{package} is not installed: pip install 'frostline[peers]'")


def _compiles_for_cpu() -> bool:
    compiler = shutil.which(os.environ.get("CXX") or "") or shutil.which("g++") or shutil.which("clang++")
    return compiler is not None and (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file()
