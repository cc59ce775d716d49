"""What the service keeps: durable, once, and by one process."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from vramcast.core.errors import DatasetError, OutputError
from vramcast.service.service import Answer
from vramcast.service.store import GroupState, Store

SEEN = {"estimate_id": "a" * 64, "outcome": "finished", "job_id": "7"}


def test_what_was_kept_is_there_for_the_next_one(tmp_path: Path) -> None:
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


def test_an_observation_which_cannot_be_kept_moves_no_group(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store.observe("", SEEN, "dense", GroupState(0.98, 1))
        with pytest.raises(OutputError, match="UNIQUE"):
            store.observe("", SEEN, "dense", GroupState(0.5, 2))
        assert store.groups() == {"dense": {"": GroupState(0.98, 1)}}


def test_a_full_disk_is_said_and_a_later_write_goes_well(tmp_path: Path) -> None:
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


def test_a_file_which_knew_no_clients_goes_on_as_the_one_without_a_name(tmp_path: Path) -> None:
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


def test_of_answers_which_are_too_large_together_the_oldest_go_and_their_requests(tmp_path: Path) -> None:
    with closing(Store(tmp_path, most_bytes=1000)) as store:
        for name in "abcdef":
            store.keep(name, b"x" * 200)
            store.request(name, 5)
        store.keep("f", b"x" * 100)  # again, and smaller
        left = [name for name in "abcdef" if store.answer(name) is not None]
        assert left == ["c", "d", "e", "f"]
        assert [name for name in "abcdef" if store.requests(name)] == left
        assert (store._count, store._bytes) == (4, 700)


def test_of_too_many_answers_the_oldest_go(tmp_path: Path) -> None:
    with closing(Store(tmp_path, most=10)) as store:
        for number in range(20):
            store.keep(str(number), b"answer")
        kept = [number for number in range(20) if store.answer(str(number)) is not None]
    assert 10 <= len(kept) <= 11
    assert kept == list(range(20 - len(kept), 20))


def test_a_folder_is_one_service_s(tmp_path: Path) -> None:
    with closing(Store(tmp_path)), pytest.raises(DatasetError, match="another service"):
        Store(tmp_path)


def test_a_folder_which_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="--data"):
        Store(tmp_path / "file")


def test_a_level_between_two_kept_ones_has_the_bound_of_the_higher() -> None:
    # That of the lower one would hold too seldom.
    said = {"estimate": {}, "levels": {"0.5": 10, "0.9": 20, "0.99": 30}, "check": {"exit_code": 0, "reason": ""}}
    answer = Answer("a", json.dumps(said).encode())
    found = [answer.quantile(level) for level in (0.3, 0.5, 0.51, 0.9, 0.95, 0.99, 0.999)]
    assert found == [10, 10, 20, 20, 30, 30, 30]
