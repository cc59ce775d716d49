"""Answers of the command line: one JSON object on stdout, the documented exit codes, scripts run unmodified."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli.verbs.sweep import parse_sizes
from vramcast.core.errors import UsageError

pytestmark = pytest.mark.usefixtures("auto_tracer")
Answer = tuple[int, str, str]
Call = Callable[..., Answer]


@pytest.fixture
def job(tiny_models: Path) -> list[str]:
    return [f"{tiny_models}:wide", "--batch", "64x1024", "--labels", "64x1024", "--device", "a100-40gb"]


# ------------------------------------------------------------------------------------------------ estimate
def test_json_estimate_is_one_object(call: Call, job: list[str]) -> None:
    code, out, _ = call("estimate", *job, "--json")
    said = json.loads(out)
    assert code == 0
    assert said["schema"] == 1
    assert said["peaks"]["allocated"] <= said["peaks"]["reserved"] < said["peaks"]["process"]
    assert said["target"].endswith("tiny.py:wide")


def test_text_estimate_shows_fit(call: Call, job: list[str]) -> None:
    code, out, _ = call("estimate", *job)
    assert code == 0
    assert "peak     " in out
    assert "fits" in out


def test_options_reach_job(call: Call, tiny_models: Path, tmp_path: Path, auto_tracer: str) -> None:
    snapshot = tmp_path / "trace.pickle"
    code, out, _ = call(
        "estimate", f"{tiny_models}:mlp", "--batch", "input=8x16", "--labels", "8:int64<4", "--optimizer", "sgdm",
        "--lr", "0.1",
        "--precision", "bf16", "--steps", "2", "--zero-grad", "after-step", "--device", "t4", "--memory", "8GiB",
        "--level", "0.9",
        "--alloc-conf", "expandable_segments:True", "--cudnn-benchmark", "--tracer", auto_tracer,
        "--snapshot", str(snapshot), "--json",
    )  # fmt: skip
    said = json.loads(out)
    assert code == 0
    assert (said["optimizer"], said["precision"], said["steps"], said["device"]) == ("sgdm", "bf16", 2, "t4")
    assert said["tracer"] == auto_tracer
    assert said["memory_bytes"] == 8 << 30
    assert said["upper_bound"]["level"] == 0.9
    assert snapshot.stat().st_size > 1000


def test_prints_version_and_help(call: Call) -> None:
    assert call("--version")[0] == 0
    code, out, _ = call("--help")
    assert code == 0
    assert all(verb in out for verb in ("estimate", "check", "sweep", "run", "replay", "doctor"))
    assert call("estimate", "--help")[0] == 0


# ------------------------------------------------------------------------------------------------ check
def test_check_returns_all_three_verdicts(call: Call, job: list[str]) -> None:
    said = json.loads(call("estimate", *job, "--json")[1])
    process, bound = said["peaks"]["process"], said["upper_bound"]["bytes"]
    between = str((process + bound) // 2)
    small = str(process - (64 << 20))
    assert call("check", *job)[0] == 0
    assert call("check", *job, "--memory", between, "--strict")[0] == 4
    assert call("check", *job, "--memory", between)[0] == 4
    assert call("check", *job, "--memory", small)[0] == 1
    for memory, verdict in ((between, 4), (small, 1)):
        code, out, _ = call("check", *job, "--memory", memory, "--strict", "--json")
        assert code == verdict
        assert json.loads(out)["verdict"]["value"] == {4: "uncertain", 1: "does not fit"}[verdict]


def test_check_fails_on_full_card(call: Call, job: list[str]) -> None:
    code, out, _ = call("check", *job, "--memory", "650MiB", "--json")
    assert code == 1
    assert json.loads(out)["out_of_memory"] is not None


# ------------------------------------------------------------------------------------------------ sweep
@pytest.mark.parametrize(
    ("text", "sizes"),
    [("8..64", [8, 16, 32, 64]), ("8..50", [8, 16, 32, 50]), ("5..5", [5]), ("8,24,3", [8, 24, 3]), ("7", [7])],
)
def test_range_doubles_and_list_is_literal(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "8..", "..8", "9..8", "0..8", "8-16", "8,,9", "0", "a", "8..16..32"])
def test_rejects_other_range_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"write 8\.\.512"):
        parse_sizes(text)


def test_sweep_has_ascending_row_per_size(call: Call, job: list[str]) -> None:
    code, out, _ = call("sweep", *job, "--batch-sizes", "8,4096,64", "--json")
    said = json.loads(out)
    assert code == 0
    assert [row["batch"] for row in said["rows"]] == [8, 64, 4096]
    peaks = [row["peaks"]["allocated"] for row in said["rows"]]
    assert peaks == sorted(peaks)
    code, out, _ = call("sweep", *job, "--batch-sizes", "8")
    assert code == 0
    assert len(out.splitlines()) == 2


@pytest.fixture
def normed(tmp_path: Path) -> list[str]:
    """Return a job whose model raises for a batch of one."""
    (tmp_path / "normed.py").write_text(
        "import torch\ndef model(): return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16))\n"
    )
    return [f"{tmp_path / 'normed.py'}:model", "--batch", "1x16", "--device", "a100-40gb", "--steps", "1"]


def test_sweep_shows_reason_for_failed_size(call: Call, normed: list[str]) -> None:
    code, out, _ = call("sweep", *normed, "--batch-sizes", "1..2", "--json")
    first, second = json.loads(out)["rows"]
    assert code == 0
    assert (first["batch"], first["error"]) == (1, "JobError")
    assert "Expected more than 1 value per channel" in first["message"]
    assert second["peaks"]["allocated"] > 0
    code, out, err = call("sweep", *normed, "--batch-sizes", "1")
    assert code == 3
    assert "Expected more than 1 value per channel" in out.splitlines()[1]
    assert "Expected more than 1 value per channel" in err


def test_max_batch_tolerates_failure_at_one(call: Call, normed: list[str]) -> None:
    code, out, _ = call("sweep", *normed, "--max-batch", "--memory", "256MiB", "--json")
    assert code == 1
    said = json.loads(out)
    assert said["max_batch"] == 0
    assert [(row["batch"], "error" in row) for row in said["rows"]] == [(1, True), (2, False)]


def test_max_batch_fits_and_may_be_none(call: Call, tiny_models: Path) -> None:
    job = [f"{tiny_models}:wide", "--batch", "1x512x1024", "--labels", "1x512x1024", "--device", "a100-40gb"]
    code, out, _ = call("sweep", *job, "--max-batch", "--memory", "1200MiB", "--json")
    said = json.loads(out)
    assert code == 0
    rows = {row["batch"]: row for row in said["rows"]}
    largest = said["max_batch"]
    assert rows[largest]["upper_bound"]["bytes"] <= 1200 << 20
    above = min(size for size in rows if size > largest)
    assert above == largest + 1
    assert rows[above]["upper_bound"]["bytes"] > 1200 << 20 or rows[above]["out_of_memory"] is not None
    code, out, _ = call("sweep", *job, "--max-batch", "--memory", "600MiB", "--json")
    assert code == 1
    assert json.loads(out)["max_batch"] in (0, None)


# ------------------------------------------------------------------------------------------------ run
PLAIN = """
    import argparse, torch
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    assert __name__ == "__main__"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print("training on", device, "with", torch.cuda.get_device_name())
    model = torch.nn.Linear(options.width, options.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(options.epochs):
        for batch in range(100):
            x = torch.randn(8, options.width).to(device)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            print("loss", loss.item(), flush=True)
    open("finished", "w").close()
"""
AMP = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(10):
        with torch.autocast("cuda", torch.float16):
            x, y = torch.randn(8, 512, device="cuda"), torch.randint(0, 10, (8,), device="cuda")
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
LOADER = """
    import torch
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, i):
            return torch.stack([torch.full((16,), float(i)) for _ in range(2)]).mean(0), i % 4
    if __name__ == "__main__":
        loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2, pin_memory=True)
        model = torch.nn.Linear(16, 4).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
            optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
TRAINER = """
    import torch, transformers
    config = transformers.AutoConfig.for_model("gpt2", n_layer=1, n_embd=64, n_head=2, vocab_size=100)
    model = transformers.AutoModelForCausalLM.from_config(config)
    tokens = torch.zeros(16, dtype=torch.long)
    data = [{"input_ids": tokens, "labels": tokens} for _ in range(64)]
    options = {"per_device_train_batch_size": 4, "max_steps": 10, "report_to": [], "save_strategy": "no"}
    options = transformers.TrainingArguments("out", **options)
    transformers.Trainer(model, options, train_dataset=data).train()
"""


@pytest.fixture
def script(tracer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.chdir(tmp_path)

    def write(source: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write


def test_stops_script_after_steps(call: Call, script: Callable[[str], Path], tmp_path: Path) -> None:
    path = script(PLAIN)
    code, out, _ = call("run", "--device", "t4", "--steps", "4", "--until", "steps", "--json", "--", str(path), "--epochs", "3")
    said = json.loads(out)  # the script's output does not get here
    assert code == 4  # a card was named, and what follows was not observed
    assert said["steps"] == 4
    assert said["device"] == "t4"
    # weight, gradient, momentum of 1024 x 1024 floats
    assert said["peaks"]["allocated"] > 3 * 4 * 1024 * 1024
    assert not (tmp_path / "finished").exists()


def test_passes_arguments_to_script(call: Call, script: Callable[[str], Path]) -> None:
    path = script(PLAIN)
    small = json.loads(call("run", "--json", "--", "python", str(path), "--epochs", "1", "--width", "512")[1])
    large = json.loads(call("run", "--json", "--", str(path), "--epochs", "1", "--width", "4096")[1])
    assert large["breakdown"]["parameters"] == 4 * (4096 * 4096 + 4096)
    assert small["breakdown"]["parameters"] == 4 * (512 * 512 + 512)


def test_loops_in_loader_workers_are_their_own(call: Call, script: Callable[[str], Path]) -> None:
    said = json.loads(call("run", "--json", "--", str(script(LOADER)))[1])
    assert (said["ended"], said["not_reached"], said["seen"]["to_end"]) == (None, [], True)


@pytest.mark.parametrize("source", [AMP, LOADER], ids=["amp", "loader"])
def test_runs_other_kinds_of_scripts(call: Call, script: Callable[[str], Path], source: str) -> None:
    code, out, err = call("run", "--until", "steps", "--json", "--", str(script(source)))
    assert code == 0, err
    assert json.loads(out)["steps"] == 3


def test_runs_hugging_face_trainer(call: Call, script: Callable[[str], Path]) -> None:
    for package in ("transformers", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    code, out, err = call("run", "--json", "--", str(script(TRAINER)))
    assert code == 0, err
    said = json.loads(out)
    assert (said["steps"] < 10, said["ended"]) == (True, None)  # its data loader ends one step after the --steps limit


def test_warns_if_script_ends_early(call: Call, script: Callable[[str], Path]) -> None:
    source = (
        "import torch\nm = torch.nn.Linear(4, 4).cuda()\no = torch.optim.SGD(m.parameters())\n"
        "m(torch.zeros(1, 4).cuda()).sum().backward()\no.step()\n"
    )
    code, out, _ = call("run", "--steps", "5", "--json", "--", str(script(source)))
    assert code == 0
    assert any("1 of 5" in warning for warning in json.loads(out)["warnings"])


# ------------------------------------------------------------------------------------------------ doctor, and real processes
def test_doctor_reports_tracers(call: Call, auto_tracer: str) -> None:
    code, out, _ = call("doctor", "--json")
    said = json.loads(out)
    assert code == 0
    assert {name: tracer["works"] for name, tracer in said["tracers"].items()} == {
        "nullgpu": auto_tracer == "nullgpu",
        "fake": True,
        "cpu": True,
    }
    assert all(tracer["why"] for tracer in said["tracers"].values())
    assert said["packages"]["torch"]
    assert "tested" in said["tracers"]["nullgpu"].get("torch_build", "tested")
    assert said["simulator"]["engine"] == "compiled"
    assert call("doctor")[0] == 0


def command(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "vramcast", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_process_prints_only_its_answer(job: list[str]) -> None:
    process = command("estimate", *job, "--json", "-q")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["schema"] == 1
    assert err == ""


@pytest.mark.usefixtures("tracer")
def test_ctrl_c_ends_job_and_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "sleeps.py"
    path.write_text("import os, time\nopen('runs', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    # A test suite in the background of a shell has Ctrl-C ignored, and its children inherit that.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = command("run", "--", str(path), cwd=tmp_path, preexec_fn=heed)
    marker = tmp_path / "runs"
    end = time.perf_counter() + 60
    while not (marker.exists() and marker.read_text()) and time.perf_counter() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == "vramcast: interrupted"
    assert "Traceback" not in err
    end = time.perf_counter() + 10
    while Path(f"/proc/{marker.read_text()}").exists() and time.perf_counter() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{marker.read_text()}").exists()
