"""The nets that several lessons use, and an optimizer for those in 16 bits."""

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention
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
