"""Estimates for another machine's software: the cuDNN that answers, the context, and the warnings."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramcast import Estimate, estimate, estimate_command  # noqa: E402
from vramcast.core.cache import cache_folder  # noqa: E402
from vramcast.core.errors import CannotEstimate, NullGpuError, UsageError  # noqa: E402
from vramcast.datasets.run import Measurement, Passport, Run, Workload  # noqa: E402
from vramcast.estimates import run_examples  # noqa: E402
from vramcast.estimates.estimator import Estimator  # noqa: E402
from vramcast.hardware.context import context_bytes  # noqa: E402
from vramcast.hardware.stack import Stack, parse  # noqa: E402
from vramcast.jobs.job import Job  # noqa: E402
from vramcast.tracer.format.ledger import Code  # noqa: E402
from vramcast.tracer.nullgpu.client import NullGpuTracer  # noqa: E402
from vramcast.tracer.nullgpu.cudnn.libraries import CACHED, FOLDER, choose, installed_stack  # noqa: E402

pytestmark = pytest.mark.usefixtures("auto_tracer")


def linear(**options: Any) -> Estimate:
    model = torch.nn.Linear(64, 64)
    return estimate(model, (torch.zeros(8, 64), torch.zeros(8, 64)), device="a100-40gb", steps=2, **options)


def convolution(**options: Any) -> Estimate:
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.Conv2d(16, 16, 3))
    return estimate(model, torch.zeros(4, 8, 32, 32), device="a100-40gb", steps=2, **options)


@pytest.fixture
def own_cudnn() -> Path:
    """Return the folder of the installed cuDNN, which can answer."""
    try:
        return choose(None).library.folder
    except NullGpuError as error:
        pytest.skip(str(error))


@pytest.fixture
def fetched(own_cudnn: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Put the installed cuDNN into the cache as if it were a fetched library of another version."""
    monkeypatch.delenv("VRAMCAST_CUDNN_DIR", raising=False)

    cache = cache_folder() / CACHED

    def put(version: str) -> Path:
        folder = cache / f"{version}-cu{installed_stack().cuda_major or 12}" / FOLDER
        folder.parent.mkdir(parents=True)
        folder.symlink_to(own_cudnn)
        return folder

    yield put
    shutil.rmtree(cache, ignore_errors=True)


# ------------------------------------------------------------------------------------------------ assumptions and warnings
def test_default_stack_is_this_machine() -> None:
    said = linear().to_dict()["stack"]
    assert said == {**installed_stack().to_dict(), "torch": torch.__version__}
    assert said["source"] == "installed"


@pytest.mark.parametrize("tracer", ["auto", "fake"])
def test_cuda_of_stack_selects_context(tracer: str) -> None:
    found = linear(stack="torch==2.0.1", tracer=tracer)
    assert found.cuda_major == 11
    assert found.context == context_bytes("a100-40gb", 11, found.libraries)
    assert found.context.bytes > linear(stack="torch==2.8.0", tracer=tracer).context.bytes
    assert found.to_dict()["stack"] == parse("torch==2.0.1").to_dict()


def test_warns_of_another_torch_once() -> None:
    (said,) = [text for text in linear(stack="torch==2.0.1").warnings if "installed torch" in text]
    assert f"the installed torch {torch.__version__}, but its stack has 2.0.1" in said
    release = torch.__version__.partition("+")[0]
    same = linear(stack=Stack(release, "13.0", "9.19.0", "given"))
    assert not [text for text in same.warnings if "installed torch" in text]


def test_warns_of_guessed_cudnn() -> None:
    stack = "torch==2.8.0+cu126"
    (note,) = parse(stack).notes
    assert note in convolution(stack=stack).warnings
    assert note not in linear(stack=stack).warnings


# ------------------------------------------------------------------------------------------------ cuDNN
@pytest.mark.parametrize("tracer", ["nullgpu", "fake"])
def test_other_cudnn_warns_and_widens_bound(fetched: Callable[[str], Path], tracer: str, auto_tracer: str) -> None:
    if tracer == "nullgpu" != auto_tracer:
        pytest.skip("needs the null GPU")
    stack = "cudnn==9.17.0"
    other = convolution(stack=stack, tracer=tracer)
    fetched("9.17.0.1")
    own = convolution(stack=stack, tracer=tracer)
    assert (Code.OTHER_CUDNN in other.unknown, Code.OTHER_CUDNN in own.unknown) == (True, False)
    (said,) = [text for text in other.warnings if "--get-cudnn 9.17.0" in text]
    assert said.endswith("this widens the bound")
    assert not [text for text in own.warnings if "convolution workspaces" in text]
    assert (own.reserved, own.process) == (other.reserved, other.process)  # the same library answered
    assert other.upper_bound > own.upper_bound


def test_keeps_one_oracle_per_cudnn(
    needs_null_gpu: None, make_job: Callable[..., Job], tmp_path: Path, fetched: Callable[[str], Path], own_cudnn: Path
) -> None:
    (tmp_path / "model.py").write_text("import torch\ndef model(): return torch.nn.Conv2d(3, 4, 3)\n")
    folder = fetched("9.10.2.21")
    tracer = NullGpuTracer()
    try:
        assert tracer._oracles == {}
        for stack in (None, Stack(cudnn="9.10.2"), None, Stack(cudnn="9.10.2.21")):
            target = f"{tmp_path / 'model.py'}:model"
            job = make_job(target=target, batch="2x3x8x8", steps=1, stack=stack, search_path=tuple(sys.path))
            assert tracer.trace(job).status == "ok"
        assert list(tracer._oracles) == [own_cudnn, folder]
        assert tracer.cudnn_answer(Stack(cudnn="9.10.2")).startswith("cuDNN 9")
        processes = [oracle.process for oracle in tracer._oracles.values()]
        assert [process.poll() for process in processes] == [None, None]
    finally:
        tracer.close()
    assert all(process.poll() is not None for process in processes)


# ------------------------------------------------------------------------------------------------ measured runs
def test_uses_stack_of_measured_run(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []

    def uncorrected(self: Estimator, job: Job) -> Estimate:
        jobs.append(job)
        raise CannotEstimate("not here")

    monkeypatch.setattr(Estimator, "uncorrected", uncorrected)
    passport = Passport("vramcast measure", gpu="NVIDIA H200", torch="2.6.0+cu124", cuda="12.4", cudnn="90100")
    workload = Workload("job", target="torchvision:vgg11", batch=("1x3x8x8",))
    for one in (passport, Passport("sacct", gpu="NVIDIA H200")):
        (reason,) = run_examples.examples_of_runs([Run("a", workload, one, Measurement("ok", reserved_bytes=1))]).left_out
        assert reason == "cannot be estimated: CannotEstimate"
    assert [job.stack for job in jobs] == [Stack("2.6.0+cu124", "12.4", "9.1.0", "passport"), None]


def test_new_cudnn_invalidates_example(fetched: Callable[[str], Path]) -> None:
    passport = Passport("vramcast measure", gpu="NVIDIA H200", torch="2.8.0")
    measured = Measurement("ok", reserved_bytes=1)
    job = run_examples.job_of(Run("a", Workload("job", target="torchvision:vgg11", batch=("1x3x8x8",)), passport, measured))
    assert isinstance(job, Job)
    before = run_examples._key(job)
    assert run_examples._key(job) == before
    fetched("9.10.2.21")
    assert run_examples._key(job) != before


# ------------------------------------------------------------------------------------------------ the allocator's rules
@pytest.mark.parametrize("conf", ["large_segment_size_mb:40", "max_split_size_mb:20", "per_process_memory_fraction:0.5"])
def test_parses_settings_by_torch_of_stack(conf: str) -> None:
    with pytest.raises(UsageError, match=r"torch 2\.8"):
        linear(alloc_conf=conf, stack="torch==2.8.0")


def test_rejects_variable_unknown_to_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(UsageError, match=r"PYTORCH_ALLOC_CONF has no effect in torch 2\.8\.0"):
        linear(stack="torch==2.8.0", alloc_conf=None)


HOLES = """
import torch
def mib(n):
    return torch.empty(n << 20, dtype=torch.uint8, device="cuda")
older, newer = ([mib(4), mib(4), mib(12)] for _ in range(2))  # the newer segment has the lower address
older[0] = newer[0] = None
hole = mib(4)  # takes the place of one of the two
older.clear()
whole = mib(20)
"""


@pytest.mark.parametrize(("stack", "reserved_mib"), [("torch==2.11.0", 40), ("torch==2.14.1", 60)])
@pytest.mark.parametrize("memory", [None, "560MiB"])  # with the context, too small for 60 MiB
def test_allocator_of_stack_serves_requests(
    needs_null_gpu: None, tmp_path: Path, stack: str, reserved_mib: int, memory: str | None
) -> None:
    (tmp_path / "holes.py").write_text(HOLES)
    options: dict[str, Any] = {"device": "a100-40gb", "until": "end", "stack": stack, "memory": memory}
    found = estimate_command(["python", str(tmp_path / "holes.py")], **options)
    assert found.reserved == reserved_mib << 20
    assert any("does not fit" in text for text in found.warnings) == (memory is not None and reserved_mib == 60)
