"""nvidia-smi and NVML on the null GPU, as used by a job's own monitoring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.hardware.cards import device
from vramcast.tracer.format.ledger import CallHandling
from vramcast.tracer.nullgpu.child import smi
from vramcast.tracer.protocol.job_result import Result

MIB = 1 << 20
CARD = device("rtx4090")
Probe = Callable[..., tuple[dict[str, Any], Result]]


@pytest.fixture
def card(tmp_path: Path) -> smi.SmiCard:
    account = tmp_path / "account"
    account.write_bytes((1559 * MIB - 5).to_bytes(8, "little"))
    return smi.SmiCard({"NULLGPU_DEVICE": f"{CARD.to_config()};device_count=2", "NULLGPU_ACCOUNT": str(account)})


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("--query-gpu=memory.used --format=csv,nounits,noheader", ["1559", "0"]),
        ("--query-gpu=index,gpu_name,memory.total --format=csv,noheader -i 1", ["1, NVIDIA GeForce RTX 4090, 24210 MiB"]),
        ("--query-gpu memory.free,fan.speed --format csv --id=0", ["memory.free [MiB], fan.speed", "22651 MiB, [N/A]"]),
        ("--query-compute-apps=pid,used_memory --format=csv,noheader", ["0, 1559 MiB"]),
        ("-L -i 0", ["GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-11111111-1111-1111-1111-111111111100)"]),
        ("topo -m", ["\tGPU0\tGPU1", "GPU0\t X \tSYS", "GPU1\tSYS\t X "]),
    ],
)
def test_nvidia_smi_answers_common_queries(card: smi.SmiCard, words: str, lines: list[str]) -> None:
    assert smi.said(words.split(), card) == (lines, 0.0)


def test_nvidia_smi_summary_shows_memory(card: smi.SmiCard) -> None:
    lines, again_s = smi.said(["-l", "2"], card)
    assert again_s == 2.0
    assert any("1559MiB / 24210MiB" in line for line in lines)
    assert "Used" in "\n".join(smi.said(["-q"], card)[0])


@pytest.mark.parametrize("words", ["--lock-gpu-clocks 100", "-i 7 -L"])
def test_nvidia_smi_rejects_unknown_options(card: smi.SmiCard, words: str) -> None:
    with pytest.raises(ValueError, match=r"Invalid option|No devices"):
        smi.said(words.split(), card)


def test_job_sees_own_memory_in_nvml_and_nvidia_smi(probe: Probe) -> None:
    said, result = probe(
        """
        import ctypes, subprocess
        held = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        card, memory, name = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)(), ctypes.create_string_buffer(96)
        statuses = [nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByPciBusId_v2(b"0000:01:00.0", ctypes.byref(card))]
        statuses += [nvml.nvmlDeviceGetMemoryInfo(card, memory), nvml.nvmlDeviceGetName(card, name, 96)]
        refused = nvml.nvmlDeviceGetNvLinkState(card, 0, memory)
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        smi = int(subprocess.run(query, capture_output=True, text=True).stdout)
        free, total = torch.cuda.mem_get_info()
        note(statuses=statuses, refused=refused, used=memory[2], smi=smi, total=memory[0], free=free, card=total)
        note(name=name.value.decode())
        """,
        device="rtx4090",
    )
    assert said["statuses"] == [0, 0, 0, 0]
    assert said["refused"] == 3  # spec: NVML_ERROR_NOT_SUPPORTED
    assert said["name"] == CARD.name
    assert said["used"] == said["card"] - said["free"] >= 300 * MIB
    assert (said["total"], said["smi"]) == (said["card"], said["used"] // MIB)
    assert [entry.name for entry in result.ledger if entry.kind is CallHandling.REFUSED] == []


def test_counts_symmetric_memory_outside_allocator(probe: Probe) -> None:
    _, result = probe("import torch.distributed._symmetric_memory as m; m.empty(10, device='cuda')")
    assert [entry.size_bytes for entry in result.ledger if entry.kind is CallHandling.OUTSIDE] == [2 * MIB]
