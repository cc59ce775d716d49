"""The folder of compiled code: emptied above its limit, never while somebody uses it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vramcast.tracer.nullgpu.child import compiled_cache


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


def test_it_stays_at_its_limit(folder: Path) -> None:
    with entered(folder, 1200):
        assert names(folder) == ["graph", "kernel.cubin"]


def test_above_its_limit_all_of_it_goes(folder: Path) -> None:
    with entered(folder, 1199):
        assert [path.name for path in folder.iterdir()] == ["in-use"]


def test_nothing_goes_while_somebody_uses_it(folder: Path) -> None:
    with entered(folder, 1200):
        an_hour_later(folder)
        with entered(folder, 0):
            assert names(folder) == ["graph", "kernel.cubin"]
    with entered(folder, 0):
        assert names(folder) == []


def test_it_looks_once_an_hour(folder: Path) -> None:
    with entered(folder, 1200):
        pass
    with entered(folder, 0):
        assert names(folder) == ["graph", "kernel.cubin"]
    an_hour_later(folder)
    with entered(folder, 0):
        assert names(folder) == []


def test_a_clock_which_went_back_does_not_keep_it_for_ever(folder: Path) -> None:
    with entered(folder, 1200):
        pass
    os.utime(folder / "in-use", (time.time() + 10**6,) * 2)
    with entered(folder, 0):
        assert names(folder) == []


def test_what_a_link_names_stays(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine").write_text("kept")
    (folder / "link").symlink_to(elsewhere)
    with entered(folder, 0):
        assert (elsewhere / "mine").read_text() == "kept"


def test_a_folder_which_cannot_be_locked_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(compiled_cache.fcntl, "flock", refuse)
    assert compiled_cache.enter(folder, 0) is None
    assert names(folder) == ["graph", "kernel.cubin"]
