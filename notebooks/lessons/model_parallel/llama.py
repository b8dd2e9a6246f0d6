"""Llama 3, without positions: the net whose step the dry run counts, and a GPU trains a part of."""

from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu


class LlamaBlock(nn.Module):
    """A block of Llama 3: heads share keys and values in groups; the feed-forward net has a gate."""

    def __init__(self, width, hidden, heads, groups):
        super().__init__()
        self.head = width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.head, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        parts = self.q(y), self.k(y), self.v(y)
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        k, v = (part.repeat_interleave(q.size(1) // k.size(1), 1) for part in (k, v))
        x = x + self.o(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Llama 3 70B without positions: tokens (batch, length) to scores, through `layers` of its 80 layers.

    Source: https://arxiv.org/abs/2407.21783, table 3.
    """

    def __init__(self, layers=80, width=8192, hidden=28672, heads=64, groups=8, vocabulary=128256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, hidden, heads, groups) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
