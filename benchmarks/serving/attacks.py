"""Attacks on the service, and its answers to other clients in the meantime.

    python -m benchmarks.serving.attacks [--connections 20000]

Files, bombs, and huge bodies are sent as requests; slow connections are opened and left. After each, a good client requests a
stored answer. tests/cluster/service/test_sandbox.py has the attacks of code in the sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import itertools
import json
import pickle
import resource
import socket
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.serving.load import job
from benchmarks.serving.running import HOST, Connection, Running, message, running
from benchmarks.tables import table
from vramcast.core.units import gib

_TOKEN: Final = "a-token-which-nobody-guesses"
_CLIENT_FILES: Final = 10  # arbitrary: file descriptors of the attacker reserved for the good client
_GOOD: Final = job("torchvision:resnet18", 2)


class _Runs:
    """A pickle that would create a file when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


def _zip_bomb() -> bytes:
    """Return a trace-like zip of a few MB whose single array has 16 GiB."""
    content = io.BytesIO()
    head = b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2147483648,), }"
    archive = zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open("events.npy", "w") as file:
        file.write(head.ljust(127) + b"\n")
        for _ in range(256):
            file.write(bytes(4 << 20))
    return content.getvalue()


def requests(planted: Path) -> Iterator[tuple[str, dict[str, Any] | bytes]]:
    """Yield the attacks: a name, and a request or its raw body."""
    yield "target is a program", {"target": "os:system"}
    yield "target is a file", {"target": "../../etc/passwd:x"}
    yield "config is a file", {"target": "hf:/etc/shadow"}
    yield "weights from a hub", {"target": "timm:hf-hub:somebody/model", "batch": ["1x3x224x224"]}
    yield "checkpoint is a file", {"target": 'timm:resnet18?{"checkpoint_path": "/etc/passwd"}', "batch": ["1x3x224x224"]}
    yield "card is a file", {**_GOOD, "device": "/etc/passwd.toml"}
    yield "command without --allow-code", {"command": ["python", "-c", f"open({str(planted)!r}, 'w')"]}
    yield "file above the job's folder", {"command": ["train.py"], "files": {"../../planted": ""}}
    yield "pickle that runs code", {"trace": base64.b64encode(pickle.dumps(_Runs(str(planted)))).decode()}
    yield "pickle of a million lists", {"trace": base64.b64encode(b"]" * 1_000_000 + b".").decode()}
    yield "zip bomb", {"trace": base64.b64encode(_zip_bomb()).decode()}
    yield "a batch of 2^60", {**_GOOD, "batch": ["1152921504606846976x3x224x224"]}
    yield "a config of a million layers", {"target": 'hf:gpt2?{"n_layer": 1000000}', "batch": ["input_ids=1x8:int64<9"]}
    yield "JSON of 100 MB", b'{"target": "' + b"x" * 100_000_000 + b'"}'
    yield "JSON nested 5,000,000 deep", b"[" * 5_000_000
    yield "JSON of a million keys", json.dumps({str(number): 0 for number in range(1_000_000)}).encode()


def _headers(token: str) -> str:
    return f"Authorization: Bearer {token}\r\n" if token else ""


def _post(body: dict[str, Any] | bytes, token: str = _TOKEN) -> bytes:
    text = message("/v1/estimates", body) if isinstance(body, dict) else None
    if text is None:
        assert isinstance(body, bytes)
        text = b"POST /v1/estimates HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    return text.replace(b"\r\n", b"\r\n" + _headers(token).encode(), 1)


async def _asked(service: Running, text: bytes) -> tuple[str, str]:
    connection = await Connection.open(service.port)
    try:
        status, body = await connection.ask(text)
        return str(status), json.loads(body).get("error", {}).get("kind", "answered")
    except (OSError, asyncio.IncompleteReadError):
        return "-", "connection closed"
    finally:
        connection.close()


async def _good_ms(service: Running) -> float:
    began = time.perf_counter()
    status, _ = await _asked(service, _post(_GOOD))
    if status != "200":
        raise RuntimeError(f"a good client got {status}")
    return 1000 * (time.perf_counter() - began)


async def _slow(service: Running, count: int) -> tuple[int, int, float]:
    """Return the number of opened connections that send nothing or one byte, the number open after 15 s, and the
    longest wait of a good client in the meantime, ms."""
    opened: list[socket.socket] = []
    addresses = itertools.cycle(f"127.0.0.{number}" for number in range(2, 100))  # ports are unique only per address
    longest = 0.0
    for number in range(count):
        try:
            one = socket.socket()
        except OSError:  # the attacker has no more file descriptors
            break
        opened.append(one)
        one.setblocking(False)
        one.bind((next(addresses), 0))
        one.connect_ex((HOST, service.port))
        if number % 200 == 0:
            try:
                longest = max(longest, await _good_ms(service))
            except OSError:  # the attacker needs one for it too
                break
    for _ in range(_CLIENT_FILES):
        opened.pop().close()
    for one in opened[::2]:
        try:
            one.send(b"P")
        except OSError:
            continue
    for _ in range(15):
        longest = max(longest, await _good_ms(service))
        await asyncio.sleep(1)
    alive = 0
    for one in opened:
        try:
            alive += one.recv(1) != b""
        except BlockingIOError:
            alive += 1
        except OSError:
            pass
        one.close()
    return len(opened), alive, longest


def tried(folder: Path, connections: int) -> list[list[object]]:
    """Return a row for each attack."""
    planted, token = folder / "planted", folder / "token"
    token.write_text(_TOKEN)
    rows: list[list[object]] = []
    with running(folder / "data", "--token-file", str(token), "--job-memory", "3GiB", "--job-timeout", "60") as service:
        asyncio.run(_good_ms(service))
        for guess in ("", "a", _TOKEN[:-1], _TOKEN + "x"):
            rows.append([f"token '{guess[:12]}'", *asyncio.run(_asked(service, _post(_GOOD, guess))), "-", ""])
        for name, body in requests(planted):
            status, kind = asyncio.run(_asked(service, _post(body)))
            good = asyncio.run(_good_ms(service))
            ran = "FILE PLANTED" if planted.exists() or Path("/planted").exists() else ""
            rows.append([name, status, kind, f"{good:.0f} ms", ran])
        opened, alive, longest = asyncio.run(_slow(service, connections))
        rows.append([f"{opened:,} slow connections", "-", f"{alive} open after 15 s", f"{longest:.0f} ms", ""])
        rows.append(
            ["afterwards", "200", "answered", f"{asyncio.run(_good_ms(service)):.0f} ms", gib(service.resident_bytes())]
        )
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", type=int, default=20_000)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        rows = tried(Path(folder), options.connections)
    print(table(["tried", "status", "answer", "a good client waits", "note"], rows))


if __name__ == "__main__":
    main()
