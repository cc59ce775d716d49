"""Serve estimates, checks and observations over HTTP, for schedulers (docs/serving.md).

vramcast serve --port 8765 --data /var/lib/vramcast
curl -s localhost:8765/v1/checks -d '{"target": "torchvision:vgg16", "batch": ["64x3x224x224"], "device": "t4"}'
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from vramcast.cli.streams import say
from vramcast.errors import UsageError
from vramcast.units import parse_bytes

_BACKLOG = 2048  # spec: uvicorn's own; connections which the kernel keeps until they are accepted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8765, help="(default: 8765)")
    parser.add_argument("--data", default="vramcast-service", metavar="DIR", help="what is kept (default: vramcast-service)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: one a core)")
    parser.add_argument("--queue", type=int, default=64, metavar="N", help="questions which may wait (default: 64)")
    parser.add_argument("--job-memory", default="8GiB", metavar="SIZE", help="main memory of one job (default: 8GiB)")
    parser.add_argument("--job-timeout", type=float, default=120.0, metavar="SECONDS", help="of one job (default: 120)")
    parser.add_argument("--artifact", metavar="DIR", help="a learned correction; default: $VRAMCAST_ARTIFACT, else the shipped")
    parser.add_argument("--level", type=float, default=0.99, help="of requests, kept true by observations (default: 0.99)")
    parser.add_argument("--token-file", metavar="FILE", help="clients must show the token which is in it")


def main(options: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    try:
        import uvicorn

        from vramcast.service.app import Rules, create_app
        from vramcast.service.connections import Impatient
    except ImportError as error:
        raise UsageError(
            f"The service needs packages which are not installed: pip install 'vramcast[serve]' ({error.name})."
        ) from None
    from vramcast.service.kept import Store
    from vramcast.service.service import Service
    from vramcast.service.versions import answered_by
    from vramcast.service.workers import Limits, Workers

    if options.workers < 1 or options.queue < 1:
        raise UsageError(f"--workers {options.workers}, --queue {options.queue}: each is at least 1.")
    store = Store(Path(options.data))
    try:
        limits = Limits(options.job_timeout, parse_bytes(options.job_memory))
        arguments = ["--artifact", options.artifact] if options.artifact else []
        workers = Workers(options.workers, options.queue, limits, arguments)
        service = Service(store, workers, answered_by(options.artifact), options.level)
        app = create_app(service, workers, Rules(_token(options.token_file)))
        say(f"vramcast serves on http://{options.host}:{options.port}, its API is shown at /docs")
        config = uvicorn.Config(
            app, options.host, options.port, http=Impatient, access_log=False, log_level="warning", backlog=_BACKLOG
        )
        uvicorn.Server(config).run()
    finally:
        store.close()
    return 0


def _token(path: str | None) -> str:
    """Return the token in a file.

    Raises:
        UsageError: there is none.
    """
    if path is None:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file '{path}' cannot be read ({error}).") from None
    if not token:
        raise UsageError(f"--token-file '{path}' is empty: write a token into it.")
    return token
