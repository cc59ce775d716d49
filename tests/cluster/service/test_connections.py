"""Limits on connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("uvicorn")
from uvicorn import Config  # after the line above
from uvicorn.server import ServerState

from vramcast.cluster.service import connections
from vramcast.cluster.service.connections import TimeLimitedProtocol


class Transport(asyncio.Transport):
    """Records the fate of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = ""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the default."""
        return default

    def write(self, data: Any) -> None:
        """Accept the data."""

    def is_closing(self) -> bool:
        """Return whether the connection is closing."""
        return bool(self.ended)

    def close(self) -> None:
        """Record the call."""
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        """Record the call."""
        self.ended = "aborted"

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(3600)


def ended(monkeypatch: pytest.MonkeyPatch, *pieces: bytes, wait_s: float = 0.0, stalls: bool = False) -> str:
    """Return the fate of a connection that received these pieces."""
    monkeypatch.setattr(connections, "_READ_S", 0.01)

    async def whole() -> str:
        protocol = TimeLimitedProtocol(Config(_app, log_config=None), ServerState(), {})
        transport = Transport()
        protocol.connection_made(transport)
        for piece in pieces:
            if not transport.ended:
                protocol.data_received(piece)
        if stalls:
            protocol.pause_writing()
        await asyncio.sleep(wait_s)
        found = transport.ended
        protocol.connection_lost(None)
        for task in protocol.tasks:
            task.cancel()
        return found

    return asyncio.run(whole())


START = b"POST /v1/checks HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [START, *[b"a: b\r\n" * 1000] * 20],
        [START, b"a: ", *[b"x" * 10_000] * 5],
        [START, *[b"x" * 10_000] * 5],
        [b"GET /", *[b"x" * 10_000] * 5],
    ],
    ids=["lines", "one value", "one name", "one address"],
)
def test_endless_headers_close_connection(monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]) -> None:
    assert ended(monkeypatch, *pieces) == "closed"


def test_too_much_pipelining_closes_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert ended(monkeypatch, asked * 5000) == "closed"
    assert ended(monkeypatch, asked * 10) == ""


def test_large_body_is_not_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, START + b"Content-Length: 1000000\r\n\r\n", *[b"x" * 100_000] * 9) == ""


def test_disconnects_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, START + b"\r\n", stalls=True, wait_s=0.1) == "aborted"
    assert ended(monkeypatch, START + b"\r\n", wait_s=0.1) == ""
