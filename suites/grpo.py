"""What does freezing the lm_head save in a GRPO step? One policy-gradient step over the head: forward and backward.

`unpruned` runs the package's own head as a trained one whatever is frozen (what most training code does), `pruned` only what
is asked for, `torch` is plain eager code. Without a reference model (beta = 0), as in the published measurements of this
loss; token level. Verified against float64 computed in blocks of rows by plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import linear

from frostline.harness import Preset, Step, suite
from frostline.kernels import FusedLinearGRPOLoss, linear_logprob
from frostline.kernels.matmul import target_device

_EPSILON = 0.2
_REFERENCE_ROWS = 512  # a float64 block of 512 x 151,936 logits takes 0.6 GiB
_LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384]

_PRESETS = {
    "paper": Preset({"vocab": [128256, 151936]}),
    "small": Preset(
        {"vocab": [4096, 8192], "seq_len": [64], "batch": [2], "hidden": [256], "dtype": ["float32"]},
        rounds=6,
    ),
    "crossover": Preset({"vocab": [128256], "seq_len": _LENGTHS, "batch": [1]}, rounds=1),
    "crossover_small": Preset(
        {"vocab": [8192], "seq_len": [32, 64, 128, 256, 512], "batch": [1], "hidden": [256], "dtype": ["float32"]},
        rounds=1,
    ),
}


@dataclass(frozen=True)
class _Inputs:
    """One batch: leaves that gradients reach, and what the loss needs. Tokens at the end of each completion are masked."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    mask: Tensor
    advantages: Tensor
    old: Tensor
    active: int

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors that are trained, by the name of their gradient."""
        named = {"d_hidden": self.hidden, "d_weight": self.weight, "d_bias": self.bias}
        return {name: leaf for name, leaf in named.items() if leaf is not None and leaf.requires_grad}

    def reset(self) -> None:
        for leaf in self.leaves.values():
            leaf.grad = None


def _make_inputs(
    device: str,
    *,
    vocab: int,
    seq_len: int,
    batch: int,
    hidden: int,
    trained: bool,
    bias: bool,
    dtype: torch.dtype,
    masked: float,
) -> _Inputs:
    """Logits of unit variance; old log-probs within 10 % of the policy's, with one token in ten clearly clipped.

    The policy's own log-probs are estimated from the target's logit and the logits' variance: no [tokens, vocab] exists;
    ratios stay clear of the clip bounds, so that verification is not about which side of a bound a rounding falls.
    """
    states = torch.randn(batch, seq_len, hidden, device=device, dtype=dtype)
    weight = torch.randn(vocab, hidden, device=device, dtype=dtype).mul_(hidden**-0.5)
    offset = torch.randn(vocab, device=device, dtype=dtype).mul_(0.1) if bias else None
    targets = torch.randint(vocab, (batch, seq_len), device=device)
    counted = seq_len - round(masked * seq_len)
    mask = (torch.arange(seq_len, device=device) < counted).long().expand(batch, seq_len).contiguous()
    chosen = torch.einsum("bth,bth->bt", states.float(), weight[targets].float())
    if offset is not None:
        chosen += offset[targets].float()
    logp = chosen - math.log(vocab) - 0.5 * states.float().square().mean(-1)
    moved = torch.rand(batch, seq_len, device=device)
    drift = torch.where(moved < 0.1, 0.4, 0.2 * torch.rand(batch, seq_len, device=device) - 0.1)
    return _Inputs(
        hidden=states.requires_grad_(),
        weight=weight.requires_grad_(trained),
        bias=None if offset is None else offset.requires_grad_(trained),
        targets=targets,
        mask=mask,
        advantages=torch.randn(batch, device=device),
        old=logp - drift * torch.where(moved < 0.05, 1.0, -1.0),
        active=batch * counted,
    )


def _token_weights(inputs: _Inputs, loss_type: str, dtype: torch.dtype) -> Tensor:
    """The weight of each token in the loss, as the papers have it; one process, no accumulation."""
    mask = inputs.mask.to(dtype)
    batch, length = mask.shape
    if loss_type == "grpo":
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / batch
    if loss_type == "dr_grpo":
        return mask / (batch * length)
    return mask / mask.sum().clamp(min=1)


def _plain_loss(logp: Tensor, inputs: _Inputs, loss_type: str) -> Tensor:
    """The clipped surrogate, as it is usually written."""
    ratio = torch.exp(logp - inputs.old.to(logp.dtype))
    advantages = inputs.advantages.to(logp.dtype).unsqueeze(1)
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - _EPSILON, 1 + _EPSILON) * advantages)
    return -(surrogate * _token_weights(inputs, loss_type, logp.dtype)).sum()


def _plain_logp(inputs: _Inputs) -> Tensor:
    logits = linear(inputs.hidden, inputs.weight, inputs.bias).float()
    return logits.log_softmax(-1).gather(-1, inputs.targets.unsqueeze(-1)).squeeze(-1)


class _Reference:
    """The step in float64 by blocks of rows, and plain torch's own error against it."""

    def __init__(self, inputs: _Inputs, loss_type: str) -> None:
        self.inputs, self.loss_type = inputs, loss_type
        self.rows = inputs.targets.numel()
        self.hidden = inputs.hidden.detach().flatten(0, 1).double()

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        """Every output in float64: log-probs first, the loss and its upstream from them, then the gradients."""
        inputs = self.inputs
        flat = torch.cat([log_p.gather(1, self._targets(rows)).squeeze(1) for rows, log_p in self._log_softmax()])
        logp = flat.view_as(inputs.targets).requires_grad_()
        loss = _plain_loss(logp, inputs, self.loss_type)
        (upstream,) = torch.autograd.grad(loss, logp)
        found = {"logp": logp.detach() * inputs.mask, "loss": loss.detach()}
        found |= {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in inputs.leaves.items()}
        weight = inputs.weight.detach().double()
        for rows, log_p in self._log_softmax():
            d_logits = log_p.exp_().neg_()
            d_logits.scatter_add_(1, self._targets(rows), torch.ones_like(d_logits[:, :1]))
            d_logits *= upstream.flatten()[rows].unsqueeze(1)
            found["d_hidden"].view_as(self.hidden)[rows] = d_logits @ weight
            if "d_weight" in found:
                found["d_weight"].addmm_(d_logits.t(), self.hidden[rows])
            if "d_bias" in found:
                found["d_bias"] += d_logits.sum(0)
        return found

    def yardstick(self) -> dict[str, Tensor]:
        """What plain torch gives in the dtype of the case.

        A scalar may be right by luck, so the loss stands here with the errors of its tokens added up without cancelling.
        """
        inputs, reference = self.inputs, self.outputs
        inputs.reset()
        logp = _plain_logp(inputs)
        _plain_loss(logp, inputs, self.loss_type).backward()
        logp = logp.detach() * inputs.mask
        slack = (logp - reference["logp"]).abs() * _token_weights(inputs, self.loss_type, torch.float64)
        return {"logp": logp, "loss": reference["loss"] + slack.sum(), **_gradients(inputs)}

    def _targets(self, rows: slice) -> Tensor:
        return self.inputs.targets.flatten()[rows].unsqueeze(1)

    def _log_softmax(self) -> Iterator[tuple[slice, Tensor]]:
        weight = self.inputs.weight.detach().double()
        bias = None if self.inputs.bias is None else self.inputs.bias.detach().double()
        for first in range(0, self.rows, _REFERENCE_ROWS):
            rows = slice(first, first + _REFERENCE_ROWS)
            yield rows, linear(self.hidden[rows], weight, bias).log_softmax(1)


def _gradients(inputs: _Inputs) -> dict[str, Tensor]:
    """The gradients that a backward left, taken out of the leaves."""
    found = {name: leaf.grad for name, leaf in inputs.leaves.items() if leaf.grad is not None}
    inputs.reset()
    return found


def _forward(implementation: str, inputs: _Inputs, loss_type: str) -> Callable[[], Tensor]:
    """The function that gives the loss."""
    if implementation == "torch":
        return lambda: _plain_loss(_plain_logp(inputs), inputs, loss_type)
    pruned = implementation == "pruned"
    module = FusedLinearGRPOLoss(
        beta=0.0,
        use_ref_model=False,
        epsilon_low=_EPSILON,
        epsilon_high=_EPSILON,
        loss_type=loss_type,
        max_completion_length=inputs.mask.shape[1],
        prune=pruned,
    )

    def loss() -> Tensor:
        value: Tensor
        value, _metrics = module(
            inputs.hidden,
            inputs.weight,
            inputs.targets,
            inputs.mask,
            inputs.advantages,
            inputs.bias,
            old_per_token_logps=inputs.old,
            active_rows=inputs.active if pruned else None,
        )
        return value

    return loss


@suite(
    axes={
        "vocab": [128256],
        "seq_len": [1024],
        "batch": [8],
        "hidden": [4096],
        "lm_head": ["frozen", "trainable"],
        "bias": [False],
        "loss_type": ["dapo"],
        "dtype": ["bfloat16"],
        "masked": [0.0],
    },
    implementations=["unpruned", "pruned", "torch"],
    baseline="unpruned",
    compared="pruned",
    presets=_PRESETS,
    targets=["frostline.kernels"],
    target_device=target_device,
)
def grpo(
    implementation: str,
    device: str,
    *,
    vocab: int,
    seq_len: int,
    batch: int,
    hidden: int,
    lm_head: str,
    bias: bool,
    loss_type: str,
    dtype: str,
    masked: float,
) -> Step:
    """One policy-gradient step over the head; `masked` is the share of tokens that do not count."""
    inputs = _make_inputs(
        device,
        vocab=vocab,
        seq_len=seq_len,
        batch=batch,
        hidden=hidden,
        trained=lm_head == "trainable",
        bias=bias,
        dtype=getattr(torch, dtype),
        masked=masked,
    )
    forward = _forward(implementation, inputs, loss_type)
    reference = _Reference(inputs, loss_type)

    def run() -> None:
        forward().backward()

    def outputs() -> dict[str, Tensor]:
        inputs.reset()
        loss = forward()
        loss.backward()
        with torch.no_grad():
            if implementation == "torch":
                logp = _plain_logp(inputs) * inputs.mask
            else:
                logp = linear_logprob(inputs.hidden, inputs.weight, inputs.targets, inputs.bias, active=inputs.mask != 0)
        return {"logp": logp, "loss": loss.detach(), **_gradients(inputs)}

    return Step(
        run=run,
        reset=inputs.reset,
        outputs=outputs,
        reference=lambda: reference.outputs,
        yardstick=reference.yardstick,
        allowed_over_yardstick=3.0,
    )
