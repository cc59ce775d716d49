"""The list of jobs: independent of the cut, without repeats, in fixed proportions, and valid."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.core.plain import from_plain, to_plain
from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.workload_list import FAMILIES, PROPORTIONS, is_capped, is_repeated, workloads
from vramcast.hardware.cards import device
from vramcast.jobs.job import TensorSpec

COUNT = 5000
CONVOLVING = {"cnn", "torchvision", "timm"}


@pytest.fixture(scope="module")
def entries() -> list[tuple[str, Workload]]:
    return workloads(1, 0, COUNT)


# ------------------------------------------------------------------------------------------------ the list
def test_list_depends_only_on_seed(entries: list[tuple[str, Workload]]) -> None:
    assert workloads(1, 0, 200) == entries[:200]
    assert not {repr(w) for _, w in workloads(2, 0, 200)} & {repr(w) for _, w in entries[:200]}


def test_id_is_seed_and_index(entries: list[tuple[str, Workload]]) -> None:
    assert [id for id, _ in entries] == [f"1-{index}" for index in range(COUNT)]
    assert workloads(1, 7, 0) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 120), st.integers(0, 60))
def test_shard_is_a_slice_of_the_list(seed: int, first: int, count: int) -> None:
    assert workloads(seed, first, count) == workloads(seed, 0, 180)[first : first + count]


def test_list_has_no_duplicates(entries: list[tuple[str, Workload]]) -> None:
    assert len({repr(workload) for _, workload in entries}) == COUNT


def test_redraws_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine possible draws and eight entries make repeated draws certain."""
    monkeypatch.setattr("vramcast.datasets.workloads.workload_list.PROPORTIONS", {"mlp": 1})
    monkeypatch.setattr("vramcast.datasets.workloads.workload_list._BLOCK", 1)
    monkeypatch.setitem(FAMILIES, "mlp", lambda draw: Workload(name=str(draw.integer(1, 9))))
    names = [workload.name for _, workload in workloads(1, 0, 8)]
    assert len(set(names)) == 8


def test_blocks_have_fixed_proportions(entries: list[tuple[str, Workload]]) -> None:
    size = sum(PROPORTIONS.values())
    families = [workload.family for _, workload in entries]
    blocks = [families[start : start + size] for start in range(0, COUNT, size)]
    assert all(Counter(block) == PROPORTIONS for block in blocks)
    assert len({tuple(block) for block in blocks}) > 0.9 * len(blocks)


def test_tenths_are_repeated_and_capped(entries: list[tuple[str, Workload]]) -> None:
    repeated = [index for index in range(COUNT) if is_repeated(index)]
    capped = [index for index in range(COUNT) if is_capped(index)]
    assert len(repeated) == len(capped) == COUNT // 10
    assert not set(repeated) & set(capped)
    for marked in (repeated, capped):
        shares = Counter(entries[index][1].family for index in marked)
        for family, times in PROPORTIONS.items():
            assert shares[family] == pytest.approx(len(marked) * times / 20, rel=0.3)


@pytest.mark.integration
def test_list_needs_no_torch() -> None:
    source = (
        "import sys; from vramcast.datasets.workloads.workload_list import workloads; print(len(workloads(1, 0, 100)));"
        "print(sorted({'torch', 'torchvision', 'timm', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    reply = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert reply.stdout.split() == ["100", "[]"]


# ------------------------------------------------------------------------------------------------ each entry
def test_workloads_are_jobs_and_plain_data(entries: list[tuple[str, Workload]]) -> None:
    card = device("h200")
    for _, workload in entries:
        assert from_plain(Workload, json.loads(json.dumps(to_plain(workload)))) == workload
        job = workload.job(card)
        assert job.training.mode == "train"
        assert job.training.steps >= 3
        assert job.target == workload.target


def test_labels_fit_batch(entries: list[tuple[str, Workload]]) -> None:
    for _, workload in entries:
        sizes = {TensorSpec.parse(text).shape[0] for text in _tensors(workload)}
        assert len(sizes) == 1
        assert min(sizes) >= 1
        if workload.family in (*CONVOLVING, "mlp"):  # a batch norm over one value raises
            assert min(sizes) >= 2


def _tensors(workload: Workload) -> list[str]:
    return [text.partition("=")[2] if text[0].isalpha() else text for text in (*workload.batch, workload.labels) if text]


def test_options_appear_only_where_meaningful(entries: list[tuple[str, Workload]]) -> None:
    for _, workload in entries:
        shape = TensorSpec.parse(_tensors(workload)[0]).shape
        assert not workload.channels_last or (workload.family in CONVOLVING and len(shape) == 4)
        assert not workload.checkpointing or workload.family in ("hf", "timm")
        assert not workload.cudnn_benchmark or workload.family in CONVOLVING
        assert (workload.num_classes is not None) == (workload.family in ("torchvision", "timm"))
        assert (workload.labels is None) == (workload.family == "hf")
        assert (workload.target or "").startswith(
            {"hf": "hf:", "timm": "timm:", "torchvision": "torchvision:"}.get(
                workload.family or "", f"vramcast.datasets.workloads.networks:{workload.family}?"
            )
        )


def test_every_option_value_occurs(entries: list[tuple[str, Workload]]) -> None:
    seen = {name: Counter(getattr(workload, name) for _, workload in entries) for name in _OPTIONS}
    assert {name: set(counts) for name, counts in seen.items()} == _OPTIONS
    assert 0.7 < seen["alloc_conf"][""] / COUNT < 0.9
    assert max(seen["precision"], key=lambda name: seen["precision"][name]) == "fp32"


_OPTIONS = {
    "precision": {"fp32", "amp-bf16", "amp-fp16", "bf16"},
    "optimizer": {
        "sgd", "sgdm", "adam", "adamw", "rmsprop", "adagrad", "adam:fused=true", "adamw:fused=true", "adamw:foreach=false",
        "sgdm:foreach=false",
    },
    "zero_grad": {"step-start", "before-backward", "after-step"},
    "overlap_inputs": {True, False},
    "checkpointing": {True, False},
    "channels_last": {True, False},
    "cudnn_benchmark": {True, False},
    "alloc_conf": {
        "", "expandable_segments:True", "max_split_size_mb:32", "max_split_size_mb:128", "max_split_size_mb:512",
        "garbage_collection_threshold:0.6", "garbage_collection_threshold:0.8", "roundup_power2_divisions:2",
        "roundup_power2_divisions:8",
    },
}  # fmt: skip
