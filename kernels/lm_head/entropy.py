"""What policy losses do with entropies: a bonus, and a policy gradient of the tokens of highest entropy alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from frostline.kernels.lm_head.policy_batch import PolicyBatch
from frostline.kernels.lm_head.policy_losses import LOSSES
from frostline.kernels.lm_head.policy_options import PolicyOptions
from frostline.kernels.lm_head.policy_weights import per_token_of_all


def with_entropy_weights(batch: PolicyBatch, options: PolicyOptions) -> PolicyBatch:
    """The batch with the weights of its entropy bonus: a mean over its tokens (those of `kept`, where there is a choice).

    Losses that average over the tokens of all steps and processes average the bonus over them as well, so that it does not
    depend on how a batch is split; for the others it is a mean of this step, as their loss is.
    """
    if not options.entropy_trained:
        return batch
    chosen = batch.mask if batch.kept is None else batch.mask * batch.kept
    mean = chosen / chosen.sum().clamp(min=1.0)
    if LOSSES[options.loss_type].weights is per_token_of_all:
        mean = mean * batch.weights.sum()
    return replace(batch, entropy_weights=mean)


def with_highest_entropies(batch: PolicyBatch, entropy: Tensor, options: PolicyOptions) -> PolicyBatch:
    """The batch keeping the `options.top_entropy` share of tokens, by their entropy [B, T] over the batches of all processes.

    Wang et al. 2025, https://arxiv.org/abs/2506.01939, with the threshold as a linearly interpolated quantile, as TRL takes it.
    """
    active = batch.mask != 0
    values = torch.where(active, entropy.detach(), float("nan")).reshape(-1)
    threshold = quantile(_of_all_processes(values), 1.0 - options.top_entropy)
    return replace(batch, kept=active & (entropy.detach() >= threshold))


def quantile(values: Tensor, share: float) -> Tensor:
    """The linearly interpolated quantile of what is not NaN, a scalar tensor; NaN of nothing. Any size, no synchronisation."""
    if values.numel() == 0:
        return values.new_full((), float("nan"))
    ordered = values.sort().values  # NaN last
    place = share * ((~values.isnan()).sum().double() - 1.0).clamp(min=0.0)  # fp32 does not count beyond 2^24
    below = place.floor()
    at = below.long()
    upper = torch.where(place > below, at + 1, at)  # the value behind the last would be NaN
    around = ordered.gather(0, torch.stack([at, upper]))  # plain indexing would ask the device for the index
    return torch.lerp(around[0], around[1], (place - below).to(values.dtype))


def _of_all_processes(values: Tensor) -> Tensor:
    """`values` [n] of every process in one tensor, filled up with NaN. Sizes may differ: they are exchanged first."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return values
    size = torch.tensor(values.numel(), device=values.device)
    torch.distributed.all_reduce(size, op=torch.distributed.ReduceOp.MAX)
    padded = values.new_full((int(size),), float("nan"))
    padded[: values.numel()] = values
    gathered = [torch.empty_like(padded) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(gathered, padded)
    return torch.cat(gathered)
