"""A two-tower model with a retrieval evaluation (CLIP benchmarks): the similarity of all images to all texts."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 256))
        self.text = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 256))

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)


def recall_at_k(model, loader, k=10):
    model.eval()
    images, texts = [], []
    with torch.inference_mode():
        for image, text in loader:
            i, t = model(image.cuda(), text.cuda())
            images.append(i)
            texts.append(t)
        images, texts = torch.cat(images), torch.cat(texts)
        scores = images @ texts.t()
        top = scores.topk(k, dim=1).indices
        hit = (top == torch.arange(len(scores), device="cuda")[:, None]).any(1)
    return hit.float().mean()


pairs = DataLoader(TensorDataset(torch.zeros(20_000, 64), torch.zeros(20_000, 64)), 500, shuffle=True)
held_out = DataLoader(TensorDataset(torch.zeros(60_000, 64), torch.zeros(60_000, 64)), 500)
model = TwoTowers().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
for epoch in range(32):
    model.train()
    for image, text in pairs:
        i, t = model(image.cuda(), text.cuda())
        logits = i @ t.t() * 100
        labels = torch.arange(len(logits), device="cuda")
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, recall_at_k(model, held_out).item())
