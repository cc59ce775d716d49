"""The service's store: durable, without duplicates, and for one process."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from vramcast.cluster.service.service import CachedAnswer
from vramcast.cluster.service.store import GroupState, Store
from vramcast.core.errors import DatasetError, OutputError

SEEN = {"estimate_id": "a" * 64, "outcome": "finished", "job_id": "7"}


def test_keeps_data_across_restart(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store.keep("a", b"answer")
        store.request("a" * 64, 5)
        store.request("a" * 64, 3)
        id_ = store.observe("epilog", SEEN, "dense", GroupState(0.98, 1, 1, 0.5))
    with closing(Store(tmp_path)) as store:
        assert (store.answer("a"), store.answer("b")) == (b"answer", None)
        assert store.observation("epilog", "a" * 64, "7") == id_
        assert store.observation("submit", "a" * 64, "7") is store.observation("epilog", "b" * 64, "7") is None
        assert store.requests("a" * 64) == [5, 3]
        assert store.groups() == {"dense": {"epilog": GroupState(0.98, 1, 1, 0.5)}}
    with closing(sqlite3.connect(tmp_path / "service.sqlite")) as file:
        assert [json.loads(text) for (text,) in file.execute("SELECT text FROM observed")] == [{**SEEN, "group": "dense"}]


def test_failed_write_moves_no_group(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store.observe("", SEEN, "dense", GroupState(0.98, 1))
        with pytest.raises(OutputError, match="UNIQUE"):
            store.observe("", SEEN, "dense", GroupState(0.5, 2))
        assert store.groups() == {"dense": {"": GroupState(0.98, 1)}}


def test_reports_full_disk_and_recovers(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store._file.execute("PRAGMA max_page_count = 1")
        large = {**SEEN, "note": "x" * 9999}
        for write in (lambda: store.keep("a", b"x" * 9999), lambda: store.observe("", large, "dense", GroupState(0.98, 1))):
            with pytest.raises(OutputError, match="disk is full"):
                write()
        assert "disk is full" in store.trouble
        store._file.execute("PRAGMA max_page_count = 1000000")
        store.keep("a", b"answer")
        assert (store.trouble, store.answer("a"), store.groups()) == ("", b"answer", {})


def test_upgrades_file_without_clients(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "service.sqlite")) as file:
        file.executescript("""
            CREATE TABLE answers (id TEXT PRIMARY KEY, answer BLOB NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
            CREATE TABLE observations (id TEXT PRIMARY KEY, job_id TEXT UNIQUE, estimate_id TEXT, text TEXT, at REAL);
            CREATE TABLE groups (name TEXT PRIMARY KEY, asked REAL, observed INTEGER, covered INTEGER, over REAL);
            INSERT INTO answers VALUES ('a', 'answer', 1.0);
            INSERT INTO observations VALUES ('x', '7', 'a', '{}', 1.0), ('y', NULL, 'a', '{}', 2.0);
            INSERT INTO observations VALUES ('z', NULL, 'a', '{}', 3.0);
            INSERT INTO groups VALUES ('dense', 0.97, 3, 2, 0.5);
        """)
    for _ in range(2):
        with closing(Store(tmp_path)) as store:
            assert store.groups() == {"dense": {"": GroupState(0.97, 3, 2, 0.5)}}
            assert (store.observation("", "a", "7"), store.observation("", "a", "y")) == ("x", "y")


def test_removes_oldest_answers_beyond_size(tmp_path: Path) -> None:
    with closing(Store(tmp_path, most_bytes=1000)) as store:
        for name in "abcdef":
            store.keep(name, b"x" * 200)
            store.request(name, 5)
        store.keep("f", b"x" * 100)  # again, and smaller
        left = [name for name in "abcdef" if store.answer(name) is not None]
        assert left == ["c", "d", "e", "f"]
        assert [name for name in "abcdef" if store.requests(name)] == left
        assert (store._count, store._bytes) == (4, 700)


def test_removes_oldest_answers_beyond_count(tmp_path: Path) -> None:
    with closing(Store(tmp_path, most=10)) as store:
        for number in range(20):
            store.keep(str(number), b"answer")
        kept = [number for number in range(20) if store.answer(str(number)) is not None]
    assert 10 <= len(kept) <= 11
    assert kept == list(range(20 - len(kept), 20))


def test_folder_belongs_to_one_service(tmp_path: Path) -> None:
    with closing(Store(tmp_path)), pytest.raises(DatasetError, match="another service"):
        Store(tmp_path)


def test_reports_unusable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="--data"):
        Store(tmp_path / "file")


def test_level_between_two_uses_higher_bound() -> None:
    # That of the lower level would hold too rarely.
    said = {"estimate": {}, "levels": {"0.5": 10, "0.9": 20, "0.99": 30}, "check": {"exit_code": 0, "reason": ""}}
    answer = CachedAnswer("a", json.dumps(said).encode())
    found = [answer.bound_at(level) for level in (0.3, 0.5, 0.51, 0.9, 0.95, 0.99, 0.999)]
    assert found == [10, 10, 20, 20, 30, 30, 30]
