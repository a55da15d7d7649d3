"""A small decoder in plain torch, trained by LoRA: the body in front of a head, for suites that ask about whole models.

Pre-norm blocks of causal attention and a gated MLP, as in current language models; base weights are frozen, and each block's
query and value projections have a low-rank adapter that is trained (Hu et al., https://arxiv.org/abs/2106.09685).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

RANK = 16
HEAD_WIDTH = 128  # of an attention head, at most


class Adapted(nn.Module):
    """A frozen linear layer with a trained low-rank addition: x W^T + x A^T B^T."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = _frozen(width, width, dtype)
        self.down = nn.Parameter(torch.randn(RANK, width, dtype=dtype) * width**-0.5)
        self.up = nn.Parameter(torch.zeros(width, RANK, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> [..., width]."""
        base: Tensor = self.base(x)
        return base + functional.linear(functional.linear(x, self.down), self.up)


class Block(nn.Module):
    """Attention and MLP, each on the normalised residual stream and added to it."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = max(width // HEAD_WIDTH, 1)
        self.before_attention = nn.RMSNorm(width, dtype=dtype).requires_grad_(False)
        self.before_mlp = nn.RMSNorm(width, dtype=dtype).requires_grad_(False)
        self.query, self.value = Adapted(width, dtype), Adapted(width, dtype)
        self.key, self.out = _frozen(width, width, dtype), _frozen(width, width, dtype)
        self.gate, self.up = _frozen(width, 3 * width, dtype), _frozen(width, 3 * width, dtype)
        self.down = _frozen(3 * width, width, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, width] -> [B, T, width]."""
        y = self.before_attention(x)
        query, key, value = (self._split(project(y)) for project in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.before_mlp(x)
        added: Tensor = self.down(functional.silu(self.gate(y)) * self.up(y))
        return x + added

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, heads, T, width / heads]."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Decoder(nn.Module):
    """Tokens to hidden states: an embedding that is frozen, blocks, and a last norm.

    Args:
        vocab, width, layers: its sizes.
        device, dtype: of all weights.
    """

    def __init__(self, vocab: int, width: int, layers: int, *, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        with torch.device(device):
            self.embedding = nn.Embedding(vocab, width, dtype=dtype).requires_grad_(False)
            self.blocks = nn.ModuleList(Block(width, dtype) for _ in range(layers))
            self.last = nn.RMSNorm(width, dtype=dtype).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] int64 -> hidden states [B, T, width]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.last(x)
        return found


def _frozen(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype).requires_grad_(False)
