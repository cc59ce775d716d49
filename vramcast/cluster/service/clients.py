"""Clients of the service: names, tokens, the weight of their observations, and their rate limits.

A token file has one client per line, or a single bare token that all clients share:

    # NAME TOKEN [weight=W] [rate=R]
    submit  5up3r-s3cret              rate=50
    epilog  sha256:9f86d081884c7d65…  weight=1
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vramcast.core.errors import UsageError

# arbitrary: one or ten thousand false reports move a request between the bounds at 0.98 and 0.9999, and never to the card
WEIGHT: Final = 0.05
_NAME: Final = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_HASHED: Final = re.compile(r"sha256:([0-9a-f]{64})")
_NUMBER: Final = re.compile(r"(weight|rate)=(\d{1,6}(?:\.\d{1,6})?)", re.ASCII)
_LIMITS: Final = {"weight": 1.0, "rate": math.inf}


@dataclass(eq=False, slots=True)
class Client:
    """A client.

    Attributes:
        name: Name of the client; "": any client with the single token, or of a service without tokens.
        digest: SHA-256 of the token.
        weight: Influence of its observations on the level of a group's requests: 0 none, 1 from the lowest request to the
            whole card.
        rate: Requests per second, and size of a burst; infinite: no limit.
    """

    name: str = ""
    digest: bytes = b""
    weight: float = WEIGHT
    rate: float = math.inf
    _left: float = field(default=0.0, init=False)
    _at: float = field(default=-math.inf, init=False)

    def wait_s(self, now: float | None = None) -> float:
        """Count a request; return the seconds to wait before its answer: 0 within the client's rate."""
        if self.rate == math.inf:
            return 0.0
        now = time.monotonic() if now is None else now
        self._left, self._at = min(max(self.rate, 1.0), self._left + (now - self._at) * self.rate), now
        if self._left < 1:
            return (1 - self._left) / self.rate
        self._left -= 1
        return 0.0


class Clients:
    """All clients.

    Args:
        clients: None: no token is needed.
    """

    def __init__(self, clients: Iterable[Client] = ()) -> None:
        self._clients = tuple(clients)
        self.needs_token = bool(self._clients)

    @property
    def weights(self) -> Mapping[str, float]:
        """Weights by name; observations of other clients count for nothing."""
        return {one.name: one.weight for one in self._clients or (_ANYBODY,)}

    def showing(self, token: str) -> Client | None:
        """Return the client with a token; the time taken does not depend on how much two tokens have in common."""
        if not self.needs_token:
            return _ANYBODY
        shown, found = hashlib.sha256(token.encode()).digest(), None
        for client in self._clients:  # check every client, so that the time is constant
            if hmac.compare_digest(shown, client.digest):
                found = client
        return found


_ANYBODY: Final = Client()


def read_clients(path: str | None) -> Clients:
    """Return the clients in a token file; None: no token is needed.

    Raises:
        UsageError: There are no clients, or a line is wrong.
    """
    if path is None:
        return Clients()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file '{path}' cannot be read ({error}): give a file that this user can read.") from None
    entries = [
        (number, line.split()) for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")
    ]
    if not entries:
        raise UsageError(f"--token-file '{path}' is empty: write a token into it.")
    if len(entries) == 1 and len(entries[0][1]) == 1:
        return Clients([Client("", _digest(entries[0][1][0]))])
    clients = [_client(words, f"--token-file '{path}', line {number}") for number, words in entries]
    for what in ("name", "digest"):
        if len({getattr(one, what) for one in clients}) < len(clients):
            raise UsageError(
                f"--token-file '{path}' gives two clients the same {'name' if what == 'name' else 'token'}: change one of them."
            )
    return Clients(clients)


def _client(words: list[str], where: str) -> Client:
    """Return the client of a line. No message repeats a token."""
    if len(words) < 2 or not _NAME.fullmatch(words[0]):
        raise UsageError(f"{where} is not 'NAME TOKEN [weight=W] [rate=R]': a name has letters, digits and . @ _ -.")
    numbers = {}
    for word in words[2:]:
        said = _NUMBER.fullmatch(word)
        if (
            said is None
            or said[1] in numbers
            or float(said[2]) > _LIMITS[said[1]]
            or (said[1] == "rate" and not float(said[2]))
        ):
            raise UsageError(f"{where} has '{word}': give weight=W from 0 to 1, or rate=R above 0, each at most once.")
        numbers[said[1]] = float(said[2])
    return Client(words[0], _digest(words[1]), **numbers)


def _digest(token: str) -> bytes:
    hashed = _HASHED.fullmatch(token)
    return bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(token.encode()).digest()
