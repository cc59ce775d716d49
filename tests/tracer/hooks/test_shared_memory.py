"""Memory shared between processes: the error of a job that needs it."""

from __future__ import annotations

import pytest

from vramcast.core.errors import OtherAllocator
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.hooks.shared_memory import explained, refusing

RAISED = RuntimeError("CUDA driver error: null GPU driver error")


@pytest.mark.parametrize(
    "call", ["cudaIpcGetMemHandle", "cuMulticastCreate", "nvshmemx_get_uniqueid", "ncclCommWindowRegister"]
)
def test_sharing_call_explains_failure(call: str) -> None:
    error = explained(RAISED, [Entry(CallHandling.REFUSED, call, 1)], "train.py:7, in main")
    assert isinstance(error, OtherAllocator)
    assert str(error).startswith(f"The job shares card memory between processes, with {call} (train.py:7, in main). ")


@pytest.mark.parametrize(
    "entry", [Entry(CallHandling.REFUSED, "cusolverDnSgesvdj", 1), Entry(CallHandling.NOOP, "cudaIpcCloseMemHandle", 1)]
)
def test_other_calls_explain_nothing(entry: Entry) -> None:
    assert explained(RAISED, [entry], "") is RAISED


@pytest.mark.parametrize("error", [ValueError("no data"), SystemExit(2), OtherAllocator("another one")])
def test_other_errors_are_the_jobs_own(error: BaseException) -> None:
    assert explained(error, [Entry(CallHandling.REFUSED, "cudaIpcGetMemHandle", 1)], "") is error


def test_announced_sharing_raises_early() -> None:
    def enable_symm_mem_for_group(name: str) -> None: ...

    with pytest.raises(OtherAllocator, match="between ranks, with enable_symm_mem_for_group"):
        refusing(enable_symm_mem_for_group)("0")
