"""Tests of the collectors of measured runs: each on a small file in its source's format, and of the rows that they wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measured.collectors import detectors, golden_values, segment_anything, self_supervised, train_pipelines
from benchmarks.measured.collectors.__main__ import COLLECTORS
from benchmarks.measured.collectors.markdown import tables
from benchmarks.measured.importers import is_allowed
from benchmarks.measured.measured_run import COLLECTED, FIGURES, LICENCES, QUALITIES, TRAITS, read_runs, sources, write_runs
from benchmarks.measured.screens import screened
from vramcast.core.files import digest
from vramcast.core.units import GIB, MIB

RUNS = read_runs(COLLECTED)
COMMIT = "0" * 40
EARLIER = "1" * 40
TEST = "tests/functional_tests/test_cases/gpt/small"
CONFIG = """
TEST_TYPE: regular
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --micro-batch-size: 4
  --seq-length: 1024
  --train-iters: 50
  --bf16: true
  --num-experts: 8
"""
RECIPE = """
spec:
  model: gpt
  nodes: 2
  gpus: 8
  script: '"TRAINING_SCRIPT_PATH=pretrain_gpt.py"'
products:
  - test_case: [small]
"""

PIPELINES = "torchrec/distributed/benchmark/yaml"
MESSAGE = f"""Add a pipeline

|short name|GPU Runtime (P90)|GPU Peak Mem alloc (P90)|GPU Peak Mem reserved  (P90)|GPU Mem used (P90)|
|--|--|--|--|--|
|base              |5687.23 ms       |43.30 GB                |66.51 GB  |68.54 GB          |
|stash (this diff) |6900.21 ms       |31.97 GB                |n/a       |0.0 GB            |
|unknown           |6900.21 ms       |31.97 GB                |66.51 GB  |68.54 GB          |

|name|trace|
|--|--|
|base|5 GB|

python -m torchrec.distributed.benchmark.benchmark_train_pipeline --yaml_config=fbcode/{PIPELINES}/base.yml \\
  --name=stash --pipeline=stash
"""
PIPELINE = """
RunOptions:
  world_size: 2
ModelSelectionConfig:
  model_name: test_sparse_nn
EmbeddingTablesConfig:
  embedding_feature_dim: 256
PipelineConfig:
  pipeline: sparse
"""
DETECTION: dict[str, Any] = {
    "model": {"id": "yolox-s"},
    "config": {"batch_size": 1, "input_size": 640, "max_det": 300},
    "dataset": {"num_images": 500},
    "hardware": {"gpu": "NVIDIA GeForce RTX 5070 Ti", "cuda_version": "12.8"},
    "software": {"torch": "2.11.0+cu128", "libreyolo": "1.1.1", "libreyolo_commit": "unknown"},
    "memory": {"peak_vram_mb": 86.5},
    "runtime": {"precision": "fp32"},
}


class Files:
    """A checkout of the given files, by commit."""

    commit = COMMIT

    def __init__(self, *files: tuple[str, str, str]) -> None:
        self._files = {(path, commit): text for path, commit, text in files}

    def paths(self, folder: str = "") -> list[str]:
        return sorted(path for path, commit in self._files if commit == COMMIT and path.startswith(folder))

    def text(self, path: str, commit: str = "") -> str:
        return self._files.get((path, commit or self.commit), "")

    def changes(self, path: str) -> list[str]:
        return [f"93ebf8d72f{'0' * 30}", EARLIER] if self.text(path) else []

    def messages(self) -> Iterator[tuple[str, str]]:
        yield COMMIT, MESSAGE


def golden(**metrics: dict[str, Any]) -> str:
    return json.dumps({name.replace("_", "-"): {"values": values} for name, values in metrics.items()})


def test_detectors_are_read() -> None:
    path = "results_full_gpu/yolox-s__pytorch__cuda__card__1.json"
    other = "results_full_gpu/yolox-s__onnx__cuda__card__1.json"
    [run] = detectors.runs(Files((path, COMMIT, json.dumps(DETECTION)), (other, COMMIT, "{}")))
    assert (run.model, run.value_bytes, run.sizes, run.torch) == ("yolox-s", round(86.5 * MIB), "3x640x640", "2.11.0+cu128")
    assert run.options == {"libreyolo": "1.1.1", "max_det": 300, "images": 500}


def test_submissions_have_no_license_and_stay_outside() -> None:
    result = DETECTION | {"runtime": {"precision": "fp16"}}
    path = "submissions/yolox-s__pytorch__cuda__card__1.json"
    on_host = "submissions/yolox-s__pytorch__cuda__card__2.json"
    files = Files((path, COMMIT, json.dumps(result)), (on_host, COMMIT, json.dumps(result | {"memory": {"peak_vram_mb": 0.0}})))
    [run] = detectors.submissions(files)
    assert (run.repository, run.licence, run.path, run.precision) == (detectors.SUBMISSIONS, "", path, "fp16")
    assert not is_allowed(run, sources())


def test_tables_of_segment_anything_are_read() -> None:
    columns = (
        "technique,sam_commit_name,pytorch_version,sam_model_type,batch_size,memory(MiB),use_compile,use_half,compress,"
        "use_nested_tensor,use_rel_pos,num_batches"
    )
    table = [
        columns, "fp32,default,2.2.0,vit_b,8,100,False,None,None,False,True,9",
        "int8,local-fork,2.2.0,vit_h,32,200,max-autotune,torch.bfloat16,dynamic_quant,True,True,9",
        "bf16,codesign,2.2.0,ERROR,,,,,,,,",
    ]  # fmt: skip
    eager, compiled = segment_anything.runs(Files(("experiments/results.csv", COMMIT, "\n".join(table))))
    assert (eager.value_bytes, eager.precision, eager.traits) == (100 * MIB, "fp32", "varied batches")
    assert (compiled.batch, compiled.precision, compiled.traits) == (32, "bfloat16", "compiled, varied batches")
    assert compiled.options["compress"] == "dynamic_quant"


def test_tables_of_messages_are_read_with_the_configuration_of_their_commit() -> None:
    found = list(train_pipelines.runs(Files((f"{PIPELINES}/base.yml", COMMIT, PIPELINE))))
    assert [(run.options["name"], run.figure, run.value_bytes) for run in found] == [
        ("base", "allocated peak", 43_300 * MIB),
        ("base", "reserved peak", 66_510 * MIB),
        ("base", "device at print", 68_540 * MIB),
        ("stash (this diff)", "allocated peak", 31_970 * MIB),
    ]
    assert {(run.cards, run.traits, run.model) for run in found} == {(2, "several ranks", "test_sparse_nn of base")}
    assert found[0].options["embedding_feature_dim"] == 256
    assert [run.options["pipeline"] for run in found] == ["sparse", "sparse", "sparse", "stash"]


def test_tables_of_scripts_are_read() -> None:
    script = """
-----------------------------------------------------------
| Model         | Batch Size | Epochs |  Time | Peak GPU Usage |
-----------------------------------------------------------
| BYOL          |        128 |    200 |  9 Min |      1.6 GByte |
| MAE (ViT-S)   |        256 |    800 |  9 Min |      4.4 GByte |
-----------------------------------------------------------
| Moco (*)      |        512 |    200 |  9 Min |      5.6 GByte |
"""
    path = "docs/source/getting_started/benchmarks/cifar10_benchmark.py"
    first, second, third = self_supervised.runs(Files((path, COMMIT, script)))
    assert (first.model, first.batch, first.value_bytes, first.sizes) == ("BYOL, Res18", 128, round(1.6 * GIB), "3x32x32")
    assert (second.model, second.traits) == ("MAE, ViT-S", "")
    assert (third.model, third.traits) == ("Moco, Res18", "convolutions")


def test_tables_in_markdown_end_at_other_lines() -> None:
    assert list(tables("| a | b |\n|:--|--:|\n| 1 | 2 |\ntext\n|c|\n|3|")) == [[["a", "b"], ["1", "2"]], [["c"], ["3"]]]


def test_golden_values_are_read_with_their_recipe_and_container() -> None:
    values = golden(lm_loss={"1": 9.0}, mem_max_allocated_bytes={"1": "nan", "2": 5e9, "3": 6e9, "4": 4e9})
    [run] = golden_values.runs(
        Files(
            (f"{TEST}/golden_values_dev_dgx_h100.json", COMMIT, values),
            (f"{TEST}/golden_values_dev_dgx_h100_2nd.json", COMMIT, values),
            (f"{TEST}/model_config.yaml", COMMIT, CONFIG),
            ("tests/test_utils/recipes/h100/gpt.yaml", COMMIT, RECIPE),
            ("docker/.ngc_version.dev", COMMIT, "nvcr.io/nvidia/pytorch:26.06-py3"),
            ("docker/.ngc_version.dev", EARLIER, "nvcr.io/nvidia/pytorch:25.09-py3"),
        )
    )
    assert (run.value_bytes, run.batch, run.sizes, run.precision) == (6_000_000_000, 4, "1024", "bf16")
    assert run.model == "gpt 12 layers of 512, 8 experts"
    assert run.job == f"pretrain_gpt.py with {TEST}/model_config.yaml"
    assert (run.cards, run.traits, run.card, run.quality) == (16, "several ranks", "H100 80GB", "repeatable")
    assert run.options["container"] == "nvcr.io/nvidia/pytorch:25.09-py3"
    assert (run.torch, run.cuda) == ("2.9.0a0+50eac811a6", "13.0")
    assert run.script == digest(CONFIG, digits=12)


@pytest.mark.parametrize(
    ("values", "config"),
    [
        (golden(lm_loss={"1": 9.0}), CONFIG),
        (golden(mem_max_allocated_bytes={"1": "nan"}), CONFIG),
        ("<<<<<<< not JSON", CONFIG),
        (golden(mem_max_allocated_bytes={"1": 5e9}), ""),
        (golden(mem_max_allocated_bytes={"1": 5e9}), "MODEL_ARGS:\n  --num-layers: 12\n  --hidden-size: 8\n"),
    ],
    ids=["no peak", "no number", "no JSON", "no configuration", "no training"],
)
def test_other_golden_values_are_left_out(values: str, config: str) -> None:
    assert golden_values.run_of(f"{TEST}/golden_values_dev_dgx_h100.json", values, config, COMMIT, None, "") is None


def test_run_of_unknown_recipe_is_not_repeatable() -> None:
    values = golden(mem_max_allocated_bytes={"1": 5e9})
    run = golden_values.run_of(f"{TEST}/golden_values_lts_dgx_a100.json", values, CONFIG, COMMIT, None, "")
    assert run is not None
    assert (run.cards, run.quality, run.torch) == (None, "partly", "")


def test_container_before_its_own_file_is_that_of_the_pipeline() -> None:
    path = f"{TEST}/golden_values_lts_dgx_a100.json"
    pipeline = "BASE_IMAGE: nvcr.io/nvidia/pytorch:24.01-py3\nBASE_IMAGE: nvcr.io/nvidia/pytorch:25.06-py3\n"
    [run] = golden_values.runs(
        Files(
            (path, COMMIT, golden(mem_max_allocated_bytes={"1": 5e9})),
            (f"{TEST}/model_config.yaml", COMMIT, CONFIG),
            (".gitlab/stages/01.build.yml", EARLIER, pipeline),
        )
    )
    assert run.options["container"] == "nvcr.io/nvidia/pytorch:24.01-py3"


def test_every_collected_row_may_be_distributed_and_names_its_page() -> None:
    assert {run.repository for run in RUNS} == set(COLLECTORS) & set(sources())
    for run in RUNS:
        assert run.licence == sources()[run.repository].licence
        assert run.licence in LICENCES
        assert re.fullmatch("[0-9a-f]{40}", run.commit)
        assert run.path or run.repository == train_pipelines.REPOSITORY
        assert run.figure in FIGURES
        assert run.quality in QUALITIES
        assert set(filter(None, run.traits.split(", "))) <= set(TRAITS)
        assert run.measured_bytes > MIB
        assert run.job
        assert run.unit_rule
        assert run.reason


def test_collected_rows_are_screened_and_differ() -> None:
    assert [run for run in RUNS if run.quality != "screened" and screened(run) != run] == []
    assert len({run.key for run in RUNS}) == len(RUNS)


def test_collected_rows_are_read_as_written(tmp_path: Path) -> None:
    write_runs(RUNS, tmp_path / "collected.csv")
    assert (tmp_path / "collected.csv").read_bytes() == COLLECTED.read_bytes()
