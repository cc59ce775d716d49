"""A small trainer with callbacks; one of them unfreezes the backbone and gives it to the optimizer at a step."""

import torch
import torch.nn.functional as F
from torch import nn


class Callback:
    def on_train_begin(self, trainer): ...

    def on_step_end(self, trainer): ...


class Logger(Callback):
    def on_step_end(self, trainer):
        if trainer.state["step"] % 50 == 0:
            print(trainer.state["step"], trainer.state["loss"].item())


class UnfreezeBackbone(Callback):
    def __init__(self, at_step, lr):
        self.at_step, self.lr = at_step, lr

    def on_train_begin(self, trainer):
        trainer.backbone.requires_grad_(False)

    def on_step_end(self, trainer):
        if trainer.state["step"] == self.at_step:
            trainer.backbone.requires_grad_(True)
            trainer.optimizer.add_param_group({"params": list(trainer.backbone.parameters()), "lr": self.lr})


class Trainer:
    def __init__(self, callbacks):
        self.backbone = nn.Sequential(*(m for _ in range(32) for m in (nn.Linear(3072, 3072), nn.GELU()))).cuda()
        self.head = nn.Linear(3072, 1000).cuda()
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-3)
        self.callbacks = callbacks
        self.state = {"step": 0, "loss": None}

    def call(self, name):
        for callback in self.callbacks:
            getattr(callback, name)(self)

    def fit(self, steps):
        self.call("on_train_begin")
        for _ in range(steps):
            logits = self.head(self.backbone(torch.randn(6144, 3072, device="cuda")))
            self.state["loss"] = F.cross_entropy(logits, torch.randint(1000, (6144,), device="cuda"))
            self.optimizer.zero_grad()
            self.state["loss"].backward()
            self.optimizer.step()
            self.state["step"] += 1
            self.call("on_step_end")


Trainer([Logger(), UnfreezeBackbone(at_step=2_500, lr=1e-5)]).fit(10_000)
