"""Jobs which ran out of memory are started again with more, and others are not; without a cluster."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import pytest

from vramcast.core.errors import RequestRefused, UsageError
from vramcast.schedulers.request import Request
from vramcast.schedulers.retrying import is_out_of_memory, retried

GIB = 1 << 30
WAIT_S = 60
TORCHS = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
RAYS = type("OutOfMemoryError", (RuntimeError,), {"__module__": "ray.exceptions"})  # of the machine's own memory


class Wrapped(Exception):
    """As a cluster wraps a job's error."""

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
def test_a_full_card_is_told_from_other_errors(error: BaseException | None, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_torchs_own_error_is_known() -> None:
    torch = pytest.importorskip("torch")
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("x"))


def needs(size_bytes: int, seen: list[int], error: Callable[[], BaseException] = TORCHS) -> Callable[[Request], Future[Any]]:
    """A job which takes so much, as a cluster would start it; `seen` are its requests."""

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
def test_a_job_gets_more_until_it_is_enough(needed: int, attempts: int, seen: list[int]) -> None:
    asked: list[int] = []
    told: list[tuple[int, int]] = []
    found = retried(
        needs(needed * GIB, asked), FIRST, attempts=attempts,
        on_retry=lambda before, after: told.append((before.size_bytes // GIB, after.size_bytes // GIB)),
    )  # fmt: skip
    assert found.result(WAIT_S) == "trained"
    assert asked == seen
    assert told == list(pairwise(seen))


@pytest.mark.parametrize(("attempts", "seen"), [(1, [4]), (3, [4, 6, 40]), (50, [4, 6, 9, 14, 21, 32, 40])])
def test_a_job_which_no_card_satisfies_ends_with_its_own_error(attempts: int, seen: list[int]) -> None:
    asked: list[int] = []
    with pytest.raises(TORCHS):
        retried(needs(41 * GIB, asked), FIRST, attempts=attempts).result(WAIT_S)
    assert asked == seen


def test_another_error_is_the_answer_at_once() -> None:
    asked: list[int] = []
    with pytest.raises(KeyError):
        retried(needs(41 * GIB, asked, KeyError), FIRST).result(WAIT_S)
    assert asked == [4]


def test_what_cannot_be_queued_is_told_at_once_and_a_second_time_in_the_result() -> None:
    def refuse(request: Request) -> Future[Any]:
        raise RequestRefused("no card")

    with pytest.raises(RequestRefused):
        retried(refuse, FIRST)
    asked: list[int] = []
    start = needs(41 * GIB, asked)
    second = retried(lambda request: start(request) if request.attempt == 1 else refuse(request), FIRST)
    with pytest.raises(RequestRefused):
        second.result(WAIT_S)


def test_a_wrong_number_of_attempts_is_refused() -> None:
    with pytest.raises(UsageError, match="attempts is 0"):
        retried(needs(1, []), FIRST, attempts=0)


@pytest.mark.parametrize(("module", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_scheduler_which_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, module: str, package: str) -> None:
    name = f"vramcast.schedulers.{module}"
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UsageError, match=rf"{name} needs {package}: pip install 'vramcast\[{module}\]'"):
        importlib.import_module(name)
