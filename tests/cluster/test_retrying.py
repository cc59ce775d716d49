"""Jobs that ran out of memory are started again with more, and other jobs are not; without a cluster."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import pytest

from vramcast.cluster.request import Request
from vramcast.cluster.retrying import is_out_of_memory, retried
from vramcast.core.errors import RequestRefused, UsageError

GIB = 1 << 30
WAIT_S = 60
TORCHS = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
RAYS = type("OutOfMemoryError", (RuntimeError,), {"__module__": "ray.exceptions"})  # the machine's main memory


class Wrapped(Exception):
    """A job's error as wrapped by a cluster."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


def raised_from(error: BaseException) -> BaseException:
    outer = ValueError("outer")
    outer.__cause__ = error
    return outer


def circular() -> BaseException:
    error = ValueError("itself")
    error.__cause__ = error
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TORCHS(), True),
        (type("Dual", (Wrapped, TORCHS), {})(TORCHS()), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (Wrapped(TORCHS()), True),
        (raised_from(Wrapped(TORCHS())), True),
        (RAYS("the node runs low on memory"), False),
        (MemoryError(), False),
        (ValueError("CUDA out of memory"), False),
        (circular(), False),
        (None, False),
    ],
)
def test_distinguishes_full_card_from_other_errors(error: BaseException | None, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_recognizes_error_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("x"))


def needs(size_bytes: int, seen: list[int], error: Callable[[], BaseException] = TORCHS) -> Callable[[Request], Future[Any]]:
    """Return a job that takes this much, as started by a cluster; `seen` collects its requests."""

    def start(request: Request) -> Future[Any]:
        seen.append(request.size_bytes // GIB)
        ended: Future[Any] = Future()
        if request.size_bytes < size_bytes:
            ended.set_exception(error())
        else:
            ended.set_result("trained")
        return ended

    return start


FIRST = Request(4 * GIB, 40 * GIB, grain_bytes=GIB)


@pytest.mark.parametrize(
    ("needed", "attempts", "seen"),
    [(3, 3, [4]), (5, 3, [4, 6]), (7, 3, [4, 6, 40]), (7, 5, [4, 6, 9]), (40, 2, [4, 40]), (39, 9, [4, 6, 9, 14, 21, 32, 40])],
)
def test_retries_until_request_is_enough(needed: int, attempts: int, seen: list[int]) -> None:
    asked: list[int] = []
    retries: list[tuple[int, int]] = []
    found = retried(
        needs(needed * GIB, asked), FIRST, attempts=attempts,
        on_retry=lambda before, after: retries.append((before.size_bytes // GIB, after.size_bytes // GIB)),
    )  # fmt: skip
    assert found.result(WAIT_S) == "trained"
    assert asked == seen
    assert retries == list(pairwise(seen))


@pytest.mark.parametrize(("attempts", "seen"), [(1, [4]), (3, [4, 6, 40]), (50, [4, 6, 9, 14, 21, 32, 40])])
def test_returns_error_if_no_card_suffices(attempts: int, seen: list[int]) -> None:
    asked: list[int] = []
    with pytest.raises(TORCHS):
        retried(needs(41 * GIB, asked), FIRST, attempts=attempts).result(WAIT_S)
    assert asked == seen


def test_returns_other_errors_at_once() -> None:
    asked: list[int] = []
    with pytest.raises(KeyError):
        retried(needs(41 * GIB, asked, KeyError), FIRST).result(WAIT_S)
    assert asked == [4]


def test_raises_first_and_returns_later_queue_errors() -> None:
    def refuse(request: Request) -> Future[Any]:
        raise RequestRefused("no card")

    with pytest.raises(RequestRefused):
        retried(refuse, FIRST)
    asked: list[int] = []
    start = needs(41 * GIB, asked)
    second = retried(lambda request: start(request) if request.attempt == 1 else refuse(request), FIRST)
    with pytest.raises(RequestRefused):
        second.result(WAIT_S)


def test_rejects_wrong_attempts() -> None:
    with pytest.raises(UsageError, match="attempts is 0"):
        retried(needs(1, []), FIRST, attempts=0)


@pytest.mark.parametrize(("module", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_names_missing_scheduler(monkeypatch: pytest.MonkeyPatch, module: str, package: str) -> None:
    name = f"vramcast.cluster.{module}"
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UsageError, match=rf"{name} needs {package}: pip install '\.\[{module}\]'"):
        importlib.import_module(name)
