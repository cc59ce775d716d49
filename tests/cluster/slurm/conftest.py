"""A service with preset answers, which records the requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from vramcast.cluster.slurm.site_settings import SiteSettings

ID = "b" * 64


class Service:
    """Answers `POST` by path from `answers`: a status and JSON; after `wait_s`.

    Attributes:
        asked: Path, body and Authorization of each request.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        self.wait_s = 0.0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # http.server's name
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append((self.path, body, self.headers.get("Authorization", "")))
                time.sleep(service.wait_s)
                status, found = service.answers.get(
                    f"{self.path} {body.get('device')}", service.answers.get(self.path, (404, {}))
                )
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """Ignore a client that no longer waits."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def fits(self, device: str, process_bytes: int, request_bytes: int, capacity_bytes: int) -> None:
        """Answer checks on a card with these numbers."""
        verdict = {"value": "fits" if process_bytes <= capacity_bytes else "does not fit"}
        answer = {"id": ID, "verdict": verdict, "request_bytes": request_bytes, "process_bytes": process_bytes}
        for path in ("/v1/checks", "/v1/scripts"):
            self.answers[f"{path} {device}"] = 200, {**answer, "capacity_bytes": capacity_bytes}


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.fixture
def settings(service: Service, tmp_path: Path) -> SiteSettings:
    """Return the settings of a site with two partitions, whose service is the one above."""
    (tmp_path / "token").write_text("secret\n")
    cards = {"small": "t4", "large": "a100-40gb"}
    folders = {"peaks_folder": tmp_path / "peaks", "outbox": tmp_path / "outbox"}
    return SiteSettings(service.address, cards, token_file=str(tmp_path / "token"), mode="fill", **folders)  # type: ignore[arg-type]
