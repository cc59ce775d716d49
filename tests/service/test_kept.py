"""What the service keeps: durable, once, and by one process."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from vramcast.core.errors import DatasetError
from vramcast.service.service import Answer
from vramcast.service.store import GroupState, Store

SEEN = {"estimate_id": "a" * 64, "outcome": "finished", "job_id": "7"}


def test_what_was_kept_is_there_for_the_next_one(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store.keep("a", b"answer")
        id_ = store.observe(SEEN, "dense", GroupState(0.98, 1, 1, 0.5))
    with closing(Store(tmp_path)) as store:
        assert (store.answer("a"), store.answer("b")) == (b"answer", None)
        assert store.observation("7") == id_
        assert store.groups() == {"dense": GroupState(0.98, 1, 1, 0.5)}
    with closing(sqlite3.connect(tmp_path / "service.sqlite")) as file:
        assert [json.loads(text) for (text,) in file.execute("SELECT text FROM observations")] == [{**SEEN, "group": "dense"}]


def test_an_observation_which_cannot_be_kept_moves_no_group(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store.observe(SEEN, "dense", GroupState(0.98, 1))
        with pytest.raises(Exception, match="UNIQUE"):
            store.observe(SEEN, "dense", GroupState(0.5, 2))
        assert store.groups() == {"dense": GroupState(0.98, 1)}


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
