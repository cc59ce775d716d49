"""The pool: limits of time and memory, the replacement of workers that exceed them, and the length of the queue."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")
from vramcast.cluster.service.workers import Workers, WorkerSlot
from vramcast.core.errors import Overloaded, TimeLimit, WorkerError  # after the line above

pytestmark = pytest.mark.integration
MIB = 1 << 20
LOGGER = logging.getLogger("vramcast.cluster.service.workers")

WORKER = """
import json, os, subprocess, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "sleep":
        time.sleep(60)
    elif asked["do"] == "exit":
        os._exit(1)
    elif asked["do"] == "fill":
        held = bytearray(300 << 20)
        time.sleep(60)
    elif asked["do"] == "fork":
        child = [sys.executable, "-c", "b = bytearray(200 << 20); import time; time.sleep(60)"]
        children = [subprocess.Popen(child) for _ in "ab"]
        open(asked["note"], "w").write(" ".join(str(child.pid) for child in children))
        time.sleep(60)
    elif asked["do"] == "warn":
        print(*asked["lines"], sep="\\n", file=sys.stderr, flush=True)
    elif asked["do"] == "fail":
        print(json.dumps({"error": {"kind": "worker", "message": "x"}, "traceback": "Traceback: x"}), flush=True)
        continue
    elif asked["do"] == "babble":
        print("no JSON", flush=True)
    said = json.dumps({"pid": os.getpid(), "said": asked["do"], "folder": os.environ["TMPDIR"]})
    print(json.dumps({"error": {"kind": "usage", "message": said}}), flush=True)
"""


async def message_of(workers: Workers, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the message in a worker's answer."""
    said: dict[str, Any] = json.loads((await workers.ask(asked))["error"]["message"])
    return said


def within(
    use: Callable[[Workers], Awaitable[Any]], tmp_path: Path, *, count: int = 1, queue: int = 8, time_s: float = 30.0
) -> Any:
    """Return the result of `use` with a pool of scripted workers."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)

    async def whole() -> Any:
        workers = Workers([WorkerSlot([sys.executable, str(script)]) for _ in range(count)], queue, time_s, 250 * MIB)
        await workers.start()
        try:
            return await use(workers)
        finally:
            await workers.stop()

    return asyncio.run(whole())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:  # it ended in between
        return False


def test_worker_stays_warm(tmp_path: Path) -> None:
    async def use(workers: Workers) -> Any:
        return [await message_of(workers, {"do": "answer"}) for _ in range(3)]

    answers = within(use, tmp_path)
    assert len({one["pid"] for one in answers}) == 1
    assert {one["said"] for one in answers} == {"answer"}


@pytest.mark.parametrize(
    ("do", "time_s", "error", "said"),
    [
        ("sleep", 0.5, TimeLimit, "--job-timeout"),
        ("fill", 30.0, WorkerError, "--job-memory"),
        ("exit", 30.0, WorkerError, "crashed"),
        ("babble", 30.0, WorkerError, "an invalid answer"),
    ],
)
def test_replaces_worker_beyond_limit(tmp_path: Path, do: str, time_s: float, error: type[Exception], said: str) -> None:
    async def use(workers: Workers) -> Any:
        first = (await message_of(workers, {"do": "answer"}))["pid"]
        with pytest.raises(error, match=said):
            await message_of(workers, {"do": do})
        second = (await message_of(workers, {"do": "answer"}))["pid"]
        return first, second, workers.replaced

    first, second, replaced = within(use, tmp_path, time_s=time_s)
    assert first != second
    assert replaced == 1
    assert not is_alive(first)


def test_child_processes_count_and_end_with_worker(tmp_path: Path) -> None:
    note = tmp_path / "children"

    async def use(workers: Workers) -> Any:
        with pytest.raises(WorkerError, match="--job-memory"):
            await message_of(workers, {"do": "fork", "note": str(note)})

    within(use, tmp_path)
    children = [int(pid) for pid in note.read_text().split()]
    assert len(children) == 2
    latest_s = time.monotonic() + 30
    while any(map(is_alive, children)):  # the kernel ends a killed process asynchronously
        assert time.monotonic() < latest_s
        time.sleep(0.01)


def test_full_queue_rejects_at_once(tmp_path: Path) -> None:
    async def use(workers: Workers) -> Any:
        asked = [asyncio.create_task(message_of(workers, {"do": "sleep"})) for _ in range(3)]  # one is in work, two wait
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded) as refused:
            await message_of(workers, {"do": "answer"})
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        return refused.value.retry_after_s, await message_of(workers, {"do": "answer"})

    retry_after_s, answer = within(use, tmp_path, queue=2)
    assert retry_after_s >= 1
    assert answer["said"] == "answer"


def test_stopped_pool_starts_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    async def use(workers: Workers) -> list[Any]:
        asked = [asyncio.create_task(message_of(workers, {"do": "sleep"})) for _ in range(4)]
        await asyncio.sleep(0.2)
        assert len(list(folder.iterdir())) == 2
        await workers.stop()
        return await asyncio.gather(*asked, return_exceptions=True)

    found = within(use, tmp_path, count=2)
    assert [type(one) for one in found] == [WorkerError] * 4
    assert list(folder.iterdir()) == []


def test_replaces_worker_that_died_idle(tmp_path: Path) -> None:
    async def use(workers: Workers) -> tuple[int, dict[str, Any], int]:
        first = await message_of(workers, {"do": "say"})
        os.kill(first["pid"], 9)
        (place,) = workers._places
        assert place.process is not None
        await place.process.wait()
        return first["pid"], await message_of(workers, {"do": "say"}), workers.replaced

    died, found, replaced = within(use, tmp_path)
    assert found["said"] == "say"
    assert found["pid"] != died
    assert replaced == 1


# ------------------------------------------------------------------------------------------------ the operator's log
@pytest.fixture
def events() -> Iterator[list[logging.LogRecord]]:
    """Yield the log records of the pool."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign]
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)
    yield found
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


def test_logs_stderr_up_to_limit(events: list[logging.LogRecord], tmp_path: Path) -> None:
    async def use(workers: Workers) -> Any:
        await message_of(workers, {"do": "warn", "lines": ["a warning", "another"]})
        return await message_of(workers, {"do": "warn", "lines": ["x"] * 100_000})

    pid = within(use, tmp_path)["pid"]
    said = [one.getMessage() for one in events]
    assert said[:3] == [f"worker {pid}: a warning", f"worker {pid}: another", f"worker {pid}: x"]
    assert said[-1] == f"worker {pid}: further output for this question is omitted"
    assert 200 < len(said) <= 2 + 200 + 1  # the first lines may come after the second question


def test_logs_unexpected_traceback_without_answering_it(events: list[logging.LogRecord], tmp_path: Path) -> None:
    async def use(workers: Workers) -> Any:
        return await workers.ask({"do": "fail"})

    assert within(use, tmp_path) == {"error": {"kind": "worker", "message": "x"}}
    (event,) = events
    assert event.levelname == "ERROR"
    assert event.exc_info is not None
    assert str(event.exc_info[1]) == "Traceback: x"


def test_logs_reason_for_replacement(events: list[logging.LogRecord], tmp_path: Path) -> None:
    async def use(workers: Workers) -> Any:
        with pytest.raises(TimeLimit):
            await message_of(workers, {"do": "sleep"})

    within(use, tmp_path, time_s=0.5)
    (event,) = events
    assert "is replaced: The job did not finish within 0.5 s" in event.getMessage()
