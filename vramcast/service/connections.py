"""Connections which ask nothing: they are closed before they take all that a process may open."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEADERS_S: Final = 10.0  # arbitrary: by then a request's headers must be there


class Impatient(HttpToolsProtocol):
    """uvicorn's protocol, which waits for headers for some seconds only; uvicorn's own waits for ever for the first ones."""

    _until: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait."""
        super().connection_made(transport)
        self._until = self.loop.call_later(_HEADERS_S, self._give_up)

    def on_message_begin(self) -> None:
        """Wait for the headers of the next request on this connection."""
        super().on_message_begin()
        if self._until is None:
            self._until = self.loop.call_later(_HEADERS_S, self._give_up)

    def on_headers_complete(self) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._until is not None:
            self._until.cancel()
            self._until = None

    def _give_up(self) -> None:
        self._until = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
