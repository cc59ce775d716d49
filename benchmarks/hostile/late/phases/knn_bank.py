"""Self-supervised training with a kNN monitor (SimSiam, DINO): a bank of all training features every ten epochs."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm


class Unlabelled(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitems__(self, indices):
        return torch.zeros(len(indices), 256)

    def __getitem__(self, index):
        return torch.zeros(256)


def same(batch):
    return batch


def knn_monitor(net, memory_loader, test_loader, k=200):
    net.eval()
    feature_bank, hits = [], 0
    with torch.no_grad():
        for data in tqdm(memory_loader, desc="Feature extracting", leave=False):
            feature_bank.append(F.normalize(net(data.cuda()), dim=1))
        feature_bank = torch.cat(feature_bank, dim=0).t().contiguous()
        for data in test_loader:
            feature = F.normalize(net(data.cuda()), dim=1)
            _, index = (feature @ feature_bank).topk(k=k, dim=-1)
            hits += (index[:, 0] % 1000 == 0).sum().item()
    return hits / len(test_loader.dataset)


net = nn.Sequential(nn.Linear(256, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
predictor = nn.Sequential(nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 2048)).cuda()
optimizer = torch.optim.SGD([*net.parameters(), *predictor.parameters()], lr=0.05, momentum=0.9)
train_loader = DataLoader(Unlabelled(51_200), 512, shuffle=True, collate_fn=same)
memory_loader = DataLoader(Unlabelled(800_000), 2_000, collate_fn=same)
test_loader = DataLoader(Unlabelled(10_000), 500, collate_fn=same)
for epoch in range(1, 101):
    net.train()
    for x in train_loader:
        x = x.cuda()
        z1, z2 = net(x), net(x + 0.1 * torch.randn_like(x))
        loss = -F.cosine_similarity(predictor(z1), z2.detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 10 == 0:
        print(epoch, knn_monitor(net, memory_loader, test_loader))
