"""A service without processes: workers that answer at once, or when a gate opens."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from tests.estimates.test_result import make
from vramcast.cluster.service.access import Rules
from vramcast.cluster.service.app import create_app
from vramcast.cluster.service.clients import Client, Clients
from vramcast.cluster.service.service import Service
from vramcast.cluster.service.store import Store
from vramcast.core.errors import Overloaded, WorkerError

GIB = 1 << 30


def estimate(process_bytes: int = 3 * GIB, **changes: Any) -> dict[str, Any]:
    """Return an answer in a worker's form, with round numbers."""
    whole = make().to_dict()
    said: dict[str, Any] = {
        **whole,
        "memory_bytes": 40 * GIB,
        "context_bytes": GIB,
        "peaks": {**whole["peaks"], "process": process_bytes},
        "traits": {"share": "much"},
        **changes,
    }
    levels = {"0.5": process_bytes, "0.99": 2 * process_bytes, "0.9999": 3 * process_bytes}
    words = {
        "headline": "Fits: at most 6.00 GiB",
        "lines": {"peak": "3.00 GiB", "bound": "6.00 GiB for 98 of 100 jobs like it (58 measured models)"},
        "sentences": [],
        "assumed": ["a <b>bold</b> one"],
    }
    return {"estimate": said, "levels": levels, "words": words}


class Instant:
    """A replacement of `Workers`: a question's answer depends on its target.

    resnet18 is answered, resnet34 fails, resnet50 dies, resnet101 is one too many; `gate` holds all of them back.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.askers: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.replaced = 0
        self.is_started = False

    async def start(self) -> None:
        """Record the call."""
        self.is_started = True

    async def stop(self) -> None:
        """Record the call."""
        self.is_started = False

    async def ask(self, values: dict[str, Any], asker: str = "") -> dict[str, Any]:
        """Return the answer to a question."""
        name = (values["target"] or "").partition(":")[2]
        self.asked.append(name)
        self.askers.append(asker)
        await self.gate.wait()
        if name == "resnet34":
            return {"error": {"kind": "cannot_estimate", "message": "it raised"}}
        if name == "resnet50":
            raise WorkerError("The process that traced the job crashed.")
        if name == "resnet101":
            raise Overloaded(64, 7)
        return estimate()


def known(name: str = "", token: str = "secret", **limits: float) -> Client:
    """Return a client with a token."""
    return Client(name, hashlib.sha256(token.encode()).digest(), **limits)


@contextmanager
def client(
    folder: Path,
    workers: Instant,
    *,
    clients: Sequence[Client] = (),
    body_bytes: int = 10_000,
    admits: bool = False,
    level: float = 0.99,
) -> Iterator[TestClient]:
    """Yield an HTTP client of a service in a folder; the service ends with the block."""
    with closing(Store(folder)) as store:
        who = Clients(clients)
        service = Service(store, workers, "v1", level, weights=who.weights)  # type: ignore[arg-type]
        rules = Rules(who, body_bytes=body_bytes, admits=admits)
        with TestClient(create_app(service, [workers], rules)) as found:  # type: ignore[arg-type]
            yield found
