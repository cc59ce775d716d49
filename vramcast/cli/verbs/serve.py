"""Serve estimates, checks and observations over HTTP, for schedulers (docs/serving.md).

vramcast serve --port 8765 --data /var/lib/vramcast
vramcast serve --token-file token --allow-code --workers 4 --job-memory 16GiB
vramcast serve --admission --tls-cert tls.crt --tls-key tls.key
curl -s localhost:8765/v1/checks -d '{"target": "torchvision:vgg16", "batch": ["64x3x224x224"], "device": "t4"}'
"""

from __future__ import annotations

import argparse
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

from vramcast.cli import values
from vramcast.cli.streams import say
from vramcast.cluster.service.operator_log import LEVELS, write_log
from vramcast.core.cache import VARIABLE
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.core.extras import needed
from vramcast.core.units import parse_bytes

_BACKLOG = 2048  # spec: uvicorn's default; connections that the kernel queues until they are accepted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=values.count(0, 65535), default=8765, metavar="PORT", help="port to listen on (default: 8765)"
    )
    parser.add_argument(
        "--data",
        default="vramcast-service",
        metavar="DIR",
        help="folder for data that must survive a restart (default: vramcast-service)",
    )
    parser.add_argument(
        "--workers",
        type=values.count(1),
        default=os.cpu_count() or 1,
        metavar="N",
        help="worker processes (default: one per core)",
    )
    parser.add_argument(
        "--queue", type=values.count(1), default=64, metavar="N", help="most requests in the queue (default: 64)"
    )
    parser.add_argument(
        "--job-memory",
        type=values.valid(parse_bytes),
        default="8GiB",
        metavar="SIZE",
        help="main memory limit of one job (default: 8GiB)",
    )
    parser.add_argument(
        "--job-timeout", type=values.positive, default=120.0, metavar="SECONDS", help="time limit of one job (default: 120)"
    )
    parser.add_argument(
        "--artifact", metavar="DIR", help="the learned correction to use; default: $VRAMCAST_ARTIFACT, else the shipped one"
    )
    parser.add_argument(
        "--level",
        type=values.level,
        default=0.99,
        metavar="P",
        help="confidence level of requests, maintained by observations (default: 0.99)",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="clients must send a token from this file: a single token, or lines NAME TOKEN [weight=W] [rate=R]",
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="also answer requests with commands and files, each in a sandbox (bubblewrap); needs --token-file",
    )
    parser.add_argument(
        "--admission",
        action="store_true",
        help="also answer Kubernetes admission reviews (docs/kubernetes.md), without a token",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate; needs --tls-key")
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="lowest level of events on stderr (default: info)")
    parser.add_argument("--tls-key", metavar="FILE", help="the private key of the certificate")


def main(options: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    with needed("The service", "serve"):
        import uvicorn

        from vramcast.cluster.service.access import Rules
        from vramcast.cluster.service.app import create_app
        from vramcast.cluster.service.clients import read_clients
        from vramcast.cluster.service.connections import TimeLimitedProtocol, limit_connections
        from vramcast.cluster.service.requests import answered_by
        from vramcast.cluster.service.sandbox import places
        from vramcast.cluster.service.service import Service
        from vramcast.cluster.service.store import Store
        from vramcast.cluster.service.workers import Workers, WorkerSlot

    clients = read_clients(options.token_file)
    if options.allow_code and not clients.needs_token:
        raise UsageError("--allow-code runs code that clients send: give --token-file, so that only known clients can.")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise UsageError("HTTPS needs both --tls-cert and --tls-key: give both, or neither.")
    store = Store(Path(options.data))
    try:
        limits = (options.queue, options.job_timeout, parse_bytes(options.job_memory))
        program = [
            "-m",
            "vramcast.cluster.service.worker_main",
            *(["--artifact", options.artifact] if options.artifact else []),
        ]
        workers = Workers([WorkerSlot([sys.executable, "-P", *program]) for _ in range(options.workers)], *limits)
        sandboxes, held = None, ""
        if options.allow_code:
            cache = _prepared(Path(options.data).absolute() / "sandbox")
            found, held = places([*program, "--sandboxed"], cache, options.workers, limits[2])
            sandboxes = Workers(found, *limits, is_fresh=True)
        service = Service(store, workers, answered_by(options.artifact), options.level, sandboxes, clients.weights)
        pools = [workers] if sandboxes is None else [workers, sandboxes]
        app = create_app(service, pools, Rules(clients, options.allow_code, admits=options.admission))
        limit_connections()
        write_log(options.log_level)
        if held:
            say(f"sandbox: {held}")
        tls = _tls(options.tls_cert, options.tls_key)
        address = f"http{'s' if tls else ''}://{options.host}:{options.port}/"
        say(f"vramcast listens on {address}, where a page answers; API reference at /docs")
        config = uvicorn.Config(
            app,
            options.host,
            options.port,
            http=TimeLimitedProtocol,
            access_log=False,
            log_config=None,
            backlog=_BACKLOG,
            **tls,
        )
        uvicorn.Server(config).run()
    finally:
        store.close()
    return 0


def _prepared(folder: Path) -> Path:
    """Return a cache folder with everything a sandbox may read: the compiled null GPU.

    Raises:
        CannotEstimate: It cannot be compiled here.
    """
    code = (
        "from vramcast.simulator import compiled; from vramcast.tracer.nullgpu.client import NullGpuTracer; "
        "compiled.library(); NullGpuTracer.shared().close()"
    )
    environment = {**os.environ, VARIABLE: str(folder)}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotEstimate(f"The sandbox's null GPU cannot be prepared: {done.stderr.strip()[-500:]}")
    return folder


def _tls(certificate: str | None, key: str | None) -> dict[str, Any]:
    """Return uvicorn's options for HTTPS; none for HTTP.

    Raises:
        UsageError: The files are not a certificate and its key.
    """
    if certificate is None:
        return {}
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:  # also ssl.SSLError
        raise UsageError(
            f"--tls-cert '{certificate}' cannot be used ({error}): give a certificate and its key as PEM files."
        ) from None
    return {"ssl_certfile": certificate, "ssl_keyfile": key}
