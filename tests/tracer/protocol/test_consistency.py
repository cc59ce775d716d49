"""Incomplete traces are rejected: each test removes a part of a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vramcast.core.errors import IncompleteTrace
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.tracer.protocol.consistency import check
from vramcast.tracer.protocol.job_result import CardAccount, Result


@pytest.fixture(scope="module")
def whole(trace: Callable[..., Result], tiny_models: Path) -> Result:
    """Return a job's complete result."""
    result = trace(target=f"{tiny_models}:wide", batch="64x1024", steps=2)
    check(result)
    return result


def cut(result: Result, trace: Trace) -> Result:
    """Return the result with another trace."""
    return replace(result, trace=trace)


def peaks(trace: Trace, **changed: int) -> Trace:
    """Return the trace with other statistics of the allocator."""
    return replace(trace, header={**trace.header, "peaks": {**trace.header["peaks"], **changed}})


def test_notices_block_missing_from_history(whole: Result) -> None:
    assert whole.trace is not None
    _, row = whole.trace.peak_live()
    with pytest.raises(IncompleteTrace, match="were requested at once by the history"):
        check(cut(whole, whole.trace.without_blocks([int(whole.trace.live_at(row)[0])])))


@pytest.mark.parametrize("what", ["requested", "reserved"])
def test_notices_peak_missing_from_trace(whole: Result, what: str) -> None:
    assert whole.trace is not None
    higher = whole.trace.header["peaks"][what] + 512
    with pytest.raises(IncompleteTrace, match=f"{higher:,} by the allocator's statistics"):
        check(cut(whole, peaks(whole.trace, **{what: higher})))


def test_notices_page_outside_allocator(whole: Result) -> None:
    assert whole.taken is not None
    ever, now = whole.taken.ever_bytes, whole.taken.now_bytes
    with pytest.raises(IncompleteTrace, match="taken at the end"):
        check(replace(whole, taken=CardAccount(ever + (2 << 20), now + (2 << 20))))
    with pytest.raises(IncompleteTrace, match="the card gave"):
        check(replace(whole, taken=CardAccount(ever + (2 << 20), now)))


def test_notices_parameter_outside_history(whole: Result) -> None:
    assert whole.trace is not None
    assert (whole.trace.category == Category.PARAMETER).sum() == 4
    assert whole.trace.header["strange_parameters"] == 0
    with pytest.raises(IncompleteTrace, match="2 parameters or buffers lie outside"):
        check(cut(whole, replace(whole.trace, header={**whole.trace.header, "strange_parameters": 2})))


def test_rejects_kernels_without_memory(whole: Result) -> None:
    assert whole.trace is not None
    nothing = Trace.build(
        {name: [] for name in ("action", "address", "size_bytes", "block")},
        header={"peaks": dict.fromkeys(("requested", "reserved"), 0)},
    )
    with pytest.raises(IncompleteTrace, match="kernels ran, but no memory was requested"):
        check(replace(whole, trace=nothing, taken=CardAccount(0, 0)))
    check(replace(whole, trace=nothing, taken=CardAccount(0, 0), ledger=[]))


def test_notices_parameter_in_foreign_memory(probe: Callable[..., object]) -> None:
    with pytest.raises(IncompleteTrace, match="1 parameters or buffers lie outside"):
        probe(
            """
            import ctypes
            memory = ctypes.c_void_p()
            class Foreign:
                def __init__(self, at):
                    self.__cuda_array_interface__ = {"shape": (1024,), "typestr": "<f4", "data": (at, False), "version": 2}
            kept = torch.zeros(1024, device="cuda")
            x = torch.as_tensor(Foreign(kept.data_ptr() + 512), device="cuda")  # as another library's array comes
            p = torch.nn.Parameter(x)
            torch.optim.SGD([p], lr=1.0).step()
            """
        )


def test_retries_raise_no_alarm(trace: Callable[..., Result], tiny_models: Path) -> None:
    whole = trace(target=f"{tiny_models}:wide", batch="64x1024", steps=2, alloc_conf="expandable_segments:True")
    assert whole.trace is not None
    least = int(whole.trace.reserved_bytes().max()) - (8 << 20)
    full = trace(
        target=f"{tiny_models}:wide", batch="64x1024", steps=2, alloc_conf="expandable_segments:True", memory_bytes=least
    )
    assert full.status == "oom"
    assert full.trace is not None
    assert np.any(full.trace.action == Action.OOM)
