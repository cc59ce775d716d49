"""A job that catches an exception of its forward pass and continues looks like one that never raised."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from vramcast.estimates.estimator import estimate_command
from vramcast.estimates.result import Estimate

pytestmark = [pytest.mark.integration, pytest.mark.torch]

TRAINING = """
    import torch
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
        def forward(self, x, raises=None):
            hidden = self.first(x)
            if raises is not None:
                raise raises
            return self.second(hidden)
    net = Net().cuda()
    optimizer = torch.optim.Adam(net.parameters())
    {attempt}
    for epoch in range(50):
        net.train()
        for step in range(3):
            optimizer.zero_grad()
            net(torch.randn(64, 256, device="cuda")).sum().backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            for batch in range(2):
                net(torch.randn(64, 256, device="cuda"))
"""
NOTHING = "pass"
ATTEMPTS = {
    "in the model": "net(torch.zeros(64, 256, device='cuda'), ValueError())",
    "in a layer": "net(torch.zeros(64, 255, device='cuda'))",
    "out of memory": "net(torch.zeros(64, 256, device='cuda'), torch.OutOfMemoryError())",
}
SEARCH = """
    import torch
    batch = 1 << 22
    while True:
        net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)).cuda()
        optimizer = torch.optim.Adam(net.parameters())
        try:
            for step in range(4):
                optimizer.zero_grad()
                net(torch.randn(batch, 1024, device="cuda")).sum().backward()
                optimizer.step()
            break
        except torch.OutOfMemoryError:
            batch //= 2
            net = optimizer = None
            torch.cuda.empty_cache()
"""


def estimate(folder: Path, script: str) -> Estimate:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(script))
    return estimate_command([str(path)], device="rtx4090", until="evaluation")


def phases(found: Estimate) -> dict[str, int]:
    return {phase.name: phase.steps for phase in found.course.phases}


@pytest.fixture(scope="module")
def undisturbed(needs_null_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> Estimate:
    return estimate(tmp_path_factory.mktemp("undisturbed"), TRAINING.format(attempt=NOTHING))


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_caught_error_does_not_confuse_phases(undisturbed: Estimate, attempt: str, tmp_path: Path) -> None:
    caught = f"try: {attempt}\n    except Exception: pass"
    found = estimate(tmp_path, TRAINING.format(attempt=caught))
    assert phases(found) == phases(undisturbed)
    assert found.course.ended == ""
    assert found.upper_bound == undisturbed.upper_bound
    assert found.peak_at["module"] == undisturbed.peak_at["module"]


def test_recognizes_batch_size_search(needs_null_gpu: None, tmp_path: Path) -> None:
    found = estimate(tmp_path, SEARCH)
    assert (found.course.ended, found.steps) == ("", 4)
    assert any("caught" in warning and "size of the card" in warning for warning in found.warnings)
    assert found.breakdown["parameters"] == pytest.approx(4 * 2 * (1024 * 1024 + 1024), rel=0.01)
