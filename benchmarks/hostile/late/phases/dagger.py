"""DAgger (Ross et al., 2011): each iteration adds the states of a rollout to one data set on the card."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=60)
parser.add_argument("--rollout", type=int, default=50_000)
parser.add_argument("--batch", type=int, default=4096)
parser.add_argument("--updates", type=int, default=500)
args = parser.parse_args()

policy = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 32)).cuda()
expert = nn.Sequential(nn.Linear(512, 256), nn.Tanh(), nn.Linear(256, 32)).cuda().requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
observations = torch.empty(0, 512, device="cuda")
actions = torch.empty(0, 32, device="cuda")


@torch.no_grad()
def rollout(length):
    state = torch.randn(length, 512, device="cuda")
    return state, policy(state), expert(state)


for iteration in range(args.iterations):
    visited, _, labels = rollout(args.rollout)
    observations = torch.cat([observations, visited])
    actions = torch.cat([actions, labels])
    for _ in range(args.updates):
        picked = torch.randint(len(observations), (args.batch,), device="cuda")
        loss = (policy(observations[picked]) - actions[picked]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(iteration, len(observations))
