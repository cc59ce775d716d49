"""Completeness of the installed cuDNN's engine lists.

This is a small part of `python -m benchmarks.hardware.cudnn_engines`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.hardware import cudnn_engines as engines
from vramcast.core.errors import NullGpuError
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec
from vramcast.tracer.format.ledger import Code
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle
from vramcast.tracer.nullgpu.cudnn.libraries import choose
from vramcast.tracer.nullgpu.cudnn.stand_ins import oracle_libraries

# These may be refused for the environment because Hopper's native engines query the card's clusters. cuDNN 9.13 and 9.15
# include them without a card, but in no INSTANT list, and neither do the lists of Ampere and Blackwell contain any.
REFUSED = {("forward", 72, 90), ("backward_filter", 70, 90), ("backward_data", 78, 90)}
# Engines that took none of the benchmark's requests, and are refused without a reason on some architecture. They are the same
# in 9.15, 9.19 and 9.20, and a few take 8-bit integers; 9.24 has three more. Nothing else is known about them.
SILENT = {
    "forward": {15, 26, 29, 32, 33, 43, 44, 59, 60, 68, 69, 72},
    "backward_filter": {4, 5, 8, 11, 14, 35, 36, 41, 59, 60},
    "backward_data": {10, 11, 20, 32, 33, 35, 36, 52, 55, 61},
}
POINTWISE = engines.Question("1x1", "forward", engines.convolution_graph("1x1", "forward", "fp32", False))


@pytest.fixture(scope="module")
def cudnn(clean_environment: None) -> Path:
    try:
        return choose(None).library.folder
    except NullGpuError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def survey(cudnn: Path) -> engines.Survey:
    return engines.survey(cudnn, oracle_libraries(cudnn), engines.convolutions(brief=True))


def test_environment_rejects_only_hopper_native_engines(survey: engines.Survey) -> None:
    assert {key[1:4] for key in survey.refusals if key[0] == engines.DEVICE} <= REFUSED
    assert not survey.not_asked


def test_lists_are_complete_despite_rejected_engines(survey: engines.Survey) -> None:
    for (class_, operation, engine, sm, _, _), n in survey.refusals.items():
        if class_ == engines.DEVICE:
            assert survey.complete[operation, engine, sm] == n


def test_every_refusal_has_known_reason(survey: engines.Survey) -> None:
    assert [key for key in survey.refusals if key[0] == engines.NEW] == []
    for operation, silent in survey.never(engines.SILENT).items():
        assert set(silent) <= SILENT[operation]


def test_first_plans_build(survey: engines.Survey) -> None:
    assert set(survey.plans) == {0}
    assert survey.plans[0] > 100


def test_survey_detects_engine_missing_without_stand_in(cudnn: Path, tmp_path: Path) -> None:
    libraries = oracle_libraries(cudnn)
    whole = engines.survey(cudnn, libraries, [POINTWISE], [80])
    broken = engines.survey(cudnn, engines.without_cublaslt(libraries, tmp_path), [POINTWISE], [80])
    assert ("forward", 58) in set(whole.built) - set(broken.built)
    assert whole.lists[engines.INSTANT, 80, "dropped"] == 0
    assert broken.lists[engines.INSTANT, 80, "dropped"] > 0


@pytest.mark.parametrize(
    ("status", "name", "reason", "class_"),
    [
        (3007, "NOT_SUPPORTED_ARCH_MISMATCH", "core_engine.getStatus()", engines.ARCHITECTURE),
        (3000, "NOT_SUPPORTED_SHAPE", "Only 1x1 conv supported at: (conv.s != 1)", engines.QUESTION),
        (3000, "NOT_SUPPORTED_SHAPE", "No GPC available at: cga_count == 0", engines.DEVICE),
        (3000, "NOT_SUPPORTED", "Failed to init host reserved space at: true", engines.DEVICE),
        (3000, "NOT_SUPPORTED", "cudaSuccess != cudaGetDevice(&current_device_id)", engines.DEVICE),
        (4000, "INTERNAL_ERROR", "", engines.DEVICE),
        (3008, "", "", engines.DEVICE),
        (3000, "NOT_SUPPORTED", "Engine 66 is not enabled for CONV_FORWARD at: true", engines.ABSENT),
        (3000, "NOT_SUPPORTED", "core_engine.getStatus()", engines.SILENT),
        (3000, "NOT_SUPPORTED", "the moon is full", engines.NEW),
        (3000, "", "", engines.NEW),
    ],
)
def test_classifies_refusal_by_innermost_reason(status: int, name: str, reason: str, class_: str) -> None:
    assert engines.class_of(status, name, reason) == class_


def test_first_card_without_tf32_hides_no_engines(cudnn: Path) -> None:
    """Compare lists after another first card: cuDNN decides once per process, by the first card, whether TF32 is possible."""
    a100, v100 = device("a100-40gb").cudnn_record(), device("v100-16gb").cudnn_record()
    lists = []
    for cards in ([a100], [v100, a100]):
        with CudnnOracle(cudnn, oracle_libraries(cudnn)) as oracle:
            for card in cards:
                oracle.set_device(card)
                answer = oracle.heuristics(engines.INSTANT, POINTWISE.graph)
            lists.append(answer)
    assert lists[0] == lists[1]
    assert len(lists[0]) > 20


def test_oracle_maps_only_cudnn_and_nvrtc(cudnn: Path) -> None:
    """Check the licence boundary: after requests for plans, the only driver and cuBLASLt mapped are ours."""
    libraries = oracle_libraries(cudnn)
    with CudnnOracle(cudnn, libraries, device=device("a100-40gb").cudnn_record()) as oracle:
        for operation in engines.OPERATIONS.values():
            oracle.plan(engines.INSTANT, 0, engines.convolution_graph("1x1", operation, "fp32", False))
        maps = Path(f"/proc/{oracle.process.pid}/maps").read_text().splitlines()
    mapped = {Path(line.split()[-1]) for line in maps if line.split()[-1].startswith("/")}
    ours = {path for path in mapped if path.name.startswith(("libcuda.so", "libcublasLt.so"))}
    assert {path.parent for path in ours} == {libraries}
    assert len(ours) == 2
    nvidias = ("libcuda", "libcublas", "libcusolver", "libcufft", "libcusparse", "libnccl", "libnvidia", "libcupti")
    assert {path for path in mapped if path.name.startswith(nvidias)} == ours


@pytest.mark.parametrize("layer", engines.LEGACY)
def test_layers_that_need_handle_count_as_unknown(tracer: Callable[[], NullGpuTracer], layer: str) -> None:
    job = Job(device("h100"), target=f"{engines.LAYERS}:{layer}", batch=TensorSpec.parse("8x1024x512"))
    assert [entry for entry in tracer().trace(job).ledger if entry.kind == "assumed" and "cuDNN" in entry.words]


@pytest.mark.parametrize("name", ["fake", "cpu"])
def test_channels_last_batch_norm_counts_as_unknown(name: str, clean_environment: None) -> None:
    job = Job(device("h100"), target=f"{engines.LAYERS}:batch_norm", batch=TensorSpec.parse("8x1024x512"))
    assert Code.CHANNELS_LAST_NORM in Estimator(tracer=name).uncorrected(job).unknown
