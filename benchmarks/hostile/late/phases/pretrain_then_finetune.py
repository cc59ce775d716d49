"""Masked pre-training, then fine-tuning with all tokens and a new head, in one script (MAE in small)."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

cfg = SimpleNamespace(dim=768, depth=12, heads=12, tokens=784, keep=98, batch=48, pretrain_steps=20_000, finetune_steps=5_000)


def encoder(depth):
    layer = nn.TransformerEncoderLayer(cfg.dim, cfg.heads, 4 * cfg.dim, 0.0, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def pretrain(body):
    decoder = encoder(2).cuda()
    optimizer = torch.optim.AdamW([*body.parameters(), *decoder.parameters()], lr=1.5e-4, betas=(0.9, 0.95))
    for _ in range(cfg.pretrain_steps):
        patches = torch.randn(cfg.batch, cfg.tokens, cfg.dim, device="cuda")
        visible = patches[:, torch.randperm(cfg.tokens, device="cuda")[: cfg.keep]]
        loss = F.mse_loss(decoder(body(visible)), visible)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def finetune(body):
    model = nn.ModuleDict({"body": body, "head": nn.Linear(cfg.dim, 1000).cuda()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for _ in range(cfg.finetune_steps):
        patches = torch.randn(cfg.batch, cfg.tokens, cfg.dim, device="cuda")
        logits = model["head"](model["body"](patches).mean(1))
        loss = F.cross_entropy(logits, torch.randint(1000, (cfg.batch,), device="cuda"), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


backbone = encoder(cfg.depth).cuda()
pretrain(backbone)
finetune(backbone)
