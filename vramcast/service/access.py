"""Whom the service answers: the token that a client shows, and how large and how slow its request may be."""

# Annotations are evaluated here: older releases of FastAPI read none of an instance's __call__ as text.
import asyncio
import math
from dataclasses import dataclass, field
from typing import Final

from fastapi import Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import ClientDisconnect, HTTPConnection

from vramcast.service.clients import Client, Clients

_BODY_S: Final = 10.0  # arbitrary: by then a body must be there


@dataclass(frozen=True, slots=True)
class Rules:
    """Whom the service answers.

    Attributes:
        clients: Who may ask.
        allows_code: Whether what a client wrote is run, in a sandbox.
        body_bytes: No larger request is read.
        admits: Whether it answers Kubernetes' admission reviews, which show no token.
    """

    clients: Clients = field(default_factory=Clients)
    allows_code: bool = False
    body_bytes: int = 32 << 20
    admits: bool = False


class Refused(Exception):
    """A request that gets an error; `kind` decides the status."""

    def __init__(self, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.headers = headers


class Token(HTTPBearer):
    """The security scheme of the API: each request shows its client's token, if the service has any."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(
            scheme_name="token", auto_error=False, description="One of `--token-file`; a service without one asks for none."
        )
        self._clients = clients

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Note who asks; raise where another token is shown, or none, or where its client asks too often."""
        shown = await super().__call__(request)
        client = self._clients.showing(shown.credentials if shown else "")
        if client is None:
            why = "Show the service's token: Authorization: Bearer TOKEN."
            raise Refused("unauthorized", why, {"WWW-Authenticate": "Bearer"})
        if wait_s := client.wait_s():
            why = f"The client '{client.name}' asks more than {client.rate:g} times a second."
            raise Refused("overloaded", why, {"Retry-After": str(math.ceil(wait_s))})
        request.state.client = client
        return shown


def client_of(request: Request) -> Client:
    """Return who asks; a token was looked at."""
    client: Client = request.state.client
    return client


def asker_of(request: Request) -> str:
    """Return on whose share of the queue a question waits: a client's, or where there is one for all, an address's."""
    return client_of(request).name or (request.client.host if request.client else "")


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Return a request's body, if it is not too large and does not take too long."""
    said = request.headers.get("content-length", "0")
    if said.isdecimal() and int(said) > most_bytes:
        raise Refused("too_large", f"The request has {said} bytes: at most {most_bytes} are read.")
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise Refused("too_large", f"The request is larger than {most_bytes} bytes.")
    except TimeoutError:
        raise Refused("usage", f"The request's body did not come within {_BODY_S:g} s.") from None
    except ClientDisconnect:
        raise Refused("usage", "The client left before its request was complete.") from None
    return bytes(body)
