"""SwAV's queue: stored embeddings join the batch from epoch `epoch_queue_starts` on; it is much smaller than the model."""

import torch
import torch.nn.functional as F
from torch import nn

feat_dim, batch, epochs, iterations = 128, 512, 100, 250
epoch_queue_starts, queue_length = 15, 65_536

encoder = nn.Sequential(nn.Linear(2048, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, feat_dim)).cuda()
prototypes = nn.Linear(feat_dim, 300, bias=False).cuda()
optimizer = torch.optim.SGD([*encoder.parameters(), *prototypes.parameters()], lr=0.6, momentum=0.9)
queue = None


@torch.no_grad()
def sinkhorn(scores, rounds=3):
    q = torch.exp(scores / 0.05).t()
    q /= q.sum()
    for _ in range(rounds):
        q /= q.sum(dim=1, keepdim=True)
        q /= q.sum(dim=0, keepdim=True)
    return q.t()


for epoch in range(epochs):
    if queue_length > 0 and epoch >= epoch_queue_starts and queue is None:
        queue = torch.zeros(2, queue_length, feat_dim).cuda()
    for _ in range(iterations):
        views = [torch.randn(batch, 2048, device="cuda") for _ in range(2)]
        embedded = [F.normalize(encoder(view)) for view in views]
        scores = [prototypes(e) for e in embedded]
        loss = 0
        for i in range(2):
            out = scores[i].detach()
            if queue is not None:
                out = torch.cat([prototypes(queue[i]).detach(), out])
                queue[i, batch:] = queue[i, :-batch].clone()
                queue[i, :batch] = embedded[i].detach()
            target = sinkhorn(out)[-batch:]
            loss = loss - (target * F.log_softmax(scores[1 - i] / 0.1, dim=1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
