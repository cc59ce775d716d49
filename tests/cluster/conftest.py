"""Jobs that log when they run, for clusters of any kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def noting(tmp_path: Path) -> Callable[[float], Callable[[str], None]]:
    """Return a maker of jobs, which log their start in the file `log`, wait for another job's start, and log their end.

    It waits at most this many seconds. Its pickle contains no name of this module.
    """
    path = str(tmp_path / "log")

    def make(wait_s: float) -> Callable[[str], None]:
        def job(name: str) -> None:
            import time
            from pathlib import Path

            def note(word: str) -> None:
                with Path(path).open("a") as log:
                    log.write(f"{word} {name}\n")

            note("start")
            latest = time.monotonic() + wait_s
            while Path(path).read_text().count("start") < 2 and time.monotonic() < latest:
                time.sleep(0.02)
            note("end")

        return job

    return make


@pytest.fixture
def order(tmp_path: Path) -> Callable[[], list[str]]:
    """Return a function that reads the starts and ends logged so far, without the names."""

    def read() -> list[str]:
        log = tmp_path / "log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    return read
