"""Tests of commit messages with commands and output: on made-up ones, without any run."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from benchmarks.accuracy.logs.titan import Typed, card_of, complete, export, launch, rows_of, table_rows, typed_command

ROW = {
    "url": "https://example.org/0123456789", "torch": "nightly of 2025-07-01 (date of the commit)", "value_mib": "2048.0",
    "job": 'CONFIG_FILE="./a.toml" NGPU=4 ./run_train.sh --training.steps=100', "gpu": "capacity 95.0 GiB (from the % column)",
    "notes": "A change | steps 1..90, first 1.00 last 2.00 GiB | cmd in the same block | context: ``` / Before / ```",
}  # fmt: skip
SCRIPT = """
NGPU=${NGPU:-"8"}
CONFIG_FILE=${CONFIG_FILE:-"./b.toml"}
PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True" \\
torchrun --nproc_per_node=${NGPU} -m titan.train --job.config_file ${CONFIG_FILE} "$@"
"""


def test_takes_rows_with_their_own_command() -> None:
    (row,) = rows_of([ROW, {**ROW, "notes": "cmd INHERITED"}])
    assert (row.value_mib, row.steps, row.capacity_gib, row.release) == (2048.0, 10, 95.0, "2.8")
    assert row.tree == "0123456789^"  # the block belongs to the code before the change
    assert card_of(row, "") == "h100"
    assert card_of(row, "CUDA capacity: NVIDIA PG509-210 with 79.14GiB memory") == "a100-80gb"


def test_has_commands_of_published_tables() -> None:
    published = {"source": "llama3_h100_202412_torchtitan.md", "job": "FSDP / 5,605", "value_mib": "68608.0"}
    row, *page = table_rows([published, {**published, "job": "FSDP 8, CP 1"}])
    assert [one.value_mib / 1024 for one in page] == [77.0, 62.0, 76.8, 61.8, 71.9, 83.9, 84.2, 84.0, 84.5]
    assert all("--training.compile" in one.typed for one in page)
    assert ["float8" in one.typed for one in page] == [False] * 2 + [True] * 7
    assert page[-1].typed.endswith("--training.seq_len 262144 --experimental.context_parallel_degree 8")
    typed = typed_command(row.typed)
    assert typed is not None
    assert typed.words[:3] == ("--nproc_per_node=8", "--nnodes=16", "train.py")
    assert typed.told == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert (row.release, row.steps) == ("2.6", 10)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ROW["job"], Typed({"CONFIG_FILE": "./a.toml", "NGPU": "4"}, "./run_train.sh", ("--training.steps=100",))),
        ("NGPU=1 ./run_train.sh --one NGPU=2 ./run_train.sh --two", Typed({"NGPU": "2"}, "./run_train.sh", ("--two",))),
        ("`NGPU=8 ./run_llama_train.sh` using 4-way Tensor Parallel",
         Typed({"NGPU": "8"}, "./run_llama_train.sh", ("--training.tensor_parallel_degree", "4"))),
        ("./run_train.sh + NGPU=8 + torchrun --nproc_per_node=8 -m titan.train", Typed({}, "./run_train.sh", ())),
        ("+ NGPU=4 + torchrun --nproc_per_node=4 train.py --x", Typed({}, "", ("--nproc_per_node=4", "train.py", "--x"))),
        ("[a.toml](https://example.org/a.toml).", None),
    ],
)  # fmt: skip
def test_reads_typed_command(text: str, expected: Typed | None) -> None:
    assert typed_command(text) == expected


@pytest.mark.integration
def test_reads_launch_from_projects_script(tmp_path: Path) -> None:
    (tmp_path / "run_train.sh").write_text(SCRIPT)
    found = launch(tmp_path, Typed({"NGPU": "4", "NCCL_DEBUG": "WARN"}, "./run_train.sh", ("--training.steps=3",)))
    assert found.command == [
        "env", "NCCL_DEBUG=WARN", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "torchrun", "--nproc_per_node=4", "-m",
        "titan.train", "--job.config_file", "./b.toml", "--training.steps=3",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="not in this commit"):
        launch(tmp_path, Typed({}, "./run_llama_train.sh", ()))


@pytest.mark.integration
def test_adds_offline_replacements_to_tree(tmp_path: Path) -> None:
    repository, tree = tmp_path / "repository", tmp_path / "tree"
    repository.mkdir()
    (repository / "a.toml").write_text(
        'tokenizer_path = "./assets/tokenizer/llama/tokenizer.model"\nhf_assets_path = "./assets/hf/deepseek"'
    )
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    export(repository / ".git", "HEAD", tree)
    complete(tree, tmp_path / "shared", ())
    words = (tree / "assets/tokenizer/llama/tokenizer.model").read_text().splitlines()
    assert len({base64.b64decode(word.split()[0]) for word in words}) == 128_000
    assert (tree / "assets/hf/deepseek/tokenizer.json").exists()
    assert (tree / "allenai/c4/data.json").exists()
    with pytest.raises(ValueError, match="does not have 0123"):
        export(repository / ".git", "0123", tree)
