"""One process of two that train a small model with this package's loss under DDP; run by `test_ddp` as a script.

Arguments: the rank, a file for the processes to meet at, and a file with the cases; the gradients go to `<cases>.<rank>`.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from torch import nn

from frostline.kernels import FusedLinearGRPOLoss


class Model(nn.Module):
    """A layer, a head and the loss."""

    def __init__(self, case):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 33)
        self.load_state_dict(case["state"])
        self.head.requires_grad_(case["trained"])
        self.loss = FusedLinearGRPOLoss(beta=0.0, use_ref_model=False, **case["options"])

    def forward(self, states, ids, mask, advantages, old, **more):
        head = self.head
        return self.loss(self.body(states), head.weight, ids, mask, advantages, head.bias, old_per_token_logps=old, **more)[0]


def gradients(model):
    """By name, of what is trained."""
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


def main(rank, meeting, cases):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=30)
    )
    found = []
    for case in torch.load(cases):
        model = nn.parallel.DistributedDataParallel(Model(case))
        model(*(values.chunk(2)[rank] for values in case["batch"]), **case["more"]).backward()
        found.append(gradients(model.module))
    torch.save(found, f"{cases}.{rank}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
