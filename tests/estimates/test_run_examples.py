"""Examples from measured runs; runs with a cap are the second round of those without."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("xgboost")

from vramcast.core.location import FOLDER
from vramcast.datasets.run import Measurement, Passport, Run, Workload
from vramcast.estimates import run_examples
from vramcast.hardware.cards import device as find_device
from vramcast.jobs.job import Job, TensorSpec
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES

GIB = 1 << 30
FEATURES = dict.fromkeys(NAMES, 0.0)
CARD = Passport("vramcast measure", gpu="NVIDIA H200", torch="2.11.0")


def run(id_: str, name: str, status: str = "ok", cap_bytes: int | None = None, gpu: str = "NVIDIA H200") -> Run:
    workload = Workload(name, target=f"torchvision:{name}", batch=("1x3x8x8",), cap_bytes=cap_bytes)
    measured = Measurement("ok" if status == "ok" else "oom", reserved_bytes=4 * GIB, censored=status != "ok")
    return Run(id_, workload, dataclasses.replace(CARD, gpu=gpu), measured)


RUNS = [
    run("free", "vgg11"),
    run("cap0", "vgg11", cap_bytes=2 * GIB),
    run("cap1", "vgg11", "oom", cap_bytes=GIB),
    run("cap2", "vgg11", "oom", cap_bytes=GIB + 512),
    run("cap3", "vgg11", cap_bytes=3 * GIB),
    run("elsewhere", "vgg11", cap_bytes=GIB // 2, gpu="NVIDIA L4"),
    run("other", "vgg13"),
]


def test_finds_caps_around_the_limit() -> None:
    found = run_examples.second_rounds(RUNS)
    assert found[run_examples.job_key(RUNS[0])] == (2 * GIB, GIB + 512)
    assert found[run_examples.job_key(RUNS[5])] == (GIB // 2, None)
    assert run_examples.job_key(RUNS[6]) not in found


def simulated(job: Job) -> Example | str:
    return Example("", "", "", "h200", "", FEATURES, 1, 9, ran_at=5, died_at=4, is_emulated=True, tracer="nullgpu")


def test_capped_runs_replace_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    monkeypatch.setattr(run_examples, "simulated", simulated)
    for _ in range(2):  # the second time from the stored examples
        found = run_examples.examples_of_runs(RUNS)
        assert [example.id for example in found.examples] == ["free", "other"]
        assert [(example.ran_at, example.died_at, example.is_emulated) for example in found.examples] == [
            (2 * GIB, GIB + 512, False),
            (5, 4, True),
        ]
        assert [example.measured_reserved for example in found.examples] == [4 * GIB] * 2
        assert found.left_out == {"the allocator was capped": 5}
        monkeypatch.setattr(run_examples, "simulated", None)


def test_estimates_equal_jobs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    asked = []
    monkeypatch.setattr(run_examples, "simulated", lambda job: asked.append(job) or simulated(job))
    repeats = [dataclasses.replace(RUNS[0], id=f"{number}") for number in range(30)]
    found = run_examples.examples_of_runs(repeats)
    assert [example.id for example in found.examples] == [one.id for one in repeats]
    assert len(asked) == 1


# ------------------------------------------------------------------------------------------------ runs out of memory
def sized(id_: str, batch: int, status: str = "ok", name: str = "vgg11", **measured: int) -> Run:
    """Return a run of which a cluster knows only how it ended."""
    workload = Workload(name, target=f"torchvision:{name}", batch=(f"{batch}x3x8x8",), labels=f"{batch}:int64")
    return Run(id_, workload, CARD, Measurement(status, censored=status == "oom", **measured))  # type: ignore[arg-type]


def of_batch(job: Job) -> Example | str:
    """Return an example that takes a GiB for each image, besides a context of 1 GiB, on a card of 100 GiB."""
    assert isinstance(job.batch, TensorSpec)
    size_bytes = job.batch.shape[0] * GIB
    return Example(
        "", "", "", "h200", "", FEATURES, size_bytes, size_bytes, context=GIB, card_bytes=100 * GIB, tracer="nullgpu"
    )


def test_run_out_of_memory_lies_between_the_card_and_the_same_job_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    monkeypatch.setattr(run_examples, "simulated", of_batch)
    pair = [sized("ran", 90), sized("failed", 120, "oom")]
    found = run_examples.examples_of_runs([*pair, sized("smaller", 80), sized("other model", 120, "oom", "vgg13")])
    (edge,) = found.examples
    assert (edge.id, edge.censored, edge.measured_reserved) == ("failed", True, 99 * GIB)
    assert edge.at_most is not None
    assert edge.at_most / edge.reserved == pytest.approx(99 / 90, rel=0.001)  # as of the batch that ran
    assert found.left_out == {"no peak was measured": 3}


@pytest.mark.parametrize(
    "failed",
    [
        sized("failed", 60, "oom"),
        dataclasses.replace(sized("failed", 120, "oom"), passport=dataclasses.replace(CARD, torch="2.6.0")),
        sized("failed", 120, "oom", workers=2),
        sized("failed", 120, "error"),
    ],
    ids=["a larger batch ran", "another stack", "the card was shared", "another error"],
)
def test_run_out_of_memory_for_another_reason_is_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: Run
) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    monkeypatch.setattr(run_examples, "simulated", of_batch)
    assert run_examples.examples_of_runs([sized("ran", 90), failed]).examples == []


# ------------------------------------------------------------------------------------------------ stored examples
@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(run_examples, "_versions", lambda: ("torch 2.99",)),
        lambda patch: patch.setattr(run_examples, "_own_code", lambda: "another vramcast"),
        lambda patch: patch.setattr(run_examples, "cudnn_asked", lambda stack: "9.99"),
        lambda patch: patch.setenv("NVIDIA_TF32_OVERRIDE", "0"),
        lambda patch: patch.setenv("TORCH_NCCL_AVOID_RECORD_STREAMS", "1"),
    ],
    ids=["packages", "our own code", "cuDNN", "a setting", "another setting"],
)
def test_key_includes_all_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    asked = []
    monkeypatch.setattr(run_examples, "simulated", lambda job: asked.append(job) or simulated(job))
    for _ in range(2):
        run_examples.examples_of_runs(RUNS[:1])
    assert len(asked) == 1
    change(monkeypatch)
    run_examples.examples_of_runs(RUNS[:1])
    assert len(asked) == 2


def test_key_includes_parts_that_a_short_representation_leaves_out() -> None:
    """A job's own line ends after 120 characters."""
    inputs = {f"input_{n}": TensorSpec((8, 1024), "int64") for n in range(5)}
    jobs = [Job(find_device("h200"), target="hf:bert?" + "x" * 90 + end, batch=inputs) for end in "ab"]
    jobs.append(dataclasses.replace(jobs[0], batch={**inputs, "input_4": TensorSpec((8, 512), "int64")}))
    jobs.append(jobs[0].with_training(optimizer="sgd", precision="bf16", zero_grad="after-step", steps=7))
    assert len({repr(job) for job in jobs}) < len(jobs)
    assert len({run_examples._key(job) for job in jobs}) == len(jobs)


def test_key_includes_target_file(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    job = Job(find_device("h200"), target=f"{path}:net", batch=TensorSpec((1, 8)))
    keys = []
    for text in ("width = 8", "width = 16"):
        path.write_text(text)
        keys.append(run_examples._key(job))
    assert keys[0] != keys[1]


def test_key_includes_own_code() -> None:
    names = {path.relative_to(FOLDER).as_posix() for path in run_examples._own_files()}
    assert {"tracer/nullgpu/csrc/entry_points.txt", "simulator/csrc/caching.c", "learner/features.py"} <= names
    # A bound that was mended must not go on being answered as before.
    decides = {"_version.py", "estimates/verdict.py", "estimates/bounds/public.py", "learner/conformal.py", "core/units.py"}
    assert decides | {"cluster/service/worker_main.py", "cluster/request.py", "learner/traits.toml"} <= names


def test_key_includes_model_libraries() -> None:
    named = {text.partition(" ")[0] for text in run_examples._versions()}
    assert {"torch", "transformers", "peft", "accelerate", "numpy", "pytest"} <= named  # whatever a job may import


def test_does_not_store_fallback_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a missing compiler, which may return later, leaves no stored failure."""
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    monkeypatch.setattr(run_examples, "simulated", lambda job: dataclasses.replace(simulated(job), reserved=3, tracer="fake"))
    assert [one.reserved for one in run_examples.examples_of_runs(RUNS[:1]).examples] == [3]
    monkeypatch.setattr(run_examples, "simulated", simulated)
    assert [one.reserved for one in run_examples.examples_of_runs(RUNS[:1]).examples] == [9]


def test_remakes_examples_of_other_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    monkeypatch.setattr(run_examples, "simulated", simulated)
    run_examples.examples_of_runs(RUNS[:1])
    kept = tmp_path / "examples.jsonl"
    kept.write_text(kept.read_text().replace('"log_allocations"', '"log_requests"'))
    assert [one.features for one in run_examples.examples_of_runs(RUNS[:1]).examples] == [FEATURES]


def test_stores_jobs_without_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    answers = {"vgg11": "cannot be estimated: JobError", "vgg13": "cannot be estimated: NullGpuError"}
    asked: list[str] = []

    def failing(job: Job) -> Example | str:
        asked.append(job.target or "")
        return answers[(job.target or "").partition(":")[2]]

    monkeypatch.setattr(run_examples, "simulated", failing)
    told: list[tuple[int, int]] = []
    for _ in range(2):
        found = run_examples.examples_of_runs(
            [RUNS[0], RUNS[6]], store_path=tmp_path / "examples.jsonl", progress=lambda done, of: told.append((done, of))
        )
        assert found.left_out == dict.fromkeys(answers.values(), 1)
    assert asked == ["torchvision:vgg11", "torchvision:vgg13", "torchvision:vgg13"]  # this machine failed, not the job
    assert told == [(0, 2), (2, 2), (0, 1), (1, 1)]
