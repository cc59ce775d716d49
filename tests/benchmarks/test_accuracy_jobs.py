"""Tests of the jobs rebuilt from rows of the public data sets; nothing is traced here."""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.accuracy import (
    builders,
    figures,
    gpumemnet_mlp,
    real_world,
    report,
    runner,
    timm_a100,
    xmem,
)
from benchmarks.accuracy.scripts import mlp_script, transformer_script
from benchmarks.hardware import convolution_kernels
from benchmarks.measured.measured_run import MeasuredRun
from benchmarks.peers.authors import transformers
from vramcast.core.errors import NullGpuError
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec
from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle
from vramcast.tracer.nullgpu.cudnn.libraries import choose
from vramcast.tracer.nullgpu.cudnn.stand_ins import oracle_libraries

Need = Callable[[str], Any]
XMEM_RUN = MeasuredRun(
    "Stone-ResearchLife/xMem", "d61e", "run.json", "MIT", "exp/run.py", "MnasNet", "reserved peak", 3_514_826_752, "bytes",
    "partly", batch=323, optimizer="RMSprop", options={"family": "cnn", "generation": "g1"}, card="NVIDIA-GeForce-RTX-3060",
    card_bytes=12_622_168_064,
)  # fmt: skip
MLP_ROW = {
    "Filename": "input:10_output:3_depth:2_arch:pyramid_batch:6_act:relu_dropout:0.25_dropout:True_batchnorm:True.out",
    "Activations-Params": "[('linear', 5, 55), ('batch_normalization', 5, 10), ('ReLU', 5, 0), ('dropout', 5, 0), "
    "('linear', 3, 18), ('Softmax', 3, 0)]",
    "Max GPU Memory (MiB)": "1443",
}
TIMM_ROW = {"model": "resnet18", "batch": "8", "extra": "faketensor_est_MiB=1000.0", "gib": "3.0"}


def _data_or_skip(name: str) -> list[dict[str, str]]:
    if not (runner.data_folder() / name).exists():
        pytest.skip(f"{name} is missing: set VRAMCAST_SHARED")
    return runner.read_rows(name)


TRANSFORMER_ROW = {
    "Filename": "num_classes:7_embedding_size:16_num_layers:2_num_heads:4_ff_hidden_size:40_dropout_rate:0.25_seq_length:8"
    "_input_size:90_num_samples:100_batch_size:32.out",
    "Max GPU Memory (MiB)": "1500",
    "Status": "SUCCESSFUL",
}


def test_transformer_row_is_its_script_with_the_names_settings() -> None:
    case = transformers.case_of(TRANSFORMER_ROW)
    assert isinstance(case, runner.Case)
    assert case.job.command is not None
    described = json.loads(case.job.command.words[1])
    assert described == {
        "classes": 7, "width": 16, "depth": 2, "heads": 4, "inner": 40, "dropout": 0.25, "tokens": 8, "vocabulary": 90,
        "samples": 100, "batch": 32,
    }  # fmt: skip
    assert transformer_script.batch_sizes(described.pop("batch"), described.pop("samples")) == [32, 32, 32, 4] * 2
    assert case.job.training.steps == 8
    model = transformer_script.Transformer(**described)
    layer = 4 * 16 * 16 + 4 * 16 + 2 * 16 * 40 + 40 + 16 + 4 * 16
    assert sum(parameter.numel() for parameter in model.parameters()) == 90 * 16 + 8 * 16 + 2 * layer + 7 * 16 + 7
    assert model(torch.zeros(3, 8, dtype=torch.int64)).shape == (3, 7)
    assert (case.measured_bytes, case.facts["censored"]) == (1500 * 1024**2, "False")


def test_transformer_rows_that_cannot_run_have_a_reason() -> None:
    crashed = transformers.case_of({**TRANSFORMER_ROW, "Status": "OOM_CRASH"})
    assert isinstance(crashed, runner.Case)
    assert crashed.facts["censored"] == "True"
    odd = TRANSFORMER_ROW["Filename"].replace("num_heads:4", "num_heads:12")
    assert "12 heads do not divide" in str(transformers.case_of({**TRANSFORMER_ROW, "Filename": odd}))
    assert "is not of GPUMemNet's" in str(transformers.case_of({**TRANSFORMER_ROW, "Filename": "a.out"}))


def test_cnn_row_uses_torchvision_on_small_images() -> None:
    case = xmem.case_of(XMEM_RUN)
    assert case.job.target == "torchvision:mnasnet1_0"
    assert case.job.num_classes == 10
    assert case.job.batch == TensorSpec((323, 3, 86, 86))
    assert case.job.labels == TensorSpec((323,), "int64", high=10)
    assert case.job.training.optimizer == "rmsprop"
    assert (case.job.training.steps, case.job.total_bytes, case.measured_bytes) == (4, 12_622_168_064, 3_514_826_752)


@pytest.mark.parametrize(
    ("mode", "place"),
    [
        ({}, "step-start"),
        ({"zero_grad_mode": 0}, "step-start"),
        ({"zero_grad_mode": 1}, "before-backward"),
        ({"zero_grad_mode": 2}, "after-step"),
    ],
)
def test_zero_grad_follows_row(mode: dict[str, int], place: str) -> None:
    assert xmem.case_of(replace(XMEM_RUN, options={**XMEM_RUN.options, **mode})).job.training.zero_grad == place


def test_other_cnns_keep_thousand_classes() -> None:
    assert xmem.case_of(replace(XMEM_RUN, model="VGG16")).job.num_classes is None


def test_transformer_row_uses_config_on_128_tokens() -> None:
    options = {**XMEM_RUN.options, "family": "transformer"}
    job = xmem.case_of(replace(XMEM_RUN, options=options, model="EleutherAI/gpt-neo-125M", optimizer="Adafactor")).job
    assert job.target is not None
    assert json.loads(Path(job.target.removeprefix("hf:")).read_text())["model_type"] == "gpt_neo"
    assert set(job.batch) == {"input_ids", "attention_mask", "labels"}
    assert job.batch["labels"] == TensorSpec((323, 128), "int64")
    assert isinstance(job.training.optimizer, bytes)
    assert pickle.loads(job.training.optimizer).__name__ == "transformers_adafactor"


def test_limited_card_leaves_room_for_context() -> None:
    case = xmem.limited(xmem.case_of(XMEM_RUN))
    assert case.options.limited
    assert 0 < case.options.context_bytes < 2**30


def test_every_xmem_row_has_a_model() -> None:
    assert len(xmem.cases()) == 130
    for case in xmem.cases():
        target = case.job.target
        assert target is not None
        if target.startswith("hf:"):
            assert Path(target.removeprefix("hf:")).exists(), case.name


def _mlp_of(job: Job) -> torch.nn.Sequential:
    assert job.command is not None
    described = json.loads(job.command.words[1])
    layers = tuple((name, size) for name, size in described["layers"])
    return builders.mlp(described["features"], layers, described["dropout"])


def test_mlp_row_has_listed_parameter_counts() -> None:
    job = gpumemnet_mlp.case_of(MLP_ROW, "x.csv").job
    model = _mlp_of(job)
    assert [type(layer).__name__ for layer in model] == ["Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear", "Softmax"]
    assert [sum(p.numel() for p in layer.parameters()) for layer in model] == [55, 10, 0, 0, 18, 0]
    assert model[3].p == 0.25
    assert job.command is not None
    assert json.loads(job.command.words[1])["batch"] == 6


def test_mlp_epoch_ends_with_remaining_samples() -> None:
    assert mlp_script.batch_sizes(1000) == [1000, 1000, 1000, 1000, 96]
    assert mlp_script.batch_sizes(2048) == [2048, 2048]


def test_published_mlp_rows_have_listed_parameters() -> None:
    rows = _data_or_skip("gpumemnet_mlp_step2.csv")
    for row in rows[:20]:
        with torch.device("meta"):
            model = _mlp_of(gpumemnet_mlp.case_of(row, "").job)
        listed = [int(size) for name, _, size in ast.literal_eval(row["Activations-Params"]) if name != "PReLU"]
        built = [sum(p.numel() for p in m.parameters()) for m in model if not isinstance(m, torch.nn.PReLU)]
        assert built == listed, row["Filename"]


def test_drops_mlp_with_one_output() -> None:
    assert not gpumemnet_mlp.is_broken(MLP_ROW)
    assert gpumemnet_mlp.is_broken({**MLP_ROW, "Filename": MLP_ROW["Filename"].replace("output:3", "output:1")})


def test_drops_mlp_with_single_sample_batch() -> None:
    name = MLP_ROW["Filename"].replace("batch:6", "batch:819")  # 4,096 = 5 x 819 + 1
    assert gpumemnet_mlp.is_broken({**MLP_ROW, "Filename": name})
    assert not gpumemnet_mlp.is_broken({"Filename": name, "Activations-Params": "[('linear', 5, 55)]"})


def test_drops_timm_rows_that_look_crashed() -> None:
    rows = [
        TIMM_ROW,  # 3,072 MiB > 1,000 + 1,400
        {**TIMM_ROW, "batch": "16", "extra": "faketensor_est_MiB=2000.0", "gib": "3.1"},  # 3,174 MiB < 2,000 + 1,400
        {**TIMM_ROW, "batch": "32", "gib": "3.05"},  # less than at batch 16
        {**TIMM_ROW, "batch": "64", "gib": "36.0"},  # 38.7e9 bytes: at the card's limit
        {**TIMM_ROW, "batch": "4", "extra": "SUSPECT; faketensor_est_MiB=100.0", "gib": "2.0"},
    ]
    assert timm_a100.clean_rows(rows) == [TIMM_ROW]


def test_timm_row_uses_defaults_of_train_py(need: Need) -> None:
    need("timm")
    job = timm_a100.case_of(TIMM_ROW).job
    assert job.command is not None
    assert json.loads(job.command.words[1]) == {"model": "resnet18", "batch": 8, "size": [3, 224, 224]}
    plain = timm_a100.plain_job(TIMM_ROW)
    assert plain.target == "timm:resnet18"
    assert plain.batch == TensorSpec((8, 3, 224, 224))
    assert plain.training.optimizer == "sgd:momentum=0.9,nesterov=true"


def test_leaves_out_unusable_real_scripts() -> None:
    row = {"model": "resnet18_cifar100", "batch": "32", "n_gpus": "1", "measured_2025_mib": "788.0"}
    case = real_world.case_of(row)
    assert case is not None
    assert case.measured_bytes == 788 * 2**20
    assert real_world.case_of({**row, "n_gpus": "2"}) is None
    assert real_world.case_of({**row, "measured_2025_mib": ""}) is None
    assert real_world.case_of({**row, "model": "DLRM"}) is None


def test_summarizes_three_errors() -> None:
    # errors -10 %, 0, +20 %
    summary = figures.summarize([(90, 100), (100, 100), (120, 100)])
    assert summary.n == 3
    assert summary.median == pytest.approx(0.1)
    assert summary.maximum == pytest.approx(0.2)
    assert summary.signed_median == 0
    assert summary.under == pytest.approx(1 / 3)


def test_residual_quantiles_are_values_of_runs() -> None:
    # measured / estimate - 1 = 0.01 ... 1.00
    n, values = figures.residual_quantiles([(100, 100 + i) for i in range(1, 101)])
    assert n == 100
    assert values == pytest.approx([0.5, 0.9, 0.95, 0.99, 1.0])


def test_rereads_stored_answers(tmp_path: Path) -> None:
    path = tmp_path / "cache.jsonl"
    runner.Cache(path).put("a", runner.Answer("ok", reserved=5))
    runner.Cache(path).put("a", runner.Answer("ok", reserved=6))
    assert runner.Cache(path).get("a") == runner.Answer("ok", reserved=6)
    assert runner.Cache(path).get("b") is None


def test_kernel_workspace_may_be_lower_bound() -> None:
    seen = {"op": "backward_filter", "real_kind": "NHWC tensor core", "real_min_workspace_mib": "100"}
    assert convolution_kernels.is_near(104, 100)
    assert not convolution_kernels.is_near(106, 100)
    assert convolution_kernels.is_possible(seen, 106)
    assert not convolution_kernels.is_possible(seen, 94)
    assert not convolution_kernels.is_possible({**seen, "op": "forward"}, 106)
    assert not convolution_kernels.is_possible({**seen, "real_kind": "gemm (cuBLAS) + reduce_wgrad"}, 106)


def test_first_plans_equal_kernels_of_a100(needs_null_gpu: None) -> None:
    _data_or_skip("public/cudnn_a100_resnet50.csv")
    try:
        cudnn = choose(None).library.folder
    except NullGpuError as error:
        pytest.skip(str(error))
    with CudnnOracle(cudnn, oracle_libraries(cudnn), device=device("a100-40gb").cudnn_record()) as oracle:
        last = convolution_kernels.a100(oracle, rows=False).splitlines()[-1]
    kinds, _, possible = (float(cell.strip(" %")) for cell in last.split("|")[3:6])
    assert kinds >= 95
    assert possible >= 85  # measured: 92.6 with cuDNN 9.8, 9.10 and 9.19


def test_rule_is_worst_of_large_sets() -> None:
    easy = [(100.0, 100.0)] * 60
    hard = [(100.0, 100.0)] * 45 + [(100.0, 130.0)] * 5
    few = [(100.0, 200.0)] * 10
    rule = report.rule_of([easy, hard, few])
    assert rule is not None
    assert (rule.n, rule.values) == (110, (0.0, 0.0, 0.3, 0.3, 0.3))
    alone = report.rule_of([few])
    assert alone is not None
    assert alone.values == (0.0, 1.0, 1.0, 1.0, 1.0)
    assert report.rule_of([]) is None


def test_groups_runs_by_cause_of_residual() -> None:
    row = {"real_oom": False, "status": "ok", "estimate_bytes": 1 << 30, "measured_bytes": 1 << 30}
    families = report.pairs_by_family(
        [{**row, "family": "cnn", "gpu": "rtx3060"}, {**row, "family": "transformer", "gpu": "a100-40gb"}], [], [],
        [{"status": "ok", "name": "resnet18_cifar100 32", "process_bytes": 1 << 30, "measured_bytes": 1 << 30}],
    )  # fmt: skip
    assert {family: list(sets) for family, sets in families.items()} == {
        "matmul": ["xMem transformer", "GPUMemNet MLP"],
        "convolution": ["xMem CNN", "timm", "real scripts"],
    }
    [(estimated, measured)] = families["matmul"]["xMem transformer"]
    assert estimated == measured > 1 << 30  # with the context
