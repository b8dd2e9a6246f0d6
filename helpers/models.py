"""The nets that several lessons use, and an optimizer for those in 16 bits."""

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint


def attention_by_hand(q, k, v, is_causal):
    """What `scaled_dot_product_attention` computes, with the whole table of scores in memory."""
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores.softmax(-1) @ v


class Block(nn.Module):
    """A norm and attention, a norm and a feed-forward net: https://arxiv.org/abs/2002.04745, figure 1b."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small decoder: tokens (batch, length) to scores (batch, length, vocabulary).

    checkpointing: keep only what enters each block, and compute the rest again in backward.
    """

    def __init__(self, width=64, layers=4, heads=4, vocabulary=256, length=64, checkpointing=False):
        super().__init__()
        self.checkpointing = checkpointing
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


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


class Masters(torch.optim.AdamW):
    """AdamW for 16-bit parameters: it steps float32 copies, the masters, and rounds them to 16 bits."""

    def __init__(self, parameters, **how):
        self.low = list(parameters)
        super().__init__([one.detach().float() for one in self.low], **how)

    def step(self):
        masters = self.param_groups[0]["params"]
        for low, master in zip(self.low, masters, strict=True):
            master.grad = low.grad.float()
        super().step()
        for low, master in zip(self.low, masters, strict=True):
            low.data.copy_(master)
            low.grad = master.grad = None
