"""Accelerate with accumulation, clipping, a schedule and an evaluation after each epoch, as its examples do."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=4)
ids = TensorDataset(torch.zeros(8_192, 64, dtype=torch.long), torch.zeros(8_192, dtype=torch.long))
train_loader = DataLoader(ids, batch_size=32, shuffle=True)
eval_loader = DataLoader(TensorDataset(*(tensor[:1024] for tensor in ids.tensors)), batch_size=32)
layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
model = nn.Sequential(nn.Embedding(10_000, 512), nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 512, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 500))
model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, eval_loader, scheduler
)
for epoch in range(10):
    model.train()
    for x, y in train_loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    right = 0
    for x, y in eval_loader:
        with torch.no_grad():
            guess = model(x).argmax(-1)
        guess, y = accelerator.gather_for_metrics((guess, y))
        right += (guess == y).sum().item()
    accelerator.print(f"epoch {epoch}: {right / 1024:.3f}")
