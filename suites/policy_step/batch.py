"""One batch of a policy-gradient step: random, of a given size, with values as training has them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """How large a batch is, and what of it is trained. `masked` is the share of tokens that do not count."""

    vocab: int
    length: int
    batch: int
    hidden: int
    dtype: torch.dtype
    trained: bool
    bias: bool = False
    masked: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Leaves that gradients reach, and what the loss needs. Tokens at the end of each completion are masked.

    hidden: [B, T, H]. weight: [V, H]. bias: [V]. targets, mask: [B, T] int64. advantages: [B] fp32. old: [B, T] fp32, the
    log-probs under the policy that sampled. active: how many tokens count. Of the reference model there is nothing, or its
    log-probs [B, T] fp32, or its head: ref_hidden [B, T, H] and ref_weight [V, H].
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    mask: Tensor
    advantages: Tensor
    old: Tensor
    active: int
    ref_logps: Tensor | None = None
    ref_hidden: Tensor | None = None
    ref_weight: Tensor | None = None

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors that are trained, by the name of their gradient."""
        named = {"d_hidden": self.hidden, "d_weight": self.weight, "d_bias": self.bias}
        return {name: leaf for name, leaf in named.items() if leaf is not None and leaf.requires_grad}

    def reset(self) -> None:
        """Drop the gradients."""
        for leaf in self.leaves.values():
            leaf.grad = None

    def take_gradients(self) -> dict[str, Tensor]:
        """The gradients that a backward left, taken out of the leaves."""
        found = {name: leaf.grad for name, leaf in self.leaves.items() if leaf.grad is not None}
        self.reset()
        return found


def make_batch(device: str, shape: Shape, ref_model: str) -> Batch:
    """A batch with logits of unit variance, and with a reference model close to the policy.

    The policy's own log-probs are estimated from the target's logit and the logits' variance: no [tokens, vocab] exists.

    Args:
        device: where it is made.
        shape: its sizes.
        ref_model: `none`, `logps` (reference log-probs are given) or `head` (they are computed in the step).
    """
    size = (shape.batch, shape.length)
    states = torch.randn(*size, shape.hidden, device=device, dtype=shape.dtype)
    scale = shape.hidden**-0.5
    weight = torch.randn(shape.vocab, shape.hidden, device=device, dtype=shape.dtype).mul_(scale)
    offset = torch.randn(shape.vocab, device=device, dtype=shape.dtype).mul_(0.1) if shape.bias else None
    targets = torch.randint(shape.vocab, size, device=device)
    counted = shape.length - round(shape.masked * shape.length)
    mask = (torch.arange(shape.length, device=device) < counted).long().expand(size).contiguous()
    chosen = torch.einsum("bth,bth->bt", states.float(), weight[targets].float())
    if offset is not None:
        chosen += offset[targets].float()
    logp = chosen - math.log(shape.vocab) - 0.5 * states.float().square().mean(-1)
    reference: dict[str, Tensor] = {}
    if ref_model == "logps":
        reference["ref_logps"] = logp + 0.2 * torch.randn(size, device=device)
    elif ref_model == "head":
        reference["ref_hidden"] = states + 0.1 * torch.randn_like(states)
        reference["ref_weight"] = torch.randn_like(weight).mul_(0.1 * scale).add_(weight)
    return Batch(
        hidden=states.requires_grad_(),
        weight=weight.requires_grad_(shape.trained),
        bias=None if offset is None else offset.requires_grad_(shape.trained),
        targets=targets,
        mask=mask,
        advantages=torch.randn(shape.batch, device=device),
        old=logp - _drift(size, counted, device),
        active=shape.batch * counted,
        **reference,
    )


def _drift(size: tuple[int, int], counted: int, device: str) -> Tensor:
    """How far each token's log-prob moved since the policy sampled, [B, T]: within 0.1, one in ten by 0.4 and clearly clipped.

    No ratio is near a clip bound, so that verification is not about which side of a bound a rounding falls. The second half of
    a completion moved as the first did, the other way: the ratio of a whole completion, where it is asked for, stays near 1.
    """
    moved = torch.rand(size, device=device)
    drift = torch.where(moved < 0.1, 0.4, 0.2 * torch.rand(size, device=device) - 0.1)
    drift = drift * torch.where(moved < 0.05, 1.0, -1.0)
    half = counted // 2
    drift[:, counted - half : counted] = -drift[:, :half]
    return drift
