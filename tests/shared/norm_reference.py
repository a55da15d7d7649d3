"""The norms as formulas and as models write them, and how far off something is: for tests with a GPU and without."""

from __future__ import annotations

import torch

EPS = 1e-6


def normalised(x, centred=False):
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def exact(x, w=None, b=None, offset=0.0, centred=False):
    y = normalised(x, centred)
    y = y if w is None else y * (w + offset)
    return y if b is None else y + b


def eager_rms(x, w, offset, mode):
    """The same norm as models write it in torch."""
    if mode == "llama":
        return (w + offset if offset else w) * normalised(x.float()).to(x.dtype)
    if mode == "gemma":
        return (normalised(x.float()) * (offset + w.float())).to(x.dtype)
    return normalised(x) * (w + offset if offset else w)


def error(found, wanted):
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm().clamp_min(1e-30))


def leaves(shape, dtype, *trained, device="cpu"):
    """x, and one parameter for each flag, which says whether it is trained."""
    x = torch.randn(shape, device=device).mul(2).add(0.3).to(dtype).requires_grad_()
    return x, *(torch.randn(shape[-1], device=device).to(dtype).requires_grad_(flag) for flag in trained)


def doubles(tensors):
    return [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]


def gradients(y, tensors, dy):
    return torch.autograd.grad(y, [t for t in tensors if t.requires_grad], dy)
