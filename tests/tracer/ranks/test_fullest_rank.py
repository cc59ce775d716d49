"""Selection of the rank that stands for the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramcast.jobs.ranks import ALONE, World
from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.format.serving import servings_of
from vramcast.tracer.format.trace import COURSE, RANKS, SERVING, Trace
from vramcast.tracer.nullgpu.child.subprocesses import Process, SharedFolder
from vramcast.tracer.nullgpu.fullest_rank import fullest_rank
from vramcast.tracer.protocol.job_result import Result


def result(reserved: int, status: str = "ok", ended: str = "", **more: Any) -> Result:
    """Return the result of a rank."""
    header = {"peaks": {"allocated": reserved - 1, "reserved": reserved}, COURSE: {"ended": ended}}
    trace = Trace.build({"action": [], "size_bytes": [], "block": [], "address": []}, header=header)
    return Result(status, trace=trace if status != "error" else None, **more)


def test_returns_rank_with_most_reserved() -> None:
    found = fullest_rank(
        {0: result(100), 7: result(300, answers={"objects": 2}), 3: result(200, answers={"objects": 1})}, World(8)
    )
    assert found.trace is not None
    assert found.trace.header[RANKS] == {
        "world_size": 8, "per_node": 8, "fullest": 7, "peaks": [[0, 99, 100], [7, 299, 300], [3, 199, 200]],
    }  # fmt: skip
    assert [(entry.code, entry.name, entry.hits) for entry in found.ledger] == [(Code.ABSENT, "objects", 3)]
    alone = result(100)
    assert fullest_rank({0: alone}, ALONE) is alone


def test_keeps_rank_with_least_reserved() -> None:
    results = {0: result(300), 3: result(100), 7: result(200)}
    found = fullest_rank(results, World(8))
    assert found.beside is not None
    assert (found.beside[0], found.beside[1].header["peaks"]["reserved"]) == (3, 100)
    assert fullest_rank({0: result(300)}, World(8)).beside is None


def test_counts_foreign_contexts_on_first_card() -> None:
    touched = [Entry(CallHandling.CONTEXT, "0", 1), Entry(CallHandling.CONTEXT, "7", 1)]
    first = fullest_rank({0: result(300, ledger=touched[:1]), 7: result(200, ledger=touched)}, World(8))
    assert first.trace is not None
    assert first.trace.header[RANKS]["strangers"] == 7
    assert "(7 there)" in first.notes[0]
    other = fullest_rank({0: result(200, ledger=touched[:1]), 7: result(300, ledger=touched)}, World(8))
    assert other.trace is not None
    assert "strangers" not in other.trace.header[RANKS]  # its card is another one
    assert fullest_rank({0: result(200, ledger=touched[:1]), 7: result(300, ledger=touched[1:])}, World(8)).notes == ()


def test_returns_failed_rank() -> None:
    failed = fullest_rank({0: result(300), 7: result(0, "error", message="raised ValueError: x")}, World(8))
    assert (failed.status, failed.message) == ("error", "raised ValueError: x (rank 7 of 8)")
    assert fullest_rank({0: result(300), 7: result(200, "oom")}, World(8)).status == "oom"
    assert fullest_rank({0: result(300), 7: result(200, ended="it raised x")}, World(8)).ended == "it raised x (rank 7 of 8)"


def test_rank_without_requests_has_failed() -> None:
    failed = fullest_rank({0: result(300), 7: result(0, ended="it waited")}, World(8))
    assert (failed.status, failed.error) == ("error", "CannotEstimate")
    assert failed.message == "The job ended early: it waited (rank 7 of 8)"


def test_names_rank_with_unused_card() -> None:
    (note,) = fullest_rank({0: result(300), 7: result(0)}, World(8)).notes
    assert note.startswith("rank 7 requested no memory on its own card")


def test_rank_is_process_that_uses_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(*processes: Process) -> SharedFolder:
        monkeypatch.setattr(SharedFolder, "processes", lambda self: list(processes))
        return SharedFolder(Path())

    own, idle = result(100), result(0)
    started = Process("train.py", result(200))
    assert left().only(own) is own
    assert left(started).only(idle) is started.result
    failed = result(0, "error", error="JobError", message="raised ProcessRaisedException: x")
    assert left(started).only(failed).ended == "it raised ProcessRaisedException: x"
    for refused in (left(started).only(own), left(started, started).only(idle)):
        assert (refused.status, refused.error) == ("error", "CannotEstimate")
        assert "Start ranks with torchrun" in refused.message


def engine(tokens: int, *, reserved: int, starts: bool = True) -> Result:
    """Return the result of an engine's rank."""
    found = result(reserved)
    assert found.trace is not None
    found.trace.header[SERVING] = {"kv_cache_tokens": tokens, **({"starts": True} if starts else {})}
    return found


def test_engine_has_as_many_tokens_as_its_scarcest_rank() -> None:
    scarce = fullest_rank({0: engine(50, reserved=300), 1: engine(40, reserved=200)}, World(2)).trace
    assert scarce is not None
    assert scarce.header[RANKS]["fullest"] == 1


def test_rank_of_engine_that_did_not_start_stands_for_all() -> None:
    unready = fullest_rank({0: engine(40, reserved=300), 1: engine(50, reserved=200, starts=False)}, World(2)).trace
    assert unready is not None
    assert "starts" not in unready.header[SERVING]


def test_each_rank_of_engine_has_its_own_accounts() -> None:
    found = fullest_rank({0: engine(50, reserved=300), 1: engine(40, reserved=200)}, World(2)).trace
    assert found is not None
    assert {number: one and one.kv_cache_tokens for number, one in servings_of(found).items()} == {"0": 50, "1": 40}
