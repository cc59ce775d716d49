"""The page of one service under hostile addresses and 50 clients at once.

No text of an address becomes an element, an attribute that runs, a header or a job; each client gets its own answer, and no
client's text reaches another.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus, urlencode

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.cluster.tenants import TOKENS, Tried, served
from vramcast.core.units import gib

_CLIENTS: Final = 50  # spec: the target number of simultaneous clients
_WAIT_S: Final = 600.0  # arbitrary: fifty traces on busy cores
_JOB: Final = {"target": "resnet18", "device": "t4", "image_size": "64"}
_NAMES: Final = (
    "target", "device", "cards", "parallel", "task", "rank", "batch_size", "seq", "image_size", "precision", "optimizer",
    "checkpointing", "largest", "x",
)  # fmt: skip
# Percent-encoded, because some are no text.
_VALUES: Final = {
    **{
        text: quote_plus(text)
        for text in (
            "\"><script>alert(1)</script>", "</title></style><img src=x onerror=alert(1)>", "'onfocus=alert(1) autofocus='",
            "</option></select><iframe src=//example.org>", "javascript:alert(1)", "{{7*7}}", "{% include '/etc/passwd' %}",
            "${7*7}", "__import__('os').system('id')", "os:system", "train.py:model", "../../etc/passwd", "/etc/card.toml",
            "file:///etc/passwd", "hf:/etc/passwd", "hf:org/model", "timm:hf-hub:org/x",
            "torchvision:vgg11?{\"weights\":\"x\"}", "adamw:fused=__import__('os')", "1e9", "-1", "0x10", "１２", "9" * 400,
            "a" * 9_000, "; rm -rf /", "--on", "\u202egnp.",
        )
    },
    "a header": "x%0D%0ASet-Cookie:+a=b", "a null": "%00", "half a surrogate": "%ED%A0%80", "no UTF-8": "%FF%FE",
    "twice": "1&target=vgg16&target=vgg11",
}  # fmt: skip
_HARMLESS: Final = re.compile(
    "html|head|meta|title|link|style|body|main|h1|h2|a|p|details|summary|form|label|input|select|option|button|datalist|section|"
    "ul|li|progress|pre|code|table|thead|tbody|tr|th|td|div|b|figure|svg|rect|path|text"
)
_OF_HEADERS: Final = {"content-security-policy", "cache-control", "referrer-policy", "x-content-type-options"}


@dataclass(frozen=True, slots=True)
class Page:
    """A response of the page: its status, its headers by their names in lower case, and its text."""

    status: int
    headers: Mapping[str, str]
    text: str


class _Reader(HTMLParser):
    """Collects what an address must not be able to add to a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that a page of ours never has, and an attribute that runs, loads or leads elsewhere."""
        self.found += [] if _HARMLESS.fullmatch(tag) else [f"<{tag}>"]
        for name, value in attrs:
            is_elsewhere = name in ("src", "href", "action") and not re.match(r"/(?!/)|data:,$", value or "")
            if name.startswith("on") or name in ("style", "autofocus", "srcdoc") or is_elsewhere:
                self.found.append(f"{name}={value}")


def _get(service: Tried, query: str, *, authorization: str | None = None, client: str = "alice", **headers: str) -> Page:
    """Return the page at an address, after the redirection to its short form."""
    shown = _basic("x", TOKENS[client]) if authorization is None else authorization
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=_WAIT_S)
    with contextlib.closing(connection):
        connection.request("GET", query, headers={"Authorization": shown, **headers})
        answer = connection.getresponse()
        said = {name.lower(): value for name, value in answer.getheaders()}
        text = answer.read().decode()
    if answer.status == 303:
        return _get(service, said["location"], authorization=authorization, client=client, **headers)
    return Page(answer.status, said, text)


def _basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def faults(page: Page) -> str:
    """Return what is wrong with any page; "" for nothing."""
    found = _Reader(page.text).found
    found += [f"no {name}" for name in _OF_HEADERS - page.headers.keys()]
    found += [name for name in page.headers if name == "set-cookie"]
    found += ["control characters"] if re.search(r"[^\n\x20-\x7e\xa0-\U0010ffff]|[\u202a-\u202e]", page.text) else []
    found += ["an evaluated template"] if re.search(r"\b49\b", _said(page)) else []
    return "; ".join(found) or ("" if page.text.endswith("</html>\n") else "the page is not complete")


def _said(page: Page) -> str:
    """Return the errors of a page."""
    return " ".join(re.findall(r'role="alert">(.*?)</p>', page.text, re.DOTALL))


def cases(folder: Path) -> Iterator[Case]:
    """Yield the cases of this group."""
    with served(folder / "page", "--workers", "2", "--job-timeout", "120") as service:
        yield from _tokens(service)
        yield from _addresses(service)
        yield from _crowds(service)
        yield from _leaving(service)


def _judged(page: Page, *statuses: int) -> Verdict:
    if page.status not in statuses:
        return Verdict(Wrong.WALL, f"{page.status}: {_said(page)[:200]}")
    return Verdict(Wrong.WALL, found[:300]) if (found := faults(page)) else HANDLED


def _tokens(service: Tried) -> Iterator[Case]:
    job = f"/?{urlencode(_JOB)}"
    for name, shown in {
        "none": "",
        "a token of the API": f"Bearer {TOKENS['alice']}",
        "no base64": "Basic !!!",
        "no colon": f"Basic {base64.b64encode(TOKENS['alice'].encode()).decode()}",
        "the name as the password": _basic("alice", "alice"),
        "the token as the name": _basic(TOKENS["alice"], ""),
        "letters beyond ASCII": _basic("x", "älice"),
    }.items():
        for path in ("/", job):
            yield Case(
                "page tokens", f"{name}, {path[:2]}", lambda p=path, s=shown: _judged(_get(service, p, authorization=s), 401)
            )

    def too_often() -> Verdict:
        statuses = [_get(service, "/", client="slow").status for _ in range(20)]
        return Verdict(Wrong.WALL, f"{statuses}") if statuses.count(429) < 15 else HANDLED

    def slow_search() -> Verdict:
        time.sleep(2)
        began = time.monotonic()
        page = _get(
            service, f"/?{urlencode({'target': 'alexnet', 'device': 'rtx3050-laptop', 'largest': 'on'})}", client="slow"
        )
        n_tried, seconds = len(re.findall(r'<th scope="row">\d+</th>', page.text)), time.monotonic() - began
        is_within = "Largest batch that fits" in page.text and seconds > n_tried - 3
        return _judged(page, 200) if is_within else Verdict(Wrong.WALL, f"{n_tried} sizes in {seconds:.0f} s: {_said(page)}")

    yield Case("page tokens", "more than its rate", too_often)
    yield Case("page tokens", "a search by a client with one request per second", slow_search)
    for kind in ("image", "script", "iframe", "empty"):
        yield Case(
            "page tokens", f"another site's {kind}", lambda k=kind: _judged(_get(service, job, **{"Sec-Fetch-Dest": k}), 403)
        )


def _addresses(service: Tried) -> Iterator[Case]:
    def judged(query: str) -> Verdict:
        page = _get(service, query)
        if not _said(page):
            return Verdict(Wrong.UNCLEAR, f"{page.status} without an error: {page.text[-200:]}")
        return _judged(page, 200, 400, 422)  # 200: the error came after the page began

    job = {"target": "gpt2", "device": "t4", "task": "lora", "cards": "2", "batch_size": "1", "seq": "16"}
    for name in _NAMES:
        rest = urlencode({other: value for other, value in job.items() if other != name})
        for value, encoded in _VALUES.items():
            query = f"/?{rest}&{name}={encoded}"
            yield Case("page addresses", f"{name} {value[:40]!r}", lambda query=query: judged(query))
    yield Case("page addresses", "a field named as a script", lambda: judged("/?%3Cscript%3E=1"))
    yield Case("page addresses", "a thousand fields", lambda: judged("/?" + "&".join(f"a{n}=1" for n in range(1000))))


def _at_once(ask: Callable[[int], str]) -> Verdict:
    """Return the verdict on clients that ask at the same moment; each says what is wrong with its answer."""
    gate = threading.Barrier(_CLIENTS)

    def wait_and_ask(number: int) -> str:
        gate.wait()
        return ask(number)

    with ThreadPoolExecutor(_CLIENTS) as pool:
        wrong = [said for said in pool.map(wait_and_ask, range(_CLIENTS)) if said]
    return Verdict(Wrong.WALL, f"{len(wrong)} of {_CLIENTS}: {wrong[0]}"[:300]) if wrong else HANDLED


def _crowds(service: Tried) -> Iterator[Case]:
    """Yield 50 clients at once: with a question each, with one question, with errors that repeat the client's text."""

    def own_answer(number: int) -> str:
        client, size = ("alice", "bob")[number % 2], 100 + number
        page = _get(service, f"/?{urlencode({**_JOB, 'batch_size': size})}", client=client)
        body = {"target": "torchvision:resnet18", "device": "t4", "image_size": 64, "batch_size": size, "wait_s": 300}
        status, found = service.post("/v1/checks", body, client)
        if status != 200 or page.status != 200 or faults(page):
            return f"{page.status}, {status}: {faults(page)}; {_said(page)}; {found}"
        sizes = set(re.findall(r"--batch-size (\d+)|batch_size=(\d+)", page.text))
        peak = f"<td>{gib(found['process_bytes'])}</td>"
        return "" if sizes == {(str(size), ""), ("", str(size))} and peak in page.text else f"batch {size}: {sizes}"

    def same_answer(number: int) -> str:
        page = _get(service, f"/?{urlencode({**_JOB, 'target': 'resnet34'})}", client=("alice", "bob")[number % 2])
        return faults(page) or ("" if "Fits: at most" in page.text else f"{page.status}: {_said(page)}")

    def own_error(number: int) -> str:
        mark = f"mark{number}of"
        page = _get(service, f"/?{urlencode({**_JOB, 'target': f'<b>{mark}'})}", client=("alice", "bob")[number % 2])
        seen = set(re.findall(r"mark\d+of", page.text))
        return faults(page) or ("" if seen == {mark} and page.status == 400 else f"{page.status}: {seen}")

    def one_trace() -> Verdict:
        before = _count(service, "vramcast_joined_questions_total")
        verdict = _at_once(same_answer)
        joined = _count(service, "vramcast_joined_questions_total") - before
        return verdict if joined > 0 or not verdict.is_handled else Verdict(Wrong.WALL, "no question was joined")

    yield Case("page crowds", "50 questions", lambda: _at_once(own_answer))
    yield Case("page crowds", "one question 50 times", one_trace)
    yield Case("page crowds", "50 errors with marks", lambda: _at_once(own_error))
    yield Case("page crowds", "the form afterwards", lambda: _judged(_get(service, "/", client="bob"), 200))


def _count(service: Tried, name: str) -> float:
    """Return a number of the service's metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        found = re.search(rf"^{name} (\S+)$", connection.getresponse().read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def _leaving(service: Tried) -> Iterator[Case]:
    def left() -> Verdict:
        shown = _basic("x", TOKENS["alice"])
        for number in range(30):
            search = {"largest": "on"} if number % 2 else {}
            query = urlencode({**_JOB, "target": "resnet34", "batch_size": 200 + number, **search})
            with socket.create_connection(("127.0.0.1", service.port), timeout=60) as one:
                one.sendall(f"GET /?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: {shown}\r\n\r\n".encode())
                one.recv(1000)  # the form
        began = time.monotonic()
        page = _get(service, f"/?{urlencode({**_JOB, 'batch_size': 7})}", client="bob")
        waited = time.monotonic() - began
        until = time.monotonic() + 180
        while (running := _count(service, "vramcast_questions_in_flight")) and time.monotonic() < until:
            time.sleep(1)
        if running or waited > 60:
            return Verdict(Wrong.WALL, f"{running:g} questions go on; bob waited {waited:.0f} s")
        return _judged(page, 200)

    yield Case("page crowds", "30 who ask and leave", left)
