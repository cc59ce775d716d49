"""Access rules: the client's token, and the size and the duration of its request."""

# Annotations are evaluated here: older releases of FastAPI do not read string annotations of an instance's __call__.
import asyncio
import math
from dataclasses import dataclass, field
from typing import Final

from fastapi import Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import ClientDisconnect, HTTPConnection

from vramcast.cluster.service.clients import Client, Clients

_HOW: Final = "send the header Authorization: Bearer TOKEN"
_BODY_S: Final = 10.0  # arbitrary: time limit for a body


@dataclass(frozen=True, slots=True)
class Rules:
    """The access rules of a service.

    Attributes:
        clients: The clients with access.
        allows_code: Whether code that a client sends is run, in a sandbox.
        body_bytes: Largest request that is read.
        admits: Whether it answers Kubernetes admission reviews, which carry no token.
    """

    clients: Clients = field(default_factory=Clients)
    allows_code: bool = False
    body_bytes: int = 32 << 20
    admits: bool = False


class RefusedRequest(Exception):
    """A request that gets an error; `kind` sets the status."""

    def __init__(self, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.headers = headers


class Token(HTTPBearer):
    """The security scheme of the API: each request carries its client's token, if the service has tokens."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(
            scheme_name="token",
            auto_error=False,
            description="A token from `--token-file`; a service without that file needs none.",
        )
        self._clients = clients

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Record the client; raise if the token is wrong or missing, or if the client exceeds its rate."""
        shown = await super().__call__(request)
        admit(
            request, self._clients, shown.credentials if shown else "", "send the header Authorization: Bearer TOKEN", "Bearer"
        )
        return shown


def admit(request: HTTPConnection, clients: Clients, token: str, how: str, challenge: str) -> None:
    """Record the client of a token; raise if the token is wrong or missing, or if the client exceeds its rate.

    Args:
        request: The request.
        clients: The clients with access.
        token: The token; "" if the request shows none.
        how: The way to show it, for the message.
        challenge: The way to show it, as in HTTP.
    """
    client = clients.showing(token)
    if client is None:
        raise RefusedRequest("unauthorized", f"Wrong or missing token: {how}.", {"WWW-Authenticate": challenge})
    if wait_s := client.wait_s():
        why = f"The client '{client.name}' exceeds its limit of {client.rate:g} requests per second: retry later."
        raise RefusedRequest("overloaded", why, {"Retry-After": str(math.ceil(wait_s))})
    request.state.client = client


def client_of(request: Request) -> Client:
    """Return the client, whose token has been checked."""
    client: Client = request.state.client
    return client


def asker_of(request: Request) -> str:
    """Return the queue share that a request belongs to: a client's, or an address's if all share one token."""
    return client_of(request).name or (request.client.host if request.client else "")


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Return a request's body, unless it is too large or too slow."""
    said = request.headers.get("content-length", "0")
    if said.isdecimal() and int(said) > most_bytes:
        raise RefusedRequest("too_large", f"The request has {said} bytes, but at most {most_bytes} are allowed.")
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise RefusedRequest(
                        "too_large", f"The request has more than {most_bytes} bytes, the most that are allowed."
                    )
    except TimeoutError:
        raise RefusedRequest("usage", f"The request's body did not arrive within {_BODY_S:g} s: send it again.") from None
    except ClientDisconnect:
        raise RefusedRequest("usage", "The client disconnected before its request was complete.") from None
    return bytes(body)
