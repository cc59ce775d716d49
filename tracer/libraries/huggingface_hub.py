"""Hugging Face's hub without a network: files missing from the cache fail at once, not after a minute of retries."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from vramcast.tracer.hooks.replacement import when_imported
from vramcast.tracer.libraries.library import Library

_WAIT_S: Final = 1.0  # arbitrary: a name server that takes longer may just be slow
_VARIABLE: Final = "HF_HUB_OFFLINE"  # spec: huggingface_hub's environment variables


@contextmanager
def noticed() -> Iterator[None]:
    """Switch on the hub's own offline mode when it is imported inside, if its host has no address here."""
    with when_imported("huggingface_hub", _look):
        yield


def _look() -> None:
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not getproxies() and _has_no_address(urlsplit(constants.ENDPOINT).hostname or ""):
        constants.HF_HUB_OFFLINE = True
        os.environ[_VARIABLE] = "1"  # for processes that the job starts


def _has_no_address(host: str) -> bool:
    """Return whether the name servers have no address for a host; a slow answer counts as an address."""
    found: list[bool] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, 443)
        except OSError:
            found.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be started
        asking.start()
        asking.join(_WAIT_S)
    return bool(found)


LIBRARY: Final = Library("huggingface_hub", lambda process: noticed())
