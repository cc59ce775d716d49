"""A physics-informed network (Raissi et al., 2019): Adam for many steps, then L-BFGS with a closure."""

import torch
from torch import nn

torch.manual_seed(1234)


class PINN:
    def __init__(self, width=4096, depth=7):
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.u = nn.Sequential(*layers, nn.Linear(width, 1)).cuda()
        self.points = torch.rand(4096, 2, device="cuda", requires_grad=True)
        self.adam = torch.optim.Adam(self.u.parameters(), lr=1e-3)
        self.lbfgs = torch.optim.LBFGS(self.u.parameters(), max_iter=500, history_size=50, line_search_fn=None)
        self.iteration = 0

    def loss(self):
        u = self.u(self.points)
        du = torch.autograd.grad(u.sum(), self.points, create_graph=True)[0]
        return (du[:, 1] + u[:, 0] * du[:, 0]).square().mean() + u[:64].square().mean()

    def closure(self):
        self.lbfgs.zero_grad()
        loss = self.loss()
        loss.backward()
        self.iteration += 1
        return loss

    def train(self, adam_steps):
        for _ in range(adam_steps):
            self.adam.zero_grad()
            self.loss().backward()
            self.adam.step()
        self.lbfgs.step(self.closure)


PINN().train(adam_steps=20_000)
