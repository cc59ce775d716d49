"""The plan file: what is written is read back, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import TraceFileError
from vramcast.core.plain import to_plain
from vramcast.plans.runtime.plan_file import PlanFile, PlannedJob, PlannedPeriod, PlannedPool, RankPlan

POOL = PlannedPool(2048, (512, 1024), (0, 512), PlannedPeriod(0, 1, 2))
PLAN = PlanFile("a job", PlannedJob("train.py", "ab", "2.11.0", "a card", 2), (RankPlan(1, 4, {"birth": (0, 1)}, POOL),))


def test_file_is_read_as_written(tmp_path: Path) -> None:
    PLAN.write(tmp_path / "plan.json")
    assert PlanFile.read(tmp_path / "plan.json") == PLAN
    assert PLAN.of_rank(1).pool == POOL


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("version",), 1, "version 2: make the plan again"),
        (("format",), "other", "is not a 'vramcast-plan'"),
        (("ranks", 0, "pool", "offset_bytes"), [0], "one offset and one size"),
        (("ranks", 0, "pool", "offset_bytes"), [0, 1536], "outside the pool of 2048"),
        (("ranks", 0, "pool", "size_bytes"), [512, 1000], "unaligned"),
        (("ranks", 0, "pool", "size_bytes"), [512, -512], "a number from 0"),
        (("ranks", 0, "pool", "height_bytes"), "x", "a whole number"),
        (("ranks", 0, "pool", "period", "end_block"), 3, "its period is outside its 2 blocks"),
        (("ranks", 0, "pool", "period", "unplanned"), [1], "an unplanned block is outside"),
        (("extra",), 1, "has the field 'extra'"),
    ],
)
def test_damage_is_named(tmp_path: Path, path: tuple[Any, ...], value: Any, words: str) -> None:
    data = to_plain(PLAN)
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(TraceFileError, match=words):
        PlanFile.read(tmp_path / "plan.json")


def test_missing_file_and_missing_rank_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="cannot be read"):
        PlanFile.read(tmp_path / "none.json")
    (tmp_path / "plan.json").write_bytes(b"{")
    with pytest.raises(TraceFileError, match="is not JSON"):
        PlanFile.read(tmp_path / "plan.json")
    with pytest.raises(TraceFileError, match="no rank 0, only 1"):
        PLAN.of_rank(0)
