"""`vramcast run`: the program after the measured steps, and the estimate of a command that ends early."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]

EPOCHS = """
    import os, sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def loader(batch):
        return DataLoader(TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,))), batch_size=batch)

    net = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    training, testing = loader(16), loader(2048)
    for epoch in range(1000):
        net.train()
        for x, y in training:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda()).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            correct = sum(int((net(x.cuda()).argmax(1) == y.cuda()).sum()) for x, y in testing)
        torch.save(net.state_dict(), sys.argv[1])
        torch.save(net.state_dict(), sys.argv[1] + ".new")
        os.makedirs(sys.argv[1] + ".made/step", exist_ok=True)
        torch.save(net.state_dict(), sys.argv[1] + ".made/step/last.pt")
        assert torch.load(sys.argv[1] + ".new")
"""
RAISES = """
    import torch
    net = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(10):
        net(torch.randn(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
        if step == 1:
            raise ValueError("a metric of zeros")
"""
BY_HAND = """
    import torch
    net = torch.nn.Linear(1024, 1024).cuda()
    for step in range(7):
        net(torch.randn(8, 1024, device="cuda")).sum().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
"""
STEPS = """
    import torch
    net = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(net.parameters())
    for step in range(7):
        net(torch.randn(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
"""
# Its time is up once it has allocated, whatever the machine's speed: it lets the timers ring that would.
SLOW = """
    import threading, time, torch
    kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.function(*timer.args)
    while True:
        try:
            time.sleep(600)
        except Exception:
            pass
"""


@pytest.fixture
def run(call: Call, tracer: object, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any], str]]:
    def said(source: str, *words: str, options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any], str]:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(source))
        code, out, err = call("run", "--device", "t4", "--json", *options, "--", str(path), *words)
        return code, json.loads(out), err

    return said


@pytest.mark.integration
def test_includes_first_evaluation_and_checkpoint(run: Callable[..., tuple[int, dict[str, Any], str]], tmp_path: Path) -> None:
    mine = tmp_path / "best.pt"
    mine.write_text("weights from a week of training")
    code, said, _ = run(EPOCHS, str(mine))
    assert code == 0
    phases = {phase["name"]: phase for phase in said["phases"]}
    assert {name: phase["reached"] for name, phase in phases.items()} == dict.fromkeys(phases, True)
    seen = said["seen"]
    assert (seen["of_steps"], seen["to_end"]) == (256_000, True)
    assert seen["steps"] == phases["training"]["steps"] < 200
    assert 3 <= seen["evaluations"] < 20
    assert phases["evaluation"]["peaks"]["allocated"] > phases["training"]["peaks"]["allocated"]
    assert said["peaks"]["allocated"] == phases["evaluation"]["peaks"]["allocated"]
    assert (said["not_reached"], said["ended"], said["upper_bound"]["covers"]) == ([], None, "all")
    assert mine.read_text() == "weights from a week of training"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "train.py"]


@pytest.mark.integration
def test_bound_excludes_unreached_phases(run: Callable[..., tuple[int, dict[str, Any], str]], tmp_path: Path) -> None:
    code, said, _ = run(EPOCHS, str(tmp_path / "x"), options=("--until", "steps"))
    assert (code, said["not_reached"], said["upper_bound"]["covers"]) == (4, ["what follows the last step"], "what was reached")
    assert any("what follows the last step" in warning for warning in said["warnings"])


@pytest.mark.integration
def test_failed_script_gives_peaks_so_far(run: Callable[..., tuple[int, dict[str, Any], str]]) -> None:
    code, said, _ = run(RAISES)
    assert (code, said["steps"], said["upper_bound"]["covers"]) == (4, 2, "what was reached")
    assert "ValueError: a metric of zeros" in said["ended"]
    assert said["peaks"]["allocated"] >= 4 * 4 * 1024 * 1024  # weight, gradient, and Adam's state of the first step


@pytest.mark.integration
def test_counts_manual_steps(run: Callable[..., tuple[int, dict[str, Any], str]]) -> None:
    code, said, _ = run(BY_HAND, options=("--until", "steps"))
    assert (code, said["steps"], said["ended"]) == (4, 3, None)


@pytest.mark.integration
def test_time_limit_gives_peaks_so_far(run: Callable[..., tuple[int, dict[str, Any], str]]) -> None:
    code, said, _ = run(SLOW, options=("--timeout", "600"))
    assert (code, said["steps"]) == (4, 0)
    assert "raise the limit" in said["ended"]
    assert said["peaks"]["allocated"] == 64 << 20


@pytest.mark.integration
def test_early_end_never_fits(call: Call, tracer: object, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(RAISES))
    code, out, _ = call("check", "--on", "t4", "--", str(path))
    assert (code, out.startswith("uncertain: the command ended early")) == (4, True)
    for text in (STEPS, BY_HAND):
        path.write_text(textwrap.dedent(text))
        for options, expected in (((), 0), (("--strict",), 0), (("--until", "steps"), 4)):
            code, _, _ = call("check", "--on", "t4", *options, "--", str(path))
            assert code == expected


SNAPSHOT = """
    import torch
    kept = [torch.empty(1000, device="cuda") for _ in range(12_000)]
    del kept[:]
    net = torch.nn.Linear(8, 8).cuda()
    for _ in range(2):
        net(torch.zeros(1, 8, device="cuda"))  # the history is taken out of torch's hands here
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    assert sum(entry["action"] == "alloc" for entry in entries) > 12_000, len(entries)
    assert {"action", "addr", "size", "stream", "time_us", "frames"} <= set(entries[0])
"""


@pytest.mark.integration
def test_script_sees_its_full_history(run: Callable[..., tuple[int, dict[str, Any], str]]) -> None:
    code, said, _ = run(SNAPSHOT)
    assert (code, said["ended"]) == (0, None)


RANK = """
    import os, torch
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(3):
        net(torch.randn(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
"""


@pytest.mark.integration
def test_reports_peaks_of_each_traced_rank(
    run: Callable[..., tuple[int, dict[str, Any], str]],
) -> None:
    code, said, _ = run(RANK, options=("--world-size", "16", "--nproc-per-node", "8", "--ranks", "0,9"))
    assert (code, said["world_size"]) == (0, 16)
    assert [(rank["rank"], rank["peaks"], rank["fits"]) for rank in said["ranks"]] == [
        (rank, {name: said["peaks"][name] for name in ("allocated", "reserved")}, True) for rank in (0, 9)
    ]


MPS = """
    import os
    os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=1G"
    import torch
    net = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(net.parameters())
    for step in range(3):
        net(torch.ones(400_000, 1024, device="cuda")).sum().backward()
        optimizer.step()
"""


@pytest.mark.integration
def test_obeys_limit_of_mps(call: Call, tracer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(MPS))
    code, out, _ = call("check", "--on", "t4", "--", str(path))
    assert (code, "more than the 1.00 GiB of Tesla T4" in out) == (1, True)
    path.write_text(textwrap.dedent(MPS.replace("os.environ[", "os.environ.copy()[")))
    for limit, expected in (("0=6G", 0), ("0=1G", 1)):
        monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit)
        assert call("check", "--on", "t4", "--", str(path))[0] == expected


NESTED = """
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(5):
        texts = [torch.randn(length, 64) for length in (32768, 65536)]
        batch = torch.nested.nested_tensor(texts, layout=torch.jagged, device="cuda")
        optimizer.zero_grad()
        net(batch).values().square().mean().backward()
        optimizer.step()
"""


@pytest.mark.integration
def test_follows_jagged_tensors(run: Callable[..., tuple[int, dict[str, Any], str]]) -> None:
    """Their number of rows is no number but a symbol, which cannot be compared with one."""
    code, said, _ = run(NESTED, options=("--until", "steps"))
    assert (code, said["steps"], said["ended"]) == (4, 3, None)
    rows = 32768 + 65536
    assert said["peaks"]["allocated"] > 4 * rows * (64 + 2 * 256 + 64)  # the input, and what three layers make of it
