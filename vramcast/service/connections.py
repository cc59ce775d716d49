"""Connections which ask nothing: they are closed before they take all that a process may open."""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEADERS_S: Final = 10.0  # arbitrary: by then a request's headers must be there


def limit_connections() -> None:
    """Let this process open as many files as it may, and wait for requests on half as many connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Impatient.most_waiting = most // 2


class Impatient(HttpToolsProtocol):
    """uvicorn's protocol, which waits for headers for some seconds only; uvicorn's own waits for ever for the first ones."""

    most_waiting = 500  # of connections which have not said what they ask; `limit_connections` sets it
    _waiting: ClassVar[OrderedDict[Impatient, None]] = OrderedDict()
    _until: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait; of too many who are waited for, who has had longest goes."""
        super().connection_made(transport)
        self._wait()
        if len(self._waiting) > self.most_waiting:
            next(iter(self._waiting))._give_up()

    def on_message_begin(self) -> None:
        """Wait for the headers of the next request on this connection."""
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._until is None:
            self._until = self.loop.call_later(_HEADERS_S, self._give_up)
            self._waiting[self] = None

    def _stop_waiting(self) -> None:
        if self._until is not None:
            self._until.cancel()
            self._until = None
            self._waiting.pop(self, None)

    def _give_up(self) -> None:
        self._stop_waiting()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
