"""A real service in a process of its own, and clients that send requests as fast as possible."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

HOST: Final = "127.0.0.1"
_START_S: Final = 60.0  # arbitrary: imports on a busy machine


@dataclass(slots=True)
class Running:
    """A running service: its process and its address."""

    process: subprocess.Popen[bytes]
    port: int

    def resident_bytes(self) -> int:
        """Return the resident memory of the service and its workers; shared pages count for each."""
        own = psutil.Process(self.process.pid)
        total = 0
        for one in (own, *own.children(recursive=True)):
            try:
                total += one.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def kill(self) -> None:
        """Kill it at once, like a power failure; its workers see their pipes close."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue


@contextmanager
def running(data: Path, *options: str) -> Iterator[Running]:
    """Yield a service that stores its data in a folder, until the block ends."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "vramcast", "serve", "--port", str(port), "--data", str(data), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    found = Running(process, port)
    try:
        _await(found)
        yield found
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _await(service: Running) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and service.process.poll() is None:
        try:
            socket.create_connection((HOST, service.port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"The service did not listen within {_START_S:g} s (exit code {service.process.poll()}).")


def message(path: str, body: dict[str, Any]) -> bytes:
    """Return a POST request as bytes on the wire."""
    content = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(content), content)


@dataclass(slots=True)
class Answers:
    """Answers: seconds and status of each, and the bodies on request."""

    seconds: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


class Connection:
    """One client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Return a connection to a service."""
        return cls(*await asyncio.open_connection(HOST, port, limit=64 << 20))

    async def ask(self, text: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer to a message."""
        self._writer.write(text)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return status, await self._reader.readexactly(length)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def ask_all(port: int, messages: Sequence[bytes], clients: int, *, keep: bool = False) -> Answers:
    """Return the answers to these messages for several simultaneous clients, each with one connection."""
    found = Answers()
    left = iter(messages)

    async def client() -> None:
        connection = await Connection.open(port)
        for text in left:
            began = time.perf_counter()
            status, body = await connection.ask(text)
            found.seconds.append(time.perf_counter() - began)
            found.statuses.append(status)
            if keep:
                found.bodies.append(body)
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return found
