"""Objects that a pickle from a job's process may create in a process that does not trust it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from pathlib import PosixPath
from typing import Any

import numpy as np
import pytest

from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.protocol import messages
from vramcast.tracer.protocol.job_result import Result


@pytest.fixture(autouse=True)
def _believes_data_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_read", pickle.loads)  # is restored
    messages.believe_data_alone()


class Calls:
    """A pickle that calls a function."""

    def __init__(self, what: Callable[..., Any], *arguments: Any) -> None:
        self._call = (what, arguments)

    def __reduce__(self) -> Any:
        return self._call


def test_own_records_and_plain_values_pass() -> None:
    result = Result("ok", ledger=[Entry.of(CallHandling.ASSUMED, Code.OTHER_CUDNN, 3)], notes=("a",))
    values = [{1, 2}, deque([3]), OrderedDict(a=1), Counter("aab"), PosixPath("/x"), b"x", 2.5, None, {"a": (1, [2])}]
    found = messages.loads(pickle.dumps([result, values, np.arange(5), np.float32(2), np.zeros(2, dtype=[("a", "i8")])]))
    assert found[:2] == [result, values]
    assert found[2].tolist() == [0, 1, 2, 3, 4]
    assert found[4].dtype.names == ("a",)


@pytest.mark.parametrize(
    "calls",
    [
        Calls(os.system, "true"),
        Calls(eval, "1"),
        Calls(exec, "1"),
        Calls(getattr, "x", "upper"),
        Calls(__import__, "this"),
        Calls(subprocess.Popen, ["true"]),
        Calls(open, os.devnull),
        Calls(np.load, os.devnull),
        Calls(messages.believe_data_alone),
        Calls(sys.exit),
    ],
    ids=lambda calls: calls._call[0].__name__,
)
def test_calls_nothing(calls: Calls) -> None:
    with pytest.raises(messages.Unreadable, match="is not data"):
        messages.loads(pickle.dumps(calls))


@pytest.mark.parametrize("name", [b"cvramcast.__main__\nmain\n.", b"cvramcast.core.files\nos\n.", b"cthis\ns\n."])
def test_imports_no_module(name: bytes) -> None:
    with pytest.raises(messages.Unreadable, match="is not data"):
        messages.loads(name)
    assert "this" not in sys.modules
