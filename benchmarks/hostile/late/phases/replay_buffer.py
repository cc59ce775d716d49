"""DQN with its replay memory on the card: the memory grows with each frame until its capacity."""

import random
from collections import deque, namedtuple

import torch
import torch.nn.functional as F
from torch import nn

Transition = namedtuple("Transition", "state action next_state reward")


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, size):
        return Transition(*zip(*random.sample(self.memory, size), strict=True))

    def __len__(self):
        return len(self.memory)


def q_network():
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 81, 6)
    ).cuda()


policy, target = q_network(), q_network()
optimizer = torch.optim.RMSprop(policy.parameters(), lr=2.5e-4)
memory = ReplayMemory(100_000)
state = torch.rand(1, 4, 84, 84, device="cuda")
frame = 0
while True:
    action = policy(state).argmax(1) if random.random() > 0.1 else torch.randint(6, (1,), device="cuda")
    next_state = torch.rand(1, 4, 84, 84, device="cuda")
    memory.push(state, action, next_state, torch.zeros(1, device="cuda"))
    state = next_state
    if len(memory) >= 32:
        batch = memory.sample(32)
        q = policy(torch.cat(batch.state)).gather(1, torch.cat(batch.action)[:, None])[:, 0]
        with torch.no_grad():
            wanted = torch.cat(batch.reward) + 0.99 * target(torch.cat(batch.next_state)).max(1).values
        optimizer.zero_grad()
        F.smooth_l1_loss(q, wanted).backward()
        optimizer.step()
    frame += 1
    if frame % 10_000 == 0:
        target.load_state_dict(policy.state_dict())
    if frame >= 2_000_000:
        break
