"""`vramcast explain`: files, standard input, commands, JSON and exit codes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.hostile.explanations import Program

Call = Callable[..., tuple[int, str, str]]
TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity; 9.15 GiB already allocated; 1.20 GiB "
    "free; 14.00 GiB reserved in total by PyTorch)\n"
)


def test_file_and_standard_input_have_one_answer(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slurm-1.out").write_text(TEXT)
    code, out, _ = call("explain", str(tmp_path / "slurm-1.out"))
    assert (code, out.splitlines()[0].startswith("out of memory: fragmentation: ")) == (0, True)
    assert [line.split()[0] for line in out.splitlines()] == ["out", "asked", "holds", "try", "or", "unknown"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert call("explain", "-")[1] == out


@pytest.mark.parametrize("data", [TEXT, "RuntimeError: CUDA error: out of memory\n", "line 1: 42 Killed   python train.py\n"])
def test_json_follows_schema_for_texts(call: Call, tmp_path: Path, data: str) -> None:
    (tmp_path / "log").write_text(data)
    code, out, _ = call("explain", "--json", str(tmp_path / "log"))
    assert (code == 0) == json.loads(out)["is_certain"]


def test_json_follows_schema_for_snapshots(call: Call, tmp_path: Path) -> None:
    path = Program(90).run(tmp_path / "snapshot.pickle", 1000)
    said = json.loads(call("explain", "--json", str(path))[1])
    assert (said["cause"], said["changes"][0]["proof"]) == ("too large", "replayed")
    assert said["card"]["total_bytes"] is None
    assert json.loads(call("explain", "--json", "--memory", "4GiB", str(path))[1])["card"]["total_bytes"] == 4 << 30


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "Give one input"), (["log", "--", "python", "train.py"], "Give one input"), (["--", "python", "train.py"], "--on"),
     (["log"], "no out-of-memory error"), (["empty"], "is empty")],
)  # fmt: skip
def test_wrong_input_is_one_sentence(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").write_text("done\n")
    Path("empty").touch()
    code, out, err = call("explain", *words)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "log"]


@pytest.mark.integration
@pytest.mark.usefixtures("needs_null_gpu")
@pytest.mark.parametrize(
    ("memory", "more", "cause"),
    [("300MiB", "", "too large"), ("6GiB", "", None),
     ("6GiB", "torch.cuda.set_per_process_memory_fraction(0.01)", "own memory limit")],
)  # fmt: skip
def test_explains_commands(call: Call, tmp_path: Path, memory: str, more: str, cause: str | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"import torch\n{more}\nmodel = torch.nn.Linear(4096, 4096).cuda()\noptimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(3):\n    model(torch.zeros(8, 4096, device='cuda')).sum().backward()\n    optimizer.step()\n"
    )
    code, out, _ = call("explain", "--json", "--on", "t4", "--memory", memory, "--", "python", str(script))
    assert (json.loads(out)["cause"], code) == (cause, 0 if cause else 4)
