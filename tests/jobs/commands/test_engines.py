"""The ranks of a serving engine, from its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.jobs.commands.engines import world_of
from vramcast.jobs.commands.reading import read
from vramcast.jobs.ranks import ALONE, World


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["vllm", "serve", "org/name"], 1),
        (["/venv/bin/vllm", "serve", "org/name", "-tp", "4"], 4),
        (["vllm", "serve", "org/name", "--tensor-parallel-size=2", "-pp", "2"], 4),
        (["vllm", "serve", "org/name", "--tensor_parallel_size", "2", "--other", "8"], 2),
        (["vllm.entrypoints.openai.api_server", "--model", "org/name", "-tp=8"], 8),
        (["vllm", "serve", "org/name", "-tp", "many"], 1),
        (["vllm", "serve", "org/name", "-tp"], 1),
        (["vllm", "bench", "-tp", "2"], 1),
        (["train.py", "-tp", "2"], 1),
    ],
)
def test_engine_starts_rank_for_each_card(words: list[str], size: int) -> None:
    assert world_of(words) == (World(size) if size > 1 else ALONE)


def test_command_has_ranks_of_engine(tmp_path: Path) -> None:
    (tmp_path / "vllm").write_text("#!/usr/bin/python3\n")
    (tmp_path / "vllm").chmod(0o755)
    command = read(["vllm", "serve", "org/name", "-tp", "2"], {"PATH": str(tmp_path)})
    assert command.world.size == 2
    assert {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items() <= dict(command.environment).items()
