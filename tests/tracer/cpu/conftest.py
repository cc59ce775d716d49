"""Models for the CPU tracer, and one run of each job."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.brief import every_field
from vramcast.jobs.job import Job
from vramcast.tracer.portable_tracers import CPU
from vramcast.tracer.protocol.job_result import Result


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of models whose requests would differ between CPU and CUDA without special treatment."""
    path = tmp_path_factory.mktemp("cpu_models") / "models.py"
    path.write_text(
        textwrap.dedent(
            """
            import os, signal, time
            import torch
            from torch import nn

            def wide():
                return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))

            def dropped():
                return nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Dropout(0.1), nn.Dropout(0.0), nn.Linear(4096, 64))

            class Shared(nn.Module):  # one layer used three times: gradients of weights and of a residual are added up
                def __init__(self):
                    super().__init__()
                    self.norm, self.middle, self.last = nn.LayerNorm(512), nn.Linear(512, 512), nn.Linear(512, 10)
                def forward(self, x):
                    for _ in range(3):
                        x = x + torch.relu(self.middle(self.norm(x)))
                    return self.last(x)

            def convolutions():
                return nn.Sequential(
                    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.Flatten(),
                    nn.Linear(32 * 13 * 13, 10),
                )

            class Residual(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.stem, self.norm = nn.Conv2d(3, 16, 7, 2, padding=3, bias=False), nn.BatchNorm2d(16)
                    self.middle = nn.Conv2d(16, 16, 3, padding=1, groups=2, bias=False)
                    self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
                    self.head = nn.Linear(16, 10)
                def forward(self, x):
                    x = torch.relu(self.norm(self.stem(x)))
                    x = x + self.depthwise(torch.relu(self.middle(x)))
                    return self.head(nn.functional.max_pool2d(x, 16).flatten(1))

            class Attention(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.projection, self.last = nn.Linear(128, 384), nn.Linear(128, 128)
                def forward(self, x):
                    q, k, v = (t.unflatten(-1, (2, 64)).transpose(1, 2).contiguous() for t in self.projection(x).chunk(3, -1))
                    y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
                    return self.last(y.transpose(1, 2).flatten(2))

            class Masked(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.projection, self.norm, self.last = nn.Linear(128, 384), nn.RMSNorm(128), nn.Linear(128, 128)
                def forward(self, x):
                    q, k, v = (t.unflatten(-1, (2, 64)).transpose(1, 2) for t in self.projection(self.norm(x)).chunk(3, -1))
                    mask = (x[:, :, 0] >= 0)[:, None, None, :].expand(-1, 2, x.shape[1], -1)
                    y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                    y = y + nn.functional.pad(  # an odd width: no fused kernel takes it
                        nn.functional.scaled_dot_product_attention(q[..., :63], k[..., :63], v[..., :63], mask, 0.1), (0, 1)
                    )
                    return self.last(y.transpose(1, 2).flatten(2))

            class Losses(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Conv2d(3, 4, 1)
                def forward(self, x):
                    F, y = nn.functional, self.layer(x)
                    z = torch.zeros_like(y)
                    scores = F.log_softmax(y, 1)
                    losses = (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss, F.binary_cross_entropy_with_logits)
                    total = sum(loss(y, z) for loss in losses) + F.kl_div(scores, F.softmax(z, 1))
                    total = total + F.nll_loss(scores, z[:, 0].long()) + F.logsigmoid(y).mean()
                    return (total + y.logsumexp(1).sum()).reshape(1)

            class Norms(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer, self.row = nn.Conv2d(3, 8, 1), nn.BatchNorm1d(8)
                    self.images = nn.Sequential(nn.GroupNorm(2, 8), nn.BatchNorm2d(8), nn.InstanceNorm2d(8, affine=True))
                    self.last = nn.LayerNorm(8)
                def forward(self, x):
                    y = self.row(self.last(self.images(self.layer(x)).permute(0, 2, 3, 1)).flatten(0, 2))
                    return torch.softmax(y, -1).cumsum(0).norm(dim=-1)

            class Moved(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer, self.slope = nn.Conv2d(3, 8, 3), nn.PReLU()
                def forward(self, x):
                    F, y = nn.functional, self.slope(self.layer(x))
                    y = F.interpolate(F.avg_pool2d(F.max_pool2d(y, 2), 2), scale_factor=2, mode="bilinear")
                    y = F.fold(F.unfold(y, 2), y.shape[-2:], 2)
                    y = F.adaptive_avg_pool2d(F.pad(y, (1, 1, 1, 1), mode="reflect"), 4)
                    chosen = torch.roll(y, (1, 1), (2, 3))[:, :, torch.arange(2, device=y.device)]
                    return chosen + torch.einsum("bchw,bdhw->bchw", y, y)[:, :, :2] + y.amax(1, keepdim=True)[:, :, :2]

            class Tied(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.tokens, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
                    self.head.weight = self.tokens.weight
                def forward(self, x):
                    return self.head(self.tokens(x))

            class Choosing(nn.Module):  # what is asked for depends on values
                def __init__(self):
                    super().__init__()
                    self.linear = nn.Linear(16, 4)
                def forward(self, x):
                    rows = x[x[:, 0] >= 0].nonzero()
                    repeats = 2 if x.sum().item() > 0 else 1
                    assert len(rows) and not torch.isnan(x).any()
                    for _ in range(repeats):
                        y = self.linear(x)
                    return y

            class Raises(nn.Linear):
                def __init__(self):
                    super().__init__(16, 4)
                def forward(self, x):
                    raise RuntimeError("the model is broken")

            class Dies(Raises):
                def forward(self, x):
                    print("last words", flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)

            class Sleeps(Raises):
                def forward(self, x):
                    time.sleep(60)
            """
        )
    )
    return path


@pytest.fixture(scope="session")
def on_cpu(make_job: Callable[..., Job], models: Path) -> Callable[..., Result]:
    """Return a function that traces a job on the CPU, given its model's name and keywords; repeated calls are cached."""
    results: dict[str, Result] = {}

    def run(name: str, *, timeout_s: float = 300.0, **options: Any) -> Result:
        options.setdefault("search_path", tuple(sys.path))
        job = make_job(target=f"{models}:{name}", **options)
        key = every_field(job)
        if key not in results:
            results[key] = CPU.trace(job, timeout_s=timeout_s)
        return results[key]

    return run
