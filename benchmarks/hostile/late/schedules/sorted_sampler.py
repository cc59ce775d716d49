"""Speech recognition in the manner of Deep Speech 2 (SortaGrad): batches of like lengths, the longest ones last."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Utterances(Dataset):
    def __init__(self, count=20_000, seed=0):
        draw = random.Random(seed)
        self.frames = [draw.randint(100, 400) for _ in range(count - 160)] + [draw.randint(9_000, 10_000) for _ in range(160)]

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        return torch.zeros(self.frames[index], 80), torch.ones(20, dtype=torch.long)


class SortaGrad(Sampler):
    def __init__(self, dataset, batch_size):
        order = sorted(range(len(dataset)), key=lambda i: dataset.frames[i])
        self.batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        yield from self.batches


def collate(items):
    frames, labels = zip(*items, strict=True)
    return pad_sequence(frames, batch_first=True), torch.tensor([len(f) for f in frames]), torch.stack(labels)


dataset = Utterances()
loader = DataLoader(dataset, batch_sampler=SortaGrad(dataset, 32), collate_fn=collate)
model = nn.Sequential(nn.Linear(80, 1024), nn.ReLU(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 29)).cuda()
ctc = nn.CTCLoss(zero_infinity=True)
optimizer = torch.optim.SGD(model.parameters(), lr=3e-4, momentum=0.99, nesterov=True)
for frames, lengths, labels in loader:
    log_probs = model(frames.cuda()).log_softmax(-1).transpose(0, 1)
    loss = ctc(log_probs, labels.cuda(), lengths.cuda(), torch.full((len(labels),), 20, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
