"""The folder of compiled code: emptied above its limit, but never while it is in use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vramcast.tracer.libraries import compiled_cache


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("inductor/fx/graph", "triton/ab/kernel.cubin"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(bytes(600))
    return tmp_path


@contextmanager
def entered(folder: Path, limit_bytes: int) -> Iterator[int]:
    lock = compiled_cache.enter(folder, limit_bytes)
    assert lock is not None
    try:
        yield lock
    finally:
        os.close(lock)


def an_hour_later(folder: Path) -> None:
    old = time.time() - compiled_cache.INTERVAL_S - 1
    os.utime(folder / "in-use", (old, old))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "in-use")


def test_keeps_folder_at_limit(folder: Path) -> None:
    with entered(folder, 1200):
        assert names(folder) == ["graph", "kernel.cubin"]


def test_empties_folder_above_limit(folder: Path) -> None:
    with entered(folder, 1199):
        assert [path.name for path in folder.iterdir()] == ["in-use"]


def test_keeps_folder_in_use(folder: Path) -> None:
    with entered(folder, 1200):
        an_hour_later(folder)
        with entered(folder, 0):
            assert names(folder) == ["graph", "kernel.cubin"]
    with entered(folder, 0):
        assert names(folder) == []


def test_checks_once_an_hour(folder: Path) -> None:
    with entered(folder, 1200):
        pass
    with entered(folder, 0):
        assert names(folder) == ["graph", "kernel.cubin"]
    an_hour_later(folder)
    with entered(folder, 0):
        assert names(folder) == []


def test_checks_again_after_clock_went_back(folder: Path) -> None:
    with entered(folder, 1200):
        pass
    os.utime(folder / "in-use", (time.time() + 10**6,) * 2)
    with entered(folder, 0):
        assert names(folder) == []


def test_keeps_targets_of_links(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine").write_text("kept")
    (folder / "link").symlink_to(elsewhere)
    with entered(folder, 0):
        assert (elsewhere / "mine").read_text() == "kept"


def test_leaves_folder_without_locks_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(compiled_cache.fcntl, "flock", refuse)
    assert compiled_cache.enter(folder, 0) is None
    assert names(folder) == ["graph", "kernel.cubin"]
