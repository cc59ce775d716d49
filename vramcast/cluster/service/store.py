"""Data that must survive a restart: answers, their requests, observations, and each client's effect on each group's level.

One SQLite file. A write is durable when it returns (WAL with synchronous=FULL); a failed write leaves nothing behind, and
`trouble` holds the reason until another write succeeds. Only one process can use the file: the service that holds its lock.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import DatasetError, OutputError

_FILE: Final = "service.sqlite"
_PORTION: Final = 10  # arbitrary: a tenth of the limit is removed at once
_VERSION: Final = 1  # spec: version of the tables below; version 0 had no clients
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (id TEXT PRIMARY KEY, answer BLOB NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests
    (estimate_id TEXT, request_bytes INTEGER, at REAL NOT NULL, PRIMARY KEY (estimate_id, request_bytes)) WITHOUT ROWID;
CREATE TABLE observed
    (id TEXT PRIMARY KEY, client TEXT, estimate_id TEXT, job_id TEXT, text TEXT NOT NULL, at REAL NOT NULL,
    UNIQUE (client, estimate_id, job_id));
CREATE TABLE moves
    (client TEXT, name TEXT, asked REAL NOT NULL, observed INTEGER NOT NULL, covered INTEGER NOT NULL, over REAL NOT NULL,
    PRIMARY KEY (client, name)) WITHOUT ROWID;
"""
# For a file without clients: all its rows belong to the client without a name.
_OLD: Final = """
INSERT INTO observed SELECT id, '', estimate_id, coalesce(job_id, id), text, at FROM observations;
INSERT INTO moves SELECT '', name, asked, observed, covered, over FROM groups;
DROP TABLE observations;
DROP TABLE groups;
"""


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a group, as one client observed its jobs.

    Attributes:
        asked: Level for its next job if this were the only client.
        observed: Number of jobs.
        covered: Number of jobs that stayed below their request.
        over: Sum over jobs of request / measured - 1.
    """

    asked: float
    observed: int = 0
    covered: int = 0
    over: float = 0.0


class Store:
    """The file, for one process and all its threads.

    Args:
        folder: Folder of the file.
        most: Maximum number of answers; about 6 kB each.
        most_bytes: Maximum size of all answers together.
    Raises:
        DatasetError: It cannot be opened, or another service uses it.
    """

    def __init__(self, folder: Path, most: int = 100_000, most_bytes: int = 4 << 30) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self.trouble = ""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = sqlite3.connect(folder / _FILE, timeout=1.0, check_same_thread=False, isolation_level=None)
            self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=FULL")
            self._make_tables()
            sums = self._file.execute("SELECT COUNT(*), COALESCE(SUM(LENGTH(answer)), 0) FROM answers").fetchone()
        except (OSError, sqlite3.Error) as error:
            raise DatasetError(
                f"The file in '{folder}' cannot be opened ({error}): if another service uses it, choose another --data."
            ) from None
        self._count, self._bytes = sums

    def _make_tables(self) -> None:
        (version,) = self._file.execute("PRAGMA user_version").fetchone()
        if version == _VERSION:
            return
        if version > _VERSION:
            raise sqlite3.DatabaseError(f"a newer vramcast wrote it, with version {version} of its tables")
        has_old = self._file.execute("SELECT 1 FROM sqlite_master WHERE name = 'groups'").fetchone()
        old = _OLD if has_old else ""
        self._file.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {old} PRAGMA user_version = {_VERSION}; COMMIT")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the file for statements of which either all are durable afterwards, or none.

        Raises:
            OutputError: None is durable; the message gives the reason.
        """
        with self._lock:
            try:
                self._file.execute("BEGIN IMMEDIATE")
                yield self._file
                self._file.execute("COMMIT")
                self.trouble = ""
            except sqlite3.Error as error:
                self.trouble = f"answers and observations are not stored: {error}"
                raise OutputError(self.trouble) from None
            finally:
                if self._file.in_transaction:  # a full disk has ended the transaction already
                    self._file.execute("ROLLBACK")

    def _rows(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query; none if the file cannot be read."""
        with self._lock:
            try:
                return self._file.execute(query, values).fetchall()
            except sqlite3.Error as error:
                self.trouble = f"answers and observations cannot be read: {error}"
                return []

    def answer(self, id_: str) -> bytes | None:
        """Return a stored answer."""
        rows = self._rows("SELECT answer FROM answers WHERE id = ?", id_)
        return rows[0][0] if rows else None

    def keep(self, id_: str, answer: bytes) -> None:
        """Store an answer; remove the oldest beyond the limits.

        Raises:
            OutputError: It cannot be written.
        """
        with self._writing() as file:
            replaced = file.execute("SELECT LENGTH(answer) FROM answers WHERE id = ?", (id_,)).fetchone()
            file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (id_, answer, time.time()))
            count = self._count + (replaced is None)
            size = self._bytes + len(answer) - (replaced[0] if replaced else 0)
            if count > self._most + self._most // _PORTION or size > self._most_bytes:
                count, size = self._without_oldest(file, count, size)
        self._count, self._bytes = count, size

    def _without_oldest(self, file: sqlite3.Connection, count: int, size: int) -> tuple[int, int]:
        """Delete the oldest answers until a tenth less than the limits is left; return the remaining number and bytes."""
        gone = []
        for id_, length in file.execute("SELECT id, LENGTH(answer) FROM answers ORDER BY at"):
            if count <= self._most and size <= self._most_bytes - self._most_bytes // _PORTION:
                break
            gone.append((id_,))
            count, size = count - 1, size - length
        file.executemany("DELETE FROM answers WHERE id = ?", gone)
        file.executemany("DELETE FROM requests WHERE estimate_id = ?", gone)
        return count, size

    def requests(self, estimate_id: str) -> list[int]:
        """Return the requests answered for an estimate, the latest last."""
        found = self._rows("SELECT request_bytes FROM requests WHERE estimate_id = ? ORDER BY at", estimate_id)
        return [request_bytes for (request_bytes,) in found]

    def request(self, estimate_id: str, request_bytes: int) -> None:
        """Record that a request was answered for an estimate.

        Raises:
            OutputError: It cannot be written.
        """
        with self._writing() as file:
            file.execute("INSERT OR REPLACE INTO requests VALUES (?, ?, ?)", (estimate_id, request_bytes, time.time()))

    def observation(self, client: str, estimate_id: str, job_id: str) -> str | None:
        """Return the id of a client's observation of a job."""
        where = "client = ? AND estimate_id = ? AND job_id = ?"
        rows = self._rows(f"SELECT id FROM observed WHERE {where}", client, estimate_id, job_id)
        return rows[0][0] if rows else None

    def observe(self, client: str, observed: dict[str, Any], group: str, state: GroupState) -> str:
        """Store a client's observation and the new state of its group, both or neither; return the observation's id.

        Raises:
            OutputError: It cannot be written.
        """
        id_ = uuid.uuid4().hex
        text = json.dumps({**observed, "group": group})
        row = (id_, client, observed["estimate_id"], observed.get("job_id") or "", text, time.time())
        moved = (client, group, state.asked, state.observed, state.covered, state.over)
        with self._writing() as file:
            file.execute("INSERT INTO observed VALUES (?, ?, ?, ?, ?, ?)", row)
            file.execute("INSERT OR REPLACE INTO moves VALUES (?, ?, ?, ?, ?, ?)", moved)
        return id_

    def groups(self) -> dict[str, dict[str, GroupState]]:
        """Return the state of each group by client."""
        found: dict[str, dict[str, GroupState]] = {}
        with self._lock:
            rows = self._file.execute("SELECT name, client, asked, observed, covered, over FROM moves").fetchall()
        for name, client, *numbers in rows:
            found.setdefault(name, {})[client] = GroupState(*numbers)
        return found
