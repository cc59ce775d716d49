"""Connections which take more than they may: they end before they have all that a process may open, or all its memory."""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEADERS_S: Final = 10.0  # arbitrary: by then a request's headers must be there
_HEADERS_BYTES: Final = 32 << 10  # arbitrary: of a request, its first line included
_MOST_PIPELINED: Final = 16  # arbitrary: requests of a connection which wait for their turn; each takes some 5 kB here
_READ_S: Final = 10.0  # arbitrary: by then a client must have read what it was sent


def limit_connections() -> None:
    """Let this process open as many files as it may, and wait for requests on half as many connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Impatient.most_waiting = most // 2


class Impatient(HttpToolsProtocol):
    """uvicorn's protocol, which waits for some seconds only: for headers, and for who reads its answers.

    uvicorn's own waits for ever for the first headers and for the last answer, and reads headers without end.
    """

    most_waiting = 500  # of connections which have not said what they ask; `limit_connections` sets it
    _waiting: ClassVar[OrderedDict[Impatient, None]] = OrderedDict()
    _until: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Begin to wait; of too many who are waited for, who has had longest goes."""
        super().connection_made(transport)
        self._wait()
        if len(self._waiting) > self.most_waiting:
            next(iter(self._waiting))._give_up()

    def data_received(self, data: bytes) -> None:
        """Take what came; headers which do not end go on nobody's account."""
        self._header_bytes += len(data)
        super().data_received(data)
        if self._until is not None and self._header_bytes > _HEADERS_BYTES:
            self._give_up()

    def on_message_begin(self) -> None:
        """Wait for the headers of the next request on this connection."""
        super().on_message_begin()
        self._wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes behind a body in pieces is none."""
        if self._until is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop waiting; who sends ever more before it has an answer is told that this is no HTTP."""
        self._stop_waiting()
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError(f"more than {_MOST_PIPELINED} requests at once")
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Wait until the client reads; who does not is cut off."""
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(_READ_S, self._abort)

    def resume_writing(self) -> None:
        """Go on, as the client does."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which nothing is asked; it ends also if its last answer is never read."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(_READ_S, self._abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._header_bytes = 0
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
            self.loop.call_later(_READ_S, self._abort)

    def _abort(self) -> None:
        self.transport.abort()
