"""Answers of the cuDNN oracle, kept on disk: cuDNN's heuristics change only with its version and the record.

One sqlite3 file, shared by any number of processes. The cache is a convenience, and no fault of it ends the oracle. A damaged
file is set aside; a full disk is reported once on stderr, and the oracle continues without the cache. From a file of another
owner, answers are read, but new ones are not kept.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from vramcast.core.cache import record
from vramcast.core.errors import CompilerError

_BUSY_S = 5.0  # arbitrary; one write takes about a millisecond
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# The names carry the protocol's version: an oracle with another protocol uses another table.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answer_3 (
    version INTEGER, device TEXT, request TEXT, answer TEXT, PRIMARY KEY (version, device, request)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS library_1 (identity TEXT PRIMARY KEY, version INTEGER) WITHOUT ROWID;
"""


def answers_file() -> Path | None:
    """Return the file in the cache folder; None if there is no place for one.

    Raises:
        CacheError: Others can write to the cache, and thus control the answers.
    """
    try:
        return record("cudnn.sqlite")
    except CompilerError:
        return None


class AnswerCache:
    """Answers by (cuDNN version, SHA-256 of the device record and other inputs, request), and versions by library file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._writable = path is None or not os.path.exists(path) or os.access(path, os.W_OK)

    def answer(self, version: int, device: str, request: str) -> str | None:
        """Return the kept answer, or None."""
        where = (version, device, request)
        row = self._run("SELECT answer FROM answer_3 WHERE version = ? AND device = ? AND request = ?", where)
        return row[0] if row and isinstance(row[0], str) else None

    def keep_answer(self, version: int, device: str, request: str, answer: str) -> None:
        """Keep an answer permanently."""
        self._write("INSERT OR REPLACE INTO answer_3 VALUES (?, ?, ?, ?)", (version, device, request, answer))

    def version(self, library: Path) -> int | None:
        """Return the version that this exact file reported to an earlier oracle, or None."""
        row = self._run("SELECT version FROM library_1 WHERE identity = ?", (_identity(library),))
        return row[0] if row and isinstance(row[0], int) else None

    def keep_version(self, library: Path, version: int) -> None:
        """Keep the version of a library file, so that the library need not be loaded to learn it."""
        self._write("INSERT OR REPLACE INTO library_1 VALUES (?, ?)", (_identity(library), version))

    def _write(self, statement: str, values: Sequence[object]) -> None:
        if self._writable:
            self._run(statement, values)

    def _run(self, statement: str, values: Sequence[object]) -> tuple[object, ...] | None:
        with self._lock:
            for _ in range(2):  # the second time with a fresh file in place of a damaged one
                if self._path is None:
                    return None
                try:
                    if self._connection is None:
                        self._connection = self._open(self._path)
                    with self._connection:
                        row: tuple[object, ...] | None = self._connection.execute(statement, values).fetchone()
                    return row
                except (sqlite3.Error, OSError) as error:
                    if not self._recover(error):
                        return None
            return None

    def _open(self, path: Path) -> sqlite3.Connection:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._writable:
            return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S, check_same_thread=False)
        connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False)
        connection.execute("PRAGMA synchronous = OFF")  # a power cut may cost the cache, which is then set aside
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"answer_3", "library_1"} <= tables:  # so that a read-only cache with these tables can be read
            connection.executescript(_SCHEMA)
        return connection

    def _recover(self, error: Exception) -> bool:
        """Handle the fault; return whether trying again makes sense."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            return False
        if code == sqlite3.SQLITE_READONLY and self._connection is not None:
            self._writable = False
            self._say(f"cannot be written ({error}); it is only read")
            return False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        path = self._path
        if code in _DAMAGED and path is not None:
            try:
                path.replace(path.with_name(path.name + ".damaged"))
            except OSError:
                pass
            else:
                self._say("is damaged; set aside as .damaged and started anew")
                return True
        self._say(f"cannot be used ({error}); continuing without it")
        self._path = None
        return False

    def _say(self, what: str) -> None:
        print(f"vramcast: cuDNN answer cache {self._path} {what}.", file=sys.stderr, flush=True)


def _identity(library: Path) -> str:
    try:
        status = library.stat()
    except OSError:
        return f"{library}:absent"
    return f"{library.resolve()}:{status.st_size}:{status.st_mtime_ns}"
