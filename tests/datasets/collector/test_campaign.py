from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramcast.cli.main import main
from vramcast.core.errors import DatasetError, TimeLimit, WorkerError
from vramcast.datasets import journal
from vramcast.datasets.collector import campaign as campaign_module
from vramcast.datasets.collector.campaign import Campaign, CampaignLimits
from vramcast.datasets.collector.machine import DryRun
from vramcast.datasets.collector.measured_job import MeasuredFacts, MeasureRequest
from vramcast.datasets.run import DRY_RUN, Run, Workload
from vramcast.hardware.cards import device
from vramcast.hardware.device import Device
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.processes.job_process import python_path

GIB = 1 << 30
CUBLAS_WORKSPACES = {8_519_680, 1 << 20, 0}  # spec: values of an A100, and of cuBLASLt in torch 2.11


def runs_of(out: Path) -> dict[str, Run]:
    reading = journal.read_runs(out / "runs.jsonl")
    assert not reading.rejected
    return {run.id: run for run in reading.runs}


def listed(monkeypatch: pytest.MonkeyPatch, workloads: list[Workload]) -> None:
    """Replace the list of jobs by this one, without repeats or capped runs unless a test adds them."""
    entries = [(f"1-{i}", workload) for i, workload in enumerate(workloads)]
    monkeypatch.setattr(campaign_module.workload_list, "workloads", lambda seed, first, count: entries[first : first + count])
    monkeypatch.setattr(campaign_module.workload_list, "is_repeated", lambda index: False)
    monkeypatch.setattr(campaign_module.workload_list, "is_capped", lambda index: False)


class WarmDryRun(DryRun):
    """Runs on the worker that all tests share."""

    def __init__(self, card: Device) -> None:
        super().__init__(card)
        self._tracer = NullGpuTracer.shared()

    def close(self) -> None:
        """Do nothing, because other tests need the worker."""


def on_null_gpu(out: Path, count: int, card: Device | None = None) -> Campaign:
    return Campaign(out, CampaignLimits(count=count), lambda: WarmDryRun(card or device("a100-40gb")))


# ------------------------------------------------------------------------------------------------ on the null GPU
@pytest.fixture
def jobs(tiny_models: Path) -> dict[str, Workload]:
    def job(name: str, factory: str, batch: str, **more: Any) -> Workload:
        return Workload(name, target=f"{tiny_models}:{factory}", batch=(batch,), optimizer="adam", steps=3, **more)

    return {
        "small": job("small", "mlp", "8x16", labels="8:int64<4", precision="amp-fp16"),
        "wide": job("wide", "wide", "4096x1024", precision="fp32", zero_grad="after-step"),
        "settings": job("settings", "wide", "512x1024", precision="bf16", alloc_conf="expandable_segments:True"),
        "broken": job("broken", "Raises", "8x16"),
        "too large": job("too large", "wide", "100000x1024"),
        "convolution": Workload(
            "convolution", target="torchvision:resnet18", batch=("8x3x64x64",), labels="8:int64<1000", optimizer="sgd", steps=3
        ),
    }


def test_measured_job_matches_traced_job(
    tracer: Callable[[], NullGpuTracer], need: Callable[[str], Any], jobs: dict[str, Workload], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    need("torchvision")
    chosen = [jobs[name] for name in ("small", "wide", "settings", "convolution")]
    listed(monkeypatch, chosen)
    summary = on_null_gpu(tmp_path, 4).run()
    assert dict(summary.by_status) == {"ok": 4}
    runs = runs_of(tmp_path)
    histories = {values["id"]: values for _, values in journal.read_lines(tmp_path / "histories.jsonl")}
    for number, workload in enumerate(chosen):
        run = runs[f"1-{number}"]
        result = tracer().trace(workload.job(device("a100-40gb"), trust=True))
        assert result.trace is not None
        peaks = result.trace.header["peaks"]
        assert (run.measurement.allocated_bytes, run.measurement.reserved_bytes) == (peaks["allocated"], peaks["reserved"])
        assert (run.measurement.steps, len(run.measurement.step_ms), run.measurement.retries) == (3, 3, 0)
        assert run.measurement.process_bytes is None
        handed_over = {entry.size_bytes for entry in result.ledger if entry.kind == "workspace"}
        assert {size for _, size in run.measurement.workspaces} == handed_over - CUBLAS_WORKSPACES
        last = np.frombuffer(zlib.decompress(base64.b64decode(histories[run.id]["last"])), "<i8")
        assert abs(int(last.sum())) < peaks["allocated"]
        assert len(last) > 10
    assert runs["1-0"].passport.measured_by == DRY_RUN
    assert runs["1-0"].passport.gpu == "NVIDIA A100-SXM4-40GB"
    assert runs["1-0"].workload.features["layers.Linear"] == 2
    assert runs["1-1"].workload.model_sha256 != runs["1-2"].workload.model_sha256  # float32 and bfloat16
    assert json.loads((tmp_path / "passport.json").read_text())["properties"]["major"] == 8


def test_failed_job_is_a_row(
    tracer: Callable[[], NullGpuTracer], jobs: dict[str, Workload], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(monkeypatch, [jobs["broken"], jobs["too large"], jobs["small"]])
    summary = on_null_gpu(tmp_path, 3, device("a100-40gb").with_memory(2 * GIB)).run()
    assert dict(summary.by_status) == {"error": 1, "oom": 1, "ok": 1}
    broken, large = runs_of(tmp_path)["1-0"].measurement, runs_of(tmp_path)["1-1"].measurement
    assert broken.message == "RuntimeError: the model is broken\non two lines"
    assert not broken.censored
    assert large.censored
    assert large.oom_requested_bytes == 100_000 * 4096 * 4
    assert large.message.startswith("CUDA out of memory.")


def test_repeats_jobs_and_finds_smallest_card(
    tracer: Callable[[], NullGpuTracer], jobs: dict[str, Workload], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(monkeypatch, [jobs["wide"]])
    monkeypatch.setattr(campaign_module.workload_list, "is_repeated", lambda index: True)
    monkeypatch.setattr(campaign_module.workload_list, "is_capped", lambda index: True)
    on_null_gpu(tmp_path, 1).run()
    runs = runs_of(tmp_path)
    first, again = runs.pop("1-0").measurement, runs.pop("1-0/repeat").measurement
    assert again.repeat_of == "1-0"
    assert (again.allocated_bytes, again.reserved_bytes) == (first.allocated_bytes, first.reserved_bytes)
    caps = {run.workload.cap_bytes: run.measurement.status for run in runs.values()}
    assert len(caps) >= 3
    works = [cap for cap, status in caps.items() if cap and status == "ok"]
    fails = [cap for cap, status in caps.items() if cap and status == "oom"]
    assert all(low < high for low in fails for high in works)
    assert all(first.allocated_bytes <= cap < first.reserved_bytes for cap in caps if cap)  # type: ignore[operator]


def test_command_resumes_its_shard(
    needs_null_gpu: None, jobs: dict[str, Workload], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    listed(monkeypatch, [jobs["small"], replace(jobs["small"], family="absent"), jobs["small"], jobs["small"]])
    command = ["measure", "--out", str(tmp_path), "--dry-run", "a100-40gb", "--json"]
    assert main([*command, "--count", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["runs"], said["next_index"], said["already"]) == (2, 2, 0)
    assert main([*command, "--count", "4", "--workers", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["runs"], said["next_index"], said["already"]) == (2, 4, 2)
    assert len(runs_of(tmp_path)) == 4
    assert main([*command[:3], "--dry-run", "rtx4090", "--count", "1"]) == 2
    assert "choose another --out" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ with a fake machine
class Stub:
    """A machine whose jobs answer according to their names."""

    measured_by = "stub"

    def __init__(self, answer: Callable[[MeasureRequest], MeasuredFacts], libraries: dict[str, str] | None = None) -> None:
        self.answer, self.libraries = answer, libraries or {}

    def run(self, module: str, argument: Any, timeout_s: float) -> Any:
        if module == campaign_module.PASSPORT:
            stack = dict.fromkeys(("gpu", "driver", "cuda", "cudnn", "torch"), "1")
            return {"passport": {**stack, "gpu_total_bytes": GIB, "libraries": self.libraries}, "uuid": None}
        return self.answer(argument)

    def close(self) -> None:
        """Do nothing."""


def stubbed(
    out: Path, answer: Callable[[MeasureRequest], MeasuredFacts], libraries: dict[str, str] | None = None, **limits: Any
) -> Campaign:
    return Campaign(out, CampaignLimits(**limits), lambda: Stub(answer, libraries))


def peaks(allocated: int, reserved: int, **more: int) -> dict[str, int | None]:
    return {"allocated_bytes": allocated, "reserved_bytes": reserved, "retries": 0, **more}


def test_reruns_out_of_memory_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, [Workload(name) for name in ("fits", "large", "retries", "hopeless")])
    together = threading.Lock()

    def answer(request: MeasureRequest) -> MeasuredFacts:
        name = request.workload.name
        with together:
            seen.append(name)
        alone = seen.count(name) == 2
        if name == "hopeless" or (name == "large" and not alone):
            return MeasuredFacts(1, "oom", counters=peaks(1, 2))
        return MeasuredFacts(1, counters=peaks(1, 2, retries=int(name == "retries" and not alone)))

    seen: list[str] = []
    stubbed(tmp_path, answer, count=4, workers=3).run()
    assert sorted(seen) == ["fits", "hopeless", "hopeless", "large", "large", "retries", "retries"]
    rows = {run.workload.name: (run.measurement.status, run.measurement.workers) for run in runs_of(tmp_path).values()}
    assert rows == {"fits": ("ok", 3), "large": ("ok", 1), "retries": ("ok", 1), "hopeless": ("oom", 1)}


def test_killed_job_is_censored_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, [Workload("dies"), Workload("slow")])

    def answer(request: MeasureRequest) -> MeasuredFacts:
        raise WorkerError("was killed by SIGKILL") if request.workload.name == "dies" else TimeLimit("did not end within 9 s")

    stubbed(tmp_path, answer, count=2, job_timeout_s=9).run()
    rows = {run.workload.name: run.measurement for run in runs_of(tmp_path).values()}
    assert {name: (row.status, row.censored) for name, row in rows.items()} == {
        "dies": ("killed", True),
        "slow": ("timeout", True),
    }
    assert "SIGKILL" in rows["dies"].message


def test_stops_in_time_and_names_next_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, [Workload(f"job {i}") for i in range(100)])

    def answer(request: MeasureRequest) -> MeasuredFacts:
        time.sleep(0.1)
        return MeasuredFacts(1, counters=peaks(1, 2))

    summary = stubbed(tmp_path, answer, budget_s=0.55).run()
    assert 0 < summary.next_index < 20
    assert list(runs_of(tmp_path)) == [f"1-{i}" for i in range(summary.next_index)]
    assert len(runs_of(tmp_path)) == sum(summary.by_status.values())


def test_skips_families_of_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, [Workload(family, family=family) for family in ("timm", "torchvision", "hf", "mlp")])
    summary = stubbed(tmp_path, lambda request: MeasuredFacts(1), {"torchvision": "1"}, count=4).run()
    assert dict(summary.skipped) == {"timm is not installed": 1, "transformers is not installed": 1}
    assert {run.workload.name for run in runs_of(tmp_path).values()} == {"torchvision", "mlp"}


def test_rejects_runs_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, [Workload("a")])
    stubbed(tmp_path, lambda request: MeasuredFacts(1), count=1).run()
    with pytest.raises(DatasetError, match=r"libraries \{\}, but here it is \{'timm': '1'\}"):
        stubbed(tmp_path, lambda request: MeasuredFacts(1), {"timm": "1"}, count=1).run()
    (tmp_path / "passport.json").write_text("{")
    with pytest.raises(DatasetError, match="is damaged"):
        stubbed(tmp_path, lambda request: MeasuredFacts(1), count=1).run()


def test_full_disk_ends_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, [Workload(str(i)) for i in range(50)])

    def full(self: object, values: object) -> None:
        raise DatasetError("'runs.jsonl' cannot be written (No space left on device)")

    monkeypatch.setattr(journal.Journal, "append", full)
    with pytest.raises(DatasetError, match="No space left"):
        stubbed(tmp_path, lambda request: MeasuredFacts(1), count=50, workers=3).run()


# ------------------------------------------------------------------------------------------------ as a program
@pytest.mark.integration
def test_reports_missing_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--out", str(tmp_path), "--count", "1"]) == 3
    assert "finds no GPU on this machine" in capsys.readouterr().err
    assert not (tmp_path / "passport.json").exists()


def test_prints_list_without_running(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--list", "--seed", "2", "--first", "40", "--count", "3"]) == 0
    listed_jobs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [job["id"] for job in listed_jobs] == ["2-40", "2-41", "2-42"]
    assert all(job["target"] and job["batch"] and job["steps"] >= 3 for job in listed_jobs)
    assert main(["measure"]) == 2
    assert "--out is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget-s", "0"], "--budget-s: it is 0: it must be between"),
        (["--workers", "0"], "--workers: it is 0: at least 1 is needed"),
        (["--first", "-1"], "--first: it is -1: at least 0 is needed"),
        (["--dry-run", "gtx-9999"], "gtx-9999"),
        (["--dry-run", "h200", "--", "python", "train.py"], "use vramcast run"),
    ],
)
def test_rejects_wrong_usage_before_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["measure", "--out", str(tmp_path / "set"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "vramcast", "measure", "--out", str(out), "--seed", "3", "--json", *more]


@pytest.mark.release
def test_resumes_after_kill_without_loss(needs_null_gpu: None, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    arguments = command(tmp_path, "--dry-run", "h200", "--count", "6")
    before: set[str] = set()
    for _ in range(2):
        process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            found = (
                {run.id for run in journal.read_runs(tmp_path / "runs.jsonl").runs}
                if (tmp_path / "runs.jsonl").exists()
                else set()
            )
            if len(found) > len(before):
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert before <= found
        before = found
    finished = subprocess.run(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    said = json.loads(finished.stdout)
    assert said["already"] >= 2
    reading = journal.read_runs(tmp_path / "runs.jsonl")
    assert {f"3-{i}" for i in range(6)} <= {run.id for run in reading.runs}
    assert before <= {run.id for run in reading.runs}
    assert len(reading.rejected) <= 2
    known = {values["id"] for _, values in journal.read_lines(tmp_path / "histories.jsonl") if isinstance(values, dict)}
    assert {run.id for run in reading.runs if run.measurement.status == "ok" and "/" not in run.id} <= known


def test_real_gpu_needs_only_torch_and_numpy(tracer: Callable[[], NullGpuTracer], tmp_path: Path) -> None:
    """The code path of a real GPU, with the null GPU loaded into each Python at its start, undetected by the collector."""
    from vramcast.tracer.nullgpu.library.build import build, find_torch

    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for absent in ("cloudpickle", "joblib", "pyarrow", "matplotlib", "xgboost", "sklearn", "timm", "transformers"):
        (stubs / f"{absent}.py").write_text("raise ImportError('not on this machine')")
    (stubs / "sitecustomize.py").write_text(
        textwrap.dedent(
            f"""
            import sys
            if "vramcast.tracer.processes.fork_server" in sys.orig_argv:
                from pathlib import Path
                from vramcast.tracer.nullgpu.library.loader import NullGpu
                NullGpu(Path({str(build(find_torch()))!r}))
            """
        )
    )
    gpu = f"{device('l4').to_config()};context_bytes=0;capacity_bytes={device('l4').total_bytes};kernel_arch=86"
    path = os.pathsep.join([str(stubs), python_path()])
    environment = {**os.environ, "PYTHONPATH": path, "NULLGPU_DEVICE": gpu, "NULLGPU_CUDNN_SOCKET": ""}
    done = subprocess.run(command(tmp_path / "set", "--count", "8"), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "only torch's counters are" in done.stderr
    runs = runs_of(tmp_path / "set")
    assert len(runs) >= 4
    assert {run.passport.measured_by for run in runs.values()} == {"vramcast measure"}
    assert {run.passport.gpu for run in runs.values()} == {"NVIDIA L4"}
    assert any(run.measurement.status == "ok" for run in runs.values())
