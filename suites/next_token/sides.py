"""Who computes the loss, each called as its own users call it, and imported only when it is asked for.

| name | package | what is called |
|---|---|---|
| `torch` | torch | the plain form, eager |
| `torch_compile` | torch | `torch.compile` of it, loss and all |
| `fused` | this one | `linear_cross_entropy` |
| `fused_fp32_accumulator` | this one | the same, made to sum the weight gradient over blocks of rows in fp32, as is usual |
| `liger` | Liger-Kernel 0.8.5 | `LigerFusedLinearCrossEntropyLoss`, the weight gradient summed in fp32 |
| `cce` | cut-cross-entropy 25.1 | `linear_cross_entropy` with its defaults |

What one of them cannot do is a skip with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from frostline.harness import skip
from frostline.kernels import linear_cross_entropy
from frostline.kernels.lm_head.plan import override
from frostline.kernels.matmul import device_kind
from frostline.suites.next_token.plain import IGNORED, Question, Reduction, labels_of, loss_of
from frostline.suites.policy_step.batch import Batch
from frostline.suites.policy_step.implementation import COMMON_BOUND
from frostline.suites.policy_step.peers import CCE_BOUND, needs

_ENOUGH = 1 << 62  # bytes: a plan that may take any amount of memory
_UNREAD_COMPILED = ("operators",)  # in the sight of a meter that watches operators, torch runs compiled code eagerly


@dataclass(frozen=True)
class Side:
    """One way to compute the step.

    loss: a forward, whose scalar a backward can be called on. losses: the loss of each token [B, T] by the same code.
    allowed_over_yardstick: how much further than plain torch it may be from the reference.
    detail: what to keep of it, such as the version of its package. omit: metrics that no meter can read of it.
    """

    loss: Callable[[], Tensor]
    losses: Callable[[], Tensor]
    allowed_over_yardstick: float = COMMON_BOUND
    detail: Mapping[str, str] = field(default_factory=dict)
    omit: Collection[str] = ()


def make_side(name: str, batch: Batch, question: Question) -> Side:
    """The side of that name. Skips what it cannot do."""
    return SIDES[name](batch, question)


def plain(batch: Batch, question: Question) -> Side:
    """The step in plain torch."""
    labels = labels_of(batch)

    def of(reduction: Reduction) -> Tensor:
        return loss_of(batch.hidden, batch.weight, labels, question, reduction)

    return _side(of, labels)


def torch_compile(batch: Batch, question: Question) -> Side:
    """`torch.compile` of the plain form, for these shapes."""
    _must_be_measured(batch, "what torch_compile allocates its compiler decides, for the device that it finds")
    if not batch.hidden.is_cuda:
        skip("the compiled form is compared on CUDA alone")
    compiled, labels = torch.compile(loss_of, dynamic=False), labels_of(batch)

    def of(reduction: Reduction) -> Tensor:
        found: Tensor = compiled(batch.hidden, batch.weight, labels, question, reduction)
        return found

    return _side(of, labels, detail={"torch": torch.__version__}, omit=_UNREAD_COMPILED)


def fused(batch: Batch, question: Question, memory_budget: int | None = None) -> Side:
    """The package's own: ignored tokens are declared, so that they are skipped without asking the device."""
    labels = labels_of(batch)

    def of(reduction: Reduction) -> Tensor:
        found = linear_cross_entropy(
            batch.hidden,
            batch.weight,
            labels,
            ignore_index=IGNORED,
            lse_square_scale=question.lse_square_scale,
            label_smoothing=question.label_smoothing,
            softcap=question.softcap or None,
            reduction=reduction,
            active_rows=batch.active,
            memory_budget=memory_budget,
        )
        assert isinstance(found, Tensor)  # nothing but the loss was asked for
        return found

    return _side(of, labels)


def fused_fp32_accumulator(batch: Batch, question: Question) -> Side:
    """The package's own, made to sum the weight gradient in fp32 over blocks of rows, at 4 bytes an element of the weight."""
    if not batch.weight.requires_grad:
        skip("with the head frozen there is nothing to sum: fused is the same")
    side = fused(batch, question, memory_budget=_ENOUGH)

    def loss() -> Tensor:
        with override(keep_tiles=False):
            return side.loss()

    return Side(loss, side.losses)


def liger(batch: Batch, question: Question) -> Side:
    """Liger-Kernel's module. It sums the weight gradient in fp32: in bf16, its default, the error grows with the chunks."""
    needs("liger_kernel", "liger-kernel")
    _must_be_measured(batch, "Liger-Kernel asks the device how many tokens count")
    _must_be_on_cuda(batch, "Liger-Kernel's")
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    labels = labels_of(batch)

    def of(reduction: Reduction) -> Tensor:
        module = LigerFusedLinearCrossEntropyLoss(
            lse_square_scale=question.lse_square_scale,
            label_smoothing=question.label_smoothing,
            reduction=reduction,
            softcap=question.softcap or None,
            accum_dtype=torch.float32,
        )
        found: Tensor = module(batch.weight, batch.hidden.flatten(0, 1), labels.flatten())
        return found

    return _side(of, labels, detail={"liger-kernel": version("liger-kernel")})


def cce(batch: Batch, question: Question) -> Side:
    """cut-cross-entropy, with its own trade of accuracy for time (`policy_step.peers.CCE_BOUND`)."""
    needs("cut_cross_entropy", "cut-cross-entropy")
    _must_be_measured(batch, "cut-cross-entropy asks the device which tokens count")
    _must_be_on_cuda(batch, "cut-cross-entropy's")
    if question.label_smoothing or question.lse_square_scale:
        skip("cut-cross-entropy has neither label smoothing nor a z loss")
    from cut_cross_entropy import linear_cross_entropy as theirs

    labels = labels_of(batch)

    def of(reduction: Reduction) -> Tensor:
        softcap = question.softcap or None
        found: Tensor = theirs(batch.hidden, batch.weight, labels, softcap=softcap, reduction=reduction)
        return found

    detail = {"cut-cross-entropy": version("cut-cross-entropy")}
    return _side(of, labels, CCE_BOUND, detail=detail, omit=("flops",))  # its products are inside its own kernels


def _side(of: Callable[[Reduction], Tensor], labels: Tensor, bound: float = COMMON_BOUND, **more: Any) -> Side:
    def losses() -> Tensor:
        return of("none").view(labels.shape)

    return Side(partial(of, "mean"), losses, bound, **more)


def _must_be_measured(batch: Batch, why: str) -> None:
    if isinstance(batch.hidden, FakeTensor):
        skip(f"{why}: measure it")


def _must_be_on_cuda(batch: Batch, whose: str) -> None:
    if device_kind(batch.hidden) != "cuda":
        skip(f"{whose} kernels run on CUDA alone")


SIDES: dict[str, Callable[[Batch, Question], Side]] = {
    "torch": plain,
    "torch_compile": torch_compile,
    "fused": fused,
    "fused_fp32_accumulator": fused_fp32_accumulator,
    "liger": liger,
    "cce": cce,
}
