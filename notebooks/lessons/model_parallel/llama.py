"""Llama 3, without positions: the net whose step the dry run counts, and a GPU trains a part of."""

from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu


class LlamaBlock(nn.Module):
    """A block of Llama 3: heads share keys and values in groups; the feed-forward net has a gate."""

    def __init__(self, width, hidden, heads, groups):
        super().__init__()
        self.head = width // heads
        self.norm1 = nn.RMSNorm(width)
        self.norm2 = nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.head, bias=False)
        self.v = nn.Linear(width, groups * self.head, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q = self.to_heads(self.q(y))
        k = self.to_heads(self.k(y))
        v = self.to_heads(self.v(y))
        # Several heads of queries use the same keys and values.
        share = q.size(1) // k.size(1)
        k = k.repeat_interleave(share, dim=1)
        v = v.repeat_interleave(share, dim=1)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))

    def to_heads(self, x):
        """(batch, length, heads × head) to (batch, heads, length, head); a tensor-parallel rank has fewer heads."""
        return x.unflatten(-1, (-1, self.head)).transpose(1, 2)


class Llama(nn.Module):
    """Llama 3 70B without positions: tokens (batch, length) to scores, through `layers` of its 80 layers.

    Source: https://arxiv.org/abs/2407.21783, table 3.
    """

    def __init__(self, layers=80, width=8192, hidden=28672, heads=64, groups=8, vocabulary=128256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, hidden, heads, groups) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
