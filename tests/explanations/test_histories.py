"""Explanations of memory snapshots: causes, lines, changes, and damaged files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import vramcast
from benchmarks.hostile.explanations import MIB, Program, histories, unproved
from vramcast.core.errors import TraceFileError, UsageError
from vramcast.explanations import causes

CASES = 16  # of `histories`


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Path, int]]:
    """Return the seeded failures: cause, snapshot and card by name."""
    found = {name: (cause, path, card) for name, cause, path, card in histories(tmp_path_factory.mktemp("histories"))}
    assert len(found) == CASES
    return found


def test_each_seeded_failure_has_its_cause_and_proved_changes(failures: dict[str, tuple[str, Path, int]]) -> None:
    for name, (cause, path, card) in failures.items():
        found = vramcast.explain(path, memory=card or None)
        assert (found.cause, found.is_certain) == (cause, True), name
        assert len(str(found).splitlines()) <= 7
        assert found.changes, name
        if name in ("7 MiB kept a step", "holes, seed 0", "memory fraction", "another process"):  # seconds in plain Python
            assert unproved(path, found, card) == [], name


def test_growth_names_its_line_and_what_to_free(failures: dict[str, tuple[str, Path, int]]) -> None:
    found = vramcast.explain(failures["40 MiB kept a step"][1])
    assert "train.py:33" in found.reason
    assert "free what each step keeps at train.py:33" in [one.change for one in found.changes]
    assert found.card.kept_bytes == 4 * 40 * MIB


def test_holders_are_lines_of_the_user_not_of_torch(failures: dict[str, tuple[str, Path, int]]) -> None:
    found = vramcast.explain(failures["first forward, 40 MiB"][1])
    lines = {name: size for kind, name, size in found.holders if kind == "line"}
    assert lines["train.py:80"] == 6 * 16 * MIB
    assert set(lines) == {"train.py:80", "train.py:20", "model.py:7"}
    assert found.where == "model.py:7"
    assert sum(lines.values()) == found.card.live_bytes


def test_fragmentation_is_cured_by_a_setting(failures: dict[str, tuple[str, Path, int]]) -> None:
    found = vramcast.explain(failures["holes, seed 1"][1])
    assert found.changes[0].change == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert found.changes[0].proof == "replayed"
    assert set(found.changes[0].peaks) == {"allocated", "reserved"}


def test_the_cards_size_shows_another_process(failures: dict[str, tuple[str, Path, int]]) -> None:
    _, path, card = failures["another process"]
    assert vramcast.explain(path).cause != causes.OTHERS  # a snapshot does not hold the card's size
    found = vramcast.explain(path, memory=card)
    assert "no other process on the card" in [one.change for one in found.changes]
    with pytest.raises(UsageError, match=r"card with 1000\.0 MiB or more"):
        vramcast.explain(path, memory=500 * MIB)


def finished(path: Path) -> Path:
    """Write the history of a program that ran to its end: 96 MiB of model, and at most 6 x 40 + 5 + 40 MiB more."""
    program = Program()
    program.step(40)
    program.take(600, "zeros@train.py:9")
    program.run(path, 600)
    snapshot = pickle.loads(path.read_bytes())
    snapshot["device_traces"][0] = [entry for entry in snapshot["device_traces"][0] if entry["action"] != "oom"]
    path.write_bytes(pickle.dumps(snapshot))
    return path


def test_a_history_without_an_error_is_replayed_on_the_card(tmp_path: Path) -> None:
    path = finished(tmp_path / "snapshot.pickle")
    with pytest.raises(UsageError, match="name the card"):
        vramcast.explain(path)
    small = vramcast.explain(path, device="t4", memory="400MiB")
    assert (small.cause, small.exit_code) == (causes.TOO_LARGE, 0)
    assert small.changes[-1].change.startswith("a card of ")
    large = vramcast.explain(path, device="t4")
    assert (large.cause, large.exit_code) == (None, 4)
    assert "runs on this card" in str(large)


def damaged(kind: str, data: bytes) -> bytes:
    """Return a snapshot's bytes, damaged in some way."""
    return {"empty": b"", "blank": b" \n", "truncated": data[: len(data) // 2], "binary": b"\x7fELF\0\0\0"}[kind]


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [("empty", UsageError, "is empty"), ("blank", UsageError, "is empty"), ("truncated", TraceFileError, "cannot be read"),
     ("binary", UsageError, "neither a text nor a snapshot")],
)  # fmt: skip
def test_rejects_other_files(tmp_path: Path, kind: str, error: type[Exception], words: str) -> None:
    path = finished(tmp_path / "snapshot.pickle")
    path.write_bytes(damaged(kind, path.read_bytes()))
    with pytest.raises(error, match=words):
        vramcast.explain(path)


def test_never_unpickles(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[Trap()]]}))
    with pytest.raises(TraceFileError, match="rejected"):
        vramcast.explain(path)
    assert not (tmp_path / "ran").exists()


def test_rejects_a_snapshot_without_history(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    with pytest.raises(TraceFileError, match="no history"):
        vramcast.explain(path)


def test_damaged_frames_do_not_matter(tmp_path: Path) -> None:
    path = Program(90).run(tmp_path / "snapshot.pickle", 1000)
    snapshot = pickle.loads(path.read_bytes())
    for entry, frames in zip(snapshot["device_traces"][0], ([7], "text", [{"name": 1, "filename": None}], [{}]), strict=False):
        entry["frames"] = frames
    path.write_bytes(pickle.dumps(snapshot))
    assert vramcast.explain(path).cause == causes.TOO_LARGE
