"""`vramcast doctor --measure-context`, and the site file in the output of `doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import context_measurement
from vramcast.cli.verbs import doctor
from vramcast.core.units import MIB
from vramcast.hardware import cards
from vramcast.hardware.context import ContextSource, context_bytes

Call = Callable[..., tuple[int, str, str]]
CARD = {"uuid": "abc", "gpu": "NVIDIA GeForce RTX 4090", "torch": "2.11.0+cu130"}
SIZES = {
    "bare_bytes": 385 * MIB, "kernels_bytes": 470 * MIB + MIB // 4, "failed": {}, "driver": "580.0.1", "how": "nvml process",
}  # fmt: skip


class FakeMachine:
    """A machine with one card; `answers` replies to the two questions."""

    answers: tuple[dict[str, Any], dict[str, Any]] = (CARD, SIZES)

    def __init__(self) -> None:
        self.measured_by = "test"

    def run(self, module: str, argument: Any, timeout_s: float) -> Any:
        assert module.endswith("context_probe")
        assert argument in (None, "abc")
        return self.answers[argument is not None]

    def close(self) -> None:
        pass


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> type[FakeMachine]:
    class Mine(FakeMachine):
        pass

    monkeypatch.setattr(context_measurement, "RealGpu", Mine)
    monkeypatch.delenv(cards.SITE_VARIABLE, raising=False)
    return Mine


def test_uses_measured_context_from_site_file(
    call: Call, machine: type[FakeMachine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.toml"
    code, out, _ = call("doctor", "--measure-context", "--site", str(path))
    assert code == 0
    assert "before any kernel: 385.0 MiB" in out
    assert "after kernels of torch, cublas and cudnn: 470.25 MiB" in out
    assert f"written to {path}; to use it, set VRAMCAST_SITE to this file" in out
    monkeypatch.setenv(cards.SITE_VARIABLE, str(path))
    found = context_bytes("rtx4090", 13, ("cublas", "cudnn"), torch="2.11.0")
    assert (found.bytes, found.source) == (470 * MIB + MIB // 4, ContextSource.SITE)
    code, out, _ = call("doctor", "--measure-context", "--json")  # again, into the file in use
    assert json.loads(out) == {
        "schema": 1,
        "file": str(path),
        "contexts": [
            {"gpu": CARD["gpu"], "torch": CARD["torch"], "driver": "580.0.1", "libraries": libraries, "size_mib": mib}
            for libraries, mib in (([], 385.0), (["cublas", "cudnn"], 470.25))
        ],
    }
    assert len(cards.read(path).contexts) == 2
    assert doctor._site() == f"{path}, contexts: 2"


def test_prints_context_without_site_file(call: Call, machine: type[FakeMachine]) -> None:
    code, out, _ = call("doctor", "--measure-context")
    assert code == 0
    assert "Nothing was written: name a file with --site or VRAMCAST_SITE" in out
    toml = out[out.index("[[context]]") :]
    assert len(cards.of_site(toml.encode(), Path("x")).contexts) == 2


def test_omits_failed_library(machine: type[FakeMachine]) -> None:
    failed = {"matmul_bf16": "no bfloat16", "convolution": "no cuDNN"}
    machine.answers = (CARD, {**SIZES, "failed": failed})
    assert [sorted(one.libraries) for one in context_measurement.measured(machine())] == [[], ["cublas"]]


@pytest.mark.parametrize("step", [0, 1])
def test_exits_3_without_gpu(call: Call, machine: type[FakeMachine], step: int, tmp_path: Path) -> None:
    absent = {"absent": "torch 2.11.0 finds no GPU on this machine"}
    machine.answers = (absent, SIZES) if step == 0 else (CARD, absent)
    path = tmp_path / "site.toml"
    code, out, err = call("doctor", "--measure-context", "--site", str(path))
    assert (code, out) == (3, "")
    assert "No context was measured: torch 2.11.0 finds no GPU" in err
    assert not path.exists()


def test_leaves_wrong_site_file_unchanged(call: Call, machine: type[FakeMachine], tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("what = 1\n")
    code, _, err = call("doctor", "--measure-context", "--site", str(path))
    assert code == 2
    assert "'what'" in err
    assert path.read_text() == "what = 1\n"
    assert call("doctor", "--measure-context", "--site", str(tmp_path / "no" / "site.toml"))[0] == 3


def test_rejects_site_without_measuring(call: Call) -> None:
    code, _, err = call("doctor", "--site", "site.toml")
    assert code == 2
    assert "--site is an option of --measure-context" in err


def test_doctor_reports_wrong_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.toml"
    monkeypatch.setenv(cards.SITE_VARIABLE, str(path))
    assert "cannot be read" in doctor._try(doctor._site)
    monkeypatch.delenv(cards.SITE_VARIABLE)
    assert doctor._site() is None


@pytest.mark.integration
def test_estimates_for_card_file(call: Call, auto_tracer: str, tmp_path: Path) -> None:
    path = tmp_path / "my-card.toml"
    path.write_text(
        '[[card]]\nkey = "a40"\nname = "NVIDIA A40"\ntotal_bytes = 47_676_129_280\ncompute_capability = "8.6"\nsm_count = 84\n'
        "clock_khz = 1_740_000\nmemory_clock_khz = 7_251_000\nmemory_bus_bits = 384\nl2_bytes = 6_291_456\n"
    )
    factory = tmp_path / "net.py"
    factory.write_text("import torch\ndef net():\n    return torch.nn.Linear(64, 64)\n")
    code, out, err = call(
        "estimate", f"{factory}:net", "--batch", "8x64", "--labels", "8:int64<64", "--device", str(path), "--json",
    )  # fmt: skip
    assert code == 0, err
    reply = json.loads(out)
    assert reply["device"] == "a40"
    assert 260 * MIB < reply["context_bytes"] < 400 * MIB
