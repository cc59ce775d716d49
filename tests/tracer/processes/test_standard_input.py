"""The standard input of a training command: its caller's, in each of its runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vramcast.estimates.estimator import estimate_command
from vramcast.tracer.processes.standard_input import of_one_run

# Takes 4 GiB, so a card of 1 GiB makes it run twice; it records its input in each run.
SCRIPT = """
import json, sys, torch
with open(sys.argv[1], "a") as notes:
    notes.write(json.dumps({how}) + "\\n")
torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
"""
WAYS = {
    "read": "sys.stdin.read()",
    "lines": "''.join(line for line in sys.stdin)",
    "bytes": "sys.stdin.buffer.read().decode()",
    "number 0": "open(0).read()",
    "device": "open('/dev/stdin').read()",
    "input": "input() + '\\n'",
    "child": "__import__('subprocess').run(['cat'], capture_output=True, text=True).stdout",
}


@contextmanager
def given(descriptor: int) -> Iterator[None]:
    """Let a descriptor be this process's standard input in the context."""
    before = os.dup(0)
    os.dup2(descriptor, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


def content() -> str | None:
    """Return the input of one run."""
    found = of_one_run()
    if found is None:
        return None
    with os.fdopen(found) as file:
        return file.read()


def test_reads_file_again_from_position(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("a line\nbatch: 8\n")
    with (tmp_path / "job.yaml").open("rb", buffering=0) as file, given(file.fileno()):
        os.read(0, len("a line\n"))
        assert [content(), content()] == ["batch: 8\n", "batch: 8\n"]
        assert os.read(0, 100) == b"batch: 8\n"


def test_reads_removed_file(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("here")
    with (tmp_path / "here").open("rb", buffering=0) as file, given(file.fileno()):
        (tmp_path / "here").unlink()
        assert [content(), content()] == ["here", "here"]


@pytest.mark.parametrize("size", [0, 5, 65_536])
def test_copies_complete_pipe(size: int) -> None:
    read, write = os.pipe()
    os.write(write, size * b"x") if size else None
    os.close(write)
    with given(read):
        os.close(read)
        assert [content(), content()] == [size * "x", size * "x"]
        assert os.read(0, 100_000) == size * b"x"


def test_copies_pipe_in_many_pieces() -> None:
    read, write = os.pipe()
    for number in range(16):
        os.write(write, f"{number}\n".encode())
    os.close(write)
    with given(read):
        os.close(read)
        assert content() == "".join(f"{number}\n" for number in range(16))


def test_passes_on_open_pipe() -> None:
    read, write = os.pipe()
    with given(read):
        found = of_one_run()
        assert found is not None
        os.write(write, b"late")
        assert os.read(found, 10) == b"late"
        os.close(found)
    os.close(read)
    os.close(write)


def test_passes_on_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, given(theirs.fileno()):
        found = of_one_run()
        assert found is not None
        ours.send(b"word")
        assert os.read(found, 10) == b"word"
        os.close(found)


def test_does_not_wait_for_terminal() -> None:
    ours, theirs = os.openpty()
    with given(theirs):
        assert of_one_run() is None
    os.close(ours)
    os.close(theirs)


def test_does_not_read_reused_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "__stdin__", None)  # as Python sets it if it starts with a closed one
    with (tmp_path / "other").open("w+b") as file, given(file.fileno()):
        assert of_one_run() is None


def runs(folder: Path, how: str, stdin: int, memory: str = "1GiB") -> list[str]:
    """Return the input of a script in each of its runs."""
    script, notes = folder / "script.py", folder / "notes"
    script.write_text(SCRIPT.format(how=how))
    with given(stdin):
        estimate_command([str(script), str(notes)], device="rtx4060", memory=memory, until="end")
    return [json.loads(line) for line in notes.read_text().splitlines()]


@pytest.mark.torch
@pytest.mark.integration
@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_each_run_reads_same_input(needs_null_gpu: None, kind: str, how: str, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"batch": 4096}\n')
    with (tmp_path / "job.json").open("rb") as file, subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.wait()
        file.seek(0)
        found = runs(tmp_path, how, file.fileno() if kind == "file" else writer.stdout.fileno())
    assert len(found) >= 2
    assert set(found) == {'{"batch": 4096}\n'}


@pytest.mark.torch
@pytest.mark.integration
def test_job_without_input_reads_nothing(needs_null_gpu: None, tmp_path: Path) -> None:
    with Path(os.devnull).open("rb") as nothing:
        assert runs(tmp_path, WAYS["read"], nothing.fileno(), memory="8GiB") == [""]
