"""Clients: the token file, and a client's rate."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest

from vramcast.cluster.service.clients import WEIGHT, Client, read_clients
from vramcast.core.errors import UsageError


def written(folder: Path, text: str) -> str:
    (folder / "tokens").write_text(text)
    return str(folder / "tokens")


def test_all_are_one_client_without_file() -> None:
    clients = read_clients(None)
    found = clients.showing("anything")
    assert (found is not None and found.name, clients.needs_token, clients.weights) == ("", False, {"": WEIGHT})


def test_bare_token_is_shared(tmp_path: Path) -> None:
    clients = read_clients(written(tmp_path, "  s3cret\n"))
    assert (clients.needs_token, clients.weights) == (True, {"": WEIGHT})
    assert clients.showing("s3cret") is not None
    assert all(
        clients.showing(other) is None
        for other in ("", "s3cre", "s3cret2", "S3CRET", "s\udce9cret".encode("utf-8", "replace").decode())
    )


def test_clients_have_tokens_or_hashes(tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"long-one").hexdigest()
    clients = read_clients(
        written(tmp_path, f"# who\n\nsubmit s3cret rate=50\nepilog sha256:{hashed} weight=1\nwatch w weight=0\n")
    )
    assert clients.weights == {"submit": WEIGHT, "epilog": 1.0, "watch": 0.0}
    submit, epilog = clients.showing("s3cret"), clients.showing("long-one")
    assert submit is not None
    assert (submit.name, submit.rate) == ("submit", 50.0)
    assert epilog is not None
    assert (epilog.name, epilog.rate) == ("epilog", math.inf)
    assert clients.showing(f"sha256:{hashed}") is clients.showing(hashed) is clients.showing("submit") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# nobody\n", "is empty"),
        ("a\nb\n", "line 1 is not 'NAME TOKEN"),
        ("a t\nb\n", "line 2 is not 'NAME TOKEN"),
        ("a/b t\n", "line 1 is not"),
        ("é t\n", "line 1 is not"),
        ("a t weight=2\n", "weight=2"),
        ("a t weight=nan\n", "weight=nan"),
        ("a t weight=-1\n", "weight=-1"),
        ("a t weight=１\n", "weight=１"),
        ("a t rate=0\n", "rate=0"),
        ("a t rate=1 rate=2\n", "rate=2"),
        ("a t root=1\n", "root=1"),
        ("a t\na u\n", "the same name"),
        ("a t\nb t\n", "the same token"),
    ],
)
def test_file_errors_never_show_tokens(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_clients(written(tmp_path, text.replace(" t", " t0k3n")))
    assert said in str(error.value)
    assert "t0k3n" not in str(error.value)


def test_limits_requests_to_rate() -> None:
    client = Client(rate=2.0)
    assert [client.wait_s(now=0.0) > 0 for _ in range(3)] == [False, False, True]
    assert client.wait_s(now=0.25) == pytest.approx(0.25)
    assert [client.wait_s(now=now) > 0 for now in (0.5, 0.75, 1.0, 1.0)] == [False, True, False, True]
    assert [client.wait_s(now=1000.0) > 0 for _ in range(3)] == [False, False, True]


def test_allows_rate_below_one_per_second() -> None:
    client = Client(rate=0.1)
    assert [client.wait_s(now=now) > 0 for now in (0.0, 5.0, 10.0)] == [False, True, False]
