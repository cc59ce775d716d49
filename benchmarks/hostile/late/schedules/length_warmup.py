"""Sequence-length warm-up of a language model (Li et al., 2022): the length follows a linear pace, in steps of 64."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 8192
    width: int = 768
    heads: int = 12
    layers: int = 8
    batch: int = 16
    min_len: int = 64
    max_len: int = 2048
    pace_steps: int = 15_000
    total_steps: int = 40_000


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = nn.Embedding(cfg.vocab, cfg.width)
        layer = nn.TransformerEncoderLayer(cfg.width, cfg.heads, 4 * cfg.width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.head = nn.Linear(cfg.width, cfg.vocab, bias=False)

    def forward(self, ids):
        return self.head(self.blocks(self.tokens(ids)))


def current_length(cfg, step):
    length = cfg.min_len + (cfg.max_len - cfg.min_len) * min(1.0, step / cfg.pace_steps)
    return int(length) // 64 * 64


def main(cfg):
    model = GPT(cfg).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
    for step in range(cfg.total_steps):
        ids = torch.randint(cfg.vocab, (cfg.batch, cfg.max_len + 1), device="cuda")
        length = current_length(cfg, step)
        logits = model(ids[:, :length])
        loss = F.cross_entropy(logits.reshape(-1, cfg.vocab), ids[:, 1 : length + 1].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main(Config())
