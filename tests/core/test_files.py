"""Atomic writes, and their error classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.core.errors import DatasetError, OutputError, TraceFileError
from vramcast.core.files import atomic_write
from vramcast.tracer.format.snapshot import write_snapshot
from vramcast.tracer.format.trace import Action, Trace

TRACE = Trace.build({"action": [Action.ALLOC], "size_bytes": [512], "block": [0]})


def write_parquet(path: Path) -> None:
    pytest.importorskip("pyarrow")
    from vramcast.datasets.tables import write_runs

    write_runs([], path)


@pytest.mark.parametrize(
    ("write", "error"),
    [(TRACE.save, TraceFileError), (lambda path: write_snapshot(TRACE, path), TraceFileError), (write_parquet, DatasetError)],
    ids=["trace", "snapshot", "Parquet"],
)
def test_raises_error_class_of_caller(write: Callable[[Path], None], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match=r"no/a' cannot be written: No such file or directory\. Choose another path\."):
        write(tmp_path / "no" / "a")


@pytest.mark.parametrize("raised", [OSError(28, "No space left on device"), ValueError("not ours")])
def test_failed_block_keeps_old_file(tmp_path: Path, raised: Exception) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise raised

    with pytest.raises((OutputError, ValueError), match=r"No space left|not ours") as caught:
        fail()
    assert isinstance(caught.value, OutputError) is isinstance(raised, OSError)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


def test_replaces_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a longer old file")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"a longer old file"
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"new")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_writes_device_in_place() -> None:
    with pytest.raises(OutputError, match="No space left"), atomic_write("/dev/full") as file:
        file.write(b"anything")
    assert Path("/dev/full").is_char_device()
