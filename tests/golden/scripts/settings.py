"""A training that sets allocator settings, empties the cache, and resets the peak."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:32"
import torch
from torch import nn

model = nn.Sequential(nn.Embedding(5000, 256), nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), nn.Linear(256, 5000))
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(6):
    ids = torch.randint(5000, (4 + step, 128), device="cuda")
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
