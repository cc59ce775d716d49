"""Messages between the caller and its worker: each is a pickle behind its length. Both ends are our own processes.

A job's code runs in one of these. A process that must not trust it calls `believe_data_alone`: then a pickle creates only
data.

Waiting ends at our own deadline, not at the socket's: a signal handler of the caller may raise TimeoutError or OSError
itself, and errors raised here must not be mistaken for those.
"""

from __future__ import annotations

import io
import math
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

# A variable of a job's environment: a folder created by its caller. A process that finds the caller gone removes the
# folder. nullgpu/startup/sitecustomize.py reads the variable too.
LENT = "VRAMCAST_SUBPROCESSES"
_LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 20  # arbitrary
_POLL_LIMIT_S = 3600.0  # arbitrary: poll(2) accepts at most 24 days; the wait is then repeated
_DATA = frozenset(
    {("builtins", name) for name in ("bytearray", "complex", "frozenset", "range", "set", "slice")}
    | {("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")}
    | {("pathlib", name) for name in ("PosixPath", "PurePosixPath")}
    | {("numpy", "dtype"), ("numpy", "ndarray")}
    | {(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")}
    | {(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")}
)
_OURS = "vramcast."


class _DataAlone(pickle.Unpickler):
    """An unpickler of plain values, arrays, and our own records; any other name in a pickle is an error."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that a pickle may instantiate."""
        if (module, name) in _DATA:
            return super().find_class(module, name)
        if module.startswith(_OURS) and not module.endswith("__main__") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum | tuple)):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not data")

    def load(self) -> Any:
        """Return the object in the pickle; any defect is an UnpicklingError."""
        try:
            return super().load()
        except Exception as error:
            raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from None


def _read_data_alone(data: bytes | memoryview) -> Any:
    return _DataAlone(io.BytesIO(data)).load()


_read: Callable[[bytes | memoryview], Any] = pickle.loads


def believe_data_alone() -> None:
    """From now on, reject every pickle in this process that creates more than data: a job may have written it."""
    global _read
    _read = _read_data_alone


def loads(data: bytes | memoryview) -> Any:
    """Return the object in a pickle from one of our processes.

    Raises:
        Unreadable: A class is unknown here, or raises; memory ran out.
    """
    try:
        return _read(data)
    except Exception as error:  # unpickling runs the classes' own code
        raise Unreadable(f"{type(error).__name__}: {error}") from None


class Gone(Exception):
    """The other end is gone."""


class Late(Exception):
    """The deadline has passed."""


class Unreadable(Exception):
    """A complete message has come that this process cannot read; says why."""


class Frame:
    """The received part of one message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._data += piece

    @property
    def missing_bytes(self) -> int:
        """Return the number of bytes known to be missing; 0: the message is complete."""
        if len(self._data) < _LENGTH.size:
            return _LENGTH.size - len(self._data)
        return int(_LENGTH.unpack_from(self._data)[0]) + _LENGTH.size - len(self._data)

    @property
    def data(self) -> bytes:
        """Return the bytes, including the length: ready to be sent on."""
        return bytes(self._data)

    def message(self) -> Any:
        """Return the message, which is complete. Only between our own processes.

        Raises:
            Unreadable: See `loads`.
        """
        return loads(memoryview(self._data)[_LENGTH.size :])


def pack(message: Any) -> bytes:
    """Return a message as bytes."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def send(connection: socket.socket, message: Any, deadline: float = math.inf) -> None:
    """Send one message; see `send_packed`."""
    send_packed(connection, pack(message), deadline)


def send_packed(connection: socket.socket, data: bytes, deadline: float = math.inf) -> None:
    """Send one packed message.

    Raises:
        Gone: The other end is gone.
        Late: It did not take the message before the deadline (on time.monotonic's clock).
    """
    rest = memoryview(data)
    while rest:
        _wait(connection, select.POLLOUT, deadline)
        try:
            rest = rest[connection.send(rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            continue
        except OSError:
            raise Gone from None


def receive(connection: socket.socket, deadline: float = math.inf) -> Any:
    """Return the next message. Only between our own processes.

    Raises:
        Gone: The other end is gone.
        Late: The message was incomplete at the deadline (on time.monotonic's clock).
        Unreadable: It is not a valid message.
    """
    frame = Frame()
    while frame.missing_bytes:
        _wait(connection, select.POLLIN, deadline)
        try:
            piece = connection.recv(min(frame.missing_bytes, _PIECE_BYTES), socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        except OSError:
            raise Gone from None
        if not piece:
            raise Gone
        frame.add(piece)
    return frame.message()


def _wait(connection: socket.socket, event: int, deadline: float) -> None:
    if connection.fileno() < 0:  # closed in a fork
        raise Gone
    poll = select.poll()
    poll.register(connection, event)
    while True:
        left_s = deadline - time.monotonic()
        if poll.poll(1000 * min(max(left_s, 0), _POLL_LIMIT_S)):
            return
        if left_s <= 0:
            raise Late
