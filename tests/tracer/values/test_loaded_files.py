"""Training commands load the real contents of a file onto the card: a resumed run continues where it stopped."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from vramcast.estimates.estimator import estimate_command
from vramcast.estimates.result import Estimate

pytestmark = [pytest.mark.integration, pytest.mark.torch]

# Ways to load a file, with `file` and `torch`.
LOADS = (
    'torch.load(file, map_location="cuda")',
    'torch.load(file, map_location=torch.device("cuda", 0))',
    'torch.load(file, map_location="cuda", weights_only=False)',
    "torch.load(file, map_location=lambda storage, location: storage.cuda())",
    'torch.load(file, map_location={"cpu": "cuda:0"})',
    'torch.load(file, map_location="cuda", mmap=True)',
    'copy.deepcopy(torch.load(file, map_location="cuda"))',
)
VALUES = """
import copy, json, sys, torch
file = sys.argv[1]
torch.empty(1, device="cuda")
loaded = {load}
json.dump({{name: tensor.tolist() for name, tensor in loaded.items()}}, open(sys.argv[2], "w"))
"""
RESUMED = """
import sys, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters(), {option})
held = torch.load(sys.argv[1], map_location="cuda")
model.load_state_dict(held["model"])
optimizer.load_state_dict(held["optimizer"])
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
assert [float(state["step"]) for state in optimizer.state.values()] == [5, 5], optimizer.state
"""


def run(folder: Path, script: str, *words: str) -> Estimate:
    path = folder / "script.py"
    path.write_text(script)
    return estimate_command(shlex.join([str(path), *words]), device="a100-40gb")


@pytest.mark.parametrize("load", LOADS)
def test_loaded_tensors_keep_their_values(needs_null_gpu: None, load: str, tmp_path: Path) -> None:
    import torch

    shared = torch.arange(6.0)
    held = {
        "a": torch.tensor(5.0), "b": torch.tensor(6), "c": torch.full((2, 3), 7.0), "row": shared[:3], "rest": shared[3:],
        "empty": torch.zeros(0), "half": torch.tensor([0.5], dtype=torch.bfloat16),
    }  # fmt: skip
    torch.save(held, tmp_path / "held.pt")
    run(tmp_path, VALUES.format(load=load), str(tmp_path / "held.pt"), str(tmp_path / "found.json"))
    assert json.loads((tmp_path / "found.json").read_text()) == {name: tensor.tolist() for name, tensor in held.items()}


@pytest.mark.parametrize("option", ["", "fused=True", "capturable=True", "foreach=False"])
def test_resumes_optimizer(needs_null_gpu: None, option: str, tmp_path: Path) -> None:
    import torch

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "last.pt")
    found = run(tmp_path, RESUMED.format(option=option), str(tmp_path / "last.pt"))
    assert found.course.ended == ""
