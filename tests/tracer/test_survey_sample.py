"""A sample of the survey (benchmarks/surveys/survey.py): one model and operator of each kind, in seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.surveys import survey, survey_models
from tests.lanes import sampled
from vramcast.hardware.cards import device

Need = Callable[[str], Any]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "surveys"
A100 = device("a100-40gb")
pytestmark = pytest.mark.usefixtures("needs_null_gpu")


@pytest.mark.parametrize("name", sampled(["resnet18", "fcn_resnet50", "fasterrcnn_resnet50_fpn", "r3d_18"], 4))
def test_traces_torchvision_model_of_each_kind(name: str, need: Need) -> None:
    need("torchvision")
    outcome = survey.survey_one(name, dict(survey_models.torchvision_jobs(A100))[name])
    assert (outcome.status, outcome.reason) == ("traced", "")
    assert outcome.resident_bytes <= 1.5 * 2**30


@pytest.mark.parametrize("name", sampled(["convnext_atto", "vit_tiny_patch16_224", "sequencer2d_s"], 3))
def test_traces_timm_model_of_each_kind(name: str, need: Need) -> None:
    need("timm")
    outcome = survey.survey_one(name, survey_models.timm_job(A100, name))
    assert (outcome.status, outcome.reason) == ("traced", "")


@pytest.mark.parametrize("name", sampled(["llama", "bert", "whisper"], 3))
def test_traces_hugging_face_model_of_each_kind(name: str, tmp_path: Path, need: Need) -> None:
    need("transformers")
    outcome = survey.survey_one(name, survey_models.hugging_face_job(A100, name, tmp_path))
    assert (outcome.status, outcome.reason) == ("traced", "")


@pytest.mark.parametrize(
    "name",
    [
        "LSTM layers=2 bidirectional=True",
        "LSTM projection",
        "conv_transpose2d groups 4",
        "sdpa cudnn bf16 causal h100",
        "sdpa flash fp32 plain a100-40gb",
        "solve batched",
        "sparse coo mm",
        "ctc_loss cuDNN",
        "fft",
        "distributions",
        "FSDP2 on a fake group",
        "NCCL group of one",
        "expandable_segments",
        "sparse csr times sparse csr",
    ],
)
def test_traces_or_rejects_operator(name: str) -> None:
    from benchmarks.surveys import survey_operators  # imports torch

    job, expected = {n: (j, e) for n, j, e in survey_operators.jobs()}[name]
    outcome = survey.survey_one(name, job, expected)
    assert outcome.status == ("as-expected" if expected else "traced"), outcome.reason
