"""The Transformer that benchmarks and the demo train: a small GPT over bytes."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Attention and a feed-forward layer, both residual, normalised before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Batch x length x width."""
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class ByteGPT(nn.Module):
    """Predicts the next byte.

    Args:
        width: Size of the hidden state.
        layers: Number of blocks.
        heads: Attention heads.
        length: Longest context.
    """

    def __init__(self, width: int = 384, layers: int = 5, heads: int = 6, length: int = 128) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean loss of predicting bytes 1.. from bytes ..-1 of a batch x (length + 1)."""
        inputs, targets = x[:, :-1], x[:, 1:]
        h = self.token(inputs) + self.place.weight[: inputs.shape[1]]
        for block in self.blocks:
            h = block(h)
        return nn.functional.cross_entropy(self.head(self.norm(h)).flatten(0, 1), targets.flatten())
