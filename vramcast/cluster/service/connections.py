"""Limits on connections, so that clients cannot use up the file descriptors or the memory of the process."""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEADERS_S: Final = 10.0  # arbitrary: time limit for a request's headers
_HEADERS_BYTES: Final = 32 << 10  # arbitrary: headers of a request, including its first line
_MOST_PIPELINED: Final = 16  # arbitrary: requests of a connection that wait for their turn; each takes about 5 kB
_READ_S: Final = 10.0  # arbitrary: time limit for a client to read its response


def limit_connections() -> None:
    """Raise this process's limit of open files to the maximum, and wait for requests on half as many connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    TimeLimitedProtocol.most_waiting = most // 2


class TimeLimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with time limits: for headers, and for clients that do not read their responses.

    uvicorn itself waits without limit for the first headers and the last response, and reads headers of any length.
    """

    most_waiting = 500  # connections that have not sent a request; set by `limit_connections`
    _waiting: ClassVar[OrderedDict[TimeLimitedProtocol, None]] = OrderedDict()
    _until: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Start waiting; if too many connections wait, close the one that has waited longest."""
        super().connection_made(transport)
        self._wait()
        if len(self._waiting) > self.most_waiting:
            next(iter(self._waiting))._give_up()

    def data_received(self, data: bytes) -> None:
        """Process received data; limit the size of headers."""
        self._header_bytes += len(data)
        super().data_received(data)
        if self._until is not None and self._header_bytes > _HEADERS_BYTES:
            self._give_up()

    def on_message_begin(self) -> None:
        """Wait for the headers of the next request on this connection."""
        super().on_message_begin()
        self._wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; ignore trailers after a chunked body."""
        if self._until is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop waiting; reject a client that pipelines too many requests before it gets a response."""
        self._stop_waiting()
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError(f"more than {_MOST_PIPELINED} requests at once")
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Wait until the client reads; disconnect it if it does not."""
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(_READ_S, self._abort)

    def resume_writing(self) -> None:
        """Continue when the client reads again."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; end it also if its last response is never read."""
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
