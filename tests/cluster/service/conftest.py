"""Fixtures of the service: stand-ins for its workers, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def workers() -> Any:
    from tests.cluster.service.doubles import Instant  # it needs the extra `serve`

    return Instant()


@pytest.fixture
def http(tmp_path: Path, workers: Any) -> Iterator[Any]:
    from tests.cluster.service.doubles import client

    with client(tmp_path, workers) as found:
        yield found
