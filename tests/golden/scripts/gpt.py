"""A small GPT in the usual style: AdamW in two groups, autocast, gradient accumulation, clipping."""

import argparse

import torch
from torch import nn
from torch.nn import functional

options = argparse.ArgumentParser()
options.add_argument("--dim", type=int, default=256)
options.add_argument("--layers", type=int, default=4)
options.add_argument("--steps", type=int, default=10)
given = options.parse_args()
dim = given.dim
vocabulary, length, batch, heads = 4096, 256, 8, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, dim))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block() for _ in range(given.layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


torch.manual_seed(0)
model = Gpt().cuda()
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3)
for _step in range(given.steps):
    for _micro in range(2):
        ids = torch.randint(vocabulary, (batch, length + 1)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = functional.cross_entropy(logits.view(-1, vocabulary), ids[:, 1:].reshape(-1))
        (loss / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
