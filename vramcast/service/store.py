"""What a restart must not lose: answers, observations, and where each group's online level stands. One SQLite file.

A write is durable when it returns (WAL with synchronous=FULL). Of several processes only one may have the file: the service
which holds its lock.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import DatasetError

_FILE: Final = "service.sqlite"
_PORTION: Final = 10  # arbitrary: a tenth too many go at once
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (id TEXT PRIMARY KEY, answer BLOB NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS observations
    (id TEXT PRIMARY KEY, job_id TEXT UNIQUE, estimate_id TEXT NOT NULL, text TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS groups
    (name TEXT PRIMARY KEY, asked REAL NOT NULL, observed INTEGER NOT NULL, covered INTEGER NOT NULL, over REAL NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class GroupState:
    """What a group's jobs showed.

    Attributes:
        asked: The level which its next job is asked for.
        observed: Jobs.
        covered: Of these, which stayed below their request.
        over: Sum over jobs of request / measured - 1.
    """

    asked: float
    observed: int = 0
    covered: int = 0
    over: float = 0.0


class Store:
    """The file, for one process and any of its threads.

    Args:
        folder: Where it lies.
        most: Answers which are kept; some 6 kB each.
    Raises:
        DatasetError: it cannot be opened, or another service has it.
    """

    def __init__(self, folder: Path, most: int = 100_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = sqlite3.connect(folder / _FILE, timeout=1.0, check_same_thread=False, isolation_level=None)
            self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=FULL")
            self._file.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise DatasetError(
                f"The file in '{folder}' cannot be opened ({error}): does another service have it? Choose another --data."
            ) from None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def answer(self, id_: str) -> bytes | None:
        """Return a kept answer."""
        with self._lock:
            row = self._file.execute("SELECT answer FROM answers WHERE id = ?", (id_,)).fetchone()
        return row[0] if row else None

    def keep(self, id_: str, answer: bytes) -> None:
        """Keep an answer; of more than `most` the oldest go."""
        with self._lock:
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (id_, answer, time.time()))
            (count,) = self._file.execute("SELECT COUNT(*) FROM answers").fetchone()
            if count > self._most + self._most // _PORTION:
                oldest = "SELECT id FROM answers ORDER BY at LIMIT ?"
                self._file.execute(f"DELETE FROM answers WHERE id IN ({oldest})", (count - self._most,))

    def observation(self, job_id: str) -> str | None:
        """Return the id of what was observed of a scheduler's job."""
        with self._lock:
            row = self._file.execute("SELECT id FROM observations WHERE job_id = ?", (job_id,)).fetchone()
        return row[0] if row else None

    def observe(self, observed: dict[str, Any], group: str, state: GroupState) -> str:
        """Take in what was observed, and where its group stands then: both or neither; return its id."""
        id_ = uuid.uuid4().hex
        row = (id_, observed.get("job_id"), observed["estimate_id"], json.dumps({**observed, "group": group}), time.time())
        with self._lock:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._file.execute("INSERT INTO observations VALUES (?, ?, ?, ?, ?)", row)
                self._file.execute(
                    "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?)",
                    (group, state.asked, state.observed, state.covered, state.over),
                )
                self._file.execute("COMMIT")
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
        return id_

    def groups(self) -> dict[str, GroupState]:
        """Return where each group stands."""
        with self._lock:
            rows = self._file.execute("SELECT name, asked, observed, covered, over FROM groups").fetchall()
        return {name: GroupState(*numbers) for name, *numbers in rows}
