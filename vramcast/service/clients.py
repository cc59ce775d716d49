"""Who may ask the service: names, tokens, how far their observations move requests, and how much they may ask.

A file of tokens has one client a line, or one bare token, which is then everybody's:

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

# arbitrary: one or ten thousand lies move a request between the bound at 0.98 and the one at 0.9999, and never to the card
WEIGHT: Final = 0.05
_NAME: Final = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_HASHED: Final = re.compile(r"sha256:([0-9a-f]{64})")
_NUMBER: Final = re.compile(r"(weight|rate)=(\d{1,6}(?:\.\d{1,6})?)", re.ASCII)
_LIMITS: Final = {"weight": 1.0, "rate": math.inf}


@dataclass(eq=False, slots=True)
class Client:
    """One who asks.

    Attributes:
        name: "": whoever has the one token, or asks a service without any.
        digest: SHA-256 of the token.
        weight: How far its observations may move the level of a group's requests: 0 not at all, 1 from the lowest request to
            the whole card.
        rate: Requests a second, and as many more at once; infinite: no limit.
    """

    name: str = ""
    digest: bytes = b""
    weight: float = WEIGHT
    rate: float = math.inf
    _left: float = field(default=0.0, init=False)
    _at: float = field(default=-math.inf, init=False)

    def wait_s(self, now: float | None = None) -> float:
        """Count a request; return how long to wait before it is answered: 0 where it is within the client's rate."""
        if self.rate == math.inf:
            return 0.0
        now = time.monotonic() if now is None else now
        self._left, self._at = min(max(self.rate, 1.0), self._left + (now - self._at) * self.rate), now
        if self._left < 1:
            return (1 - self._left) / self.rate
        self._left -= 1
        return 0.0


class Clients:
    """All of them.

    Args:
        clients: None: nobody needs a token.
    """

    def __init__(self, clients: Iterable[Client] = ()) -> None:
        self._clients = tuple(clients)
        self.needs_token = bool(self._clients)

    @property
    def weights(self) -> Mapping[str, float]:
        """By name; of who is none of them, nothing is believed."""
        return {one.name: one.weight for one in self._clients or (_ANYBODY,)}

    def showing(self, token: str) -> Client | None:
        """Return whose token it is; the time that it takes does not tell how alike it is to another one."""
        if not self.needs_token:
            return _ANYBODY
        shown, found = hashlib.sha256(token.encode()).digest(), None
        for client in self._clients:  # to the last: the time is always the same
            if hmac.compare_digest(shown, client.digest):
                found = client
        return found


_ANYBODY: Final = Client()


def read_clients(path: str | None) -> Clients:
    """Return the clients in a file of tokens; None: nobody needs a token.

    Raises:
        UsageError: there are none, or a line is wrong.
    """
    if path is None:
        return Clients()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file '{path}' cannot be read ({error}).") from None
    told = [
        (number, line.split()) for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")
    ]
    if not told:
        raise UsageError(f"--token-file '{path}' is empty: write a token into it.")
    if len(told) == 1 and len(told[0][1]) == 1:
        return Clients([Client("", _digest(told[0][1][0]))])
    clients = [_client(words, f"--token-file '{path}', line {number}") for number, words in told]
    for what in ("name", "digest"):
        if len({getattr(one, what) for one in clients}) < len(clients):
            raise UsageError(f"--token-file '{path}' gives two clients one {'name' if what == 'name' else 'token'}.")
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
            raise UsageError(f"{where} has '{word}': give weight=W from 0 to 1, or rate=R above 0, once.")
        numbers[said[1]] = float(said[2])
    return Client(words[0], _digest(words[1]), **numbers)


def _digest(token: str) -> bytes:
    hashed = _HASHED.fullmatch(token)
    return bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(token.encode()).digest()
