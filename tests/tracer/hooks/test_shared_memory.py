"""Memory which processes share: why a job failed which needs it."""

from __future__ import annotations

import pytest

from vramcast.core.errors import OtherAllocator
from vramcast.tracer.format.ledger import Entered, Entry
from vramcast.tracer.hooks.shared_memory import explained, refusing

RAISED = RuntimeError("CUDA driver error: null GPU driver error")


@pytest.mark.parametrize(
    "call", ["cudaIpcGetMemHandle", "cuMulticastCreate", "nvshmemx_get_uniqueid", "ncclCommWindowRegister"]
)
def test_a_call_which_shares_memory_is_why_a_job_failed(call: str) -> None:
    error = explained(RAISED, [Entry(Entered.REFUSED, call, 1)], "train.py:7, in main")
    assert isinstance(error, OtherAllocator)
    assert str(error).startswith(f"The job shares card memory between processes, with {call} (train.py:7, in main). ")


@pytest.mark.parametrize(
    "entry", [Entry(Entered.REFUSED, "cusolverDnSgesvdj", 1), Entry(Entered.NOOP, "cudaIpcCloseMemHandle", 1)]
)
def test_other_calls_explain_nothing(entry: Entry) -> None:
    assert explained(RAISED, [entry], "") is RAISED


@pytest.mark.parametrize("error", [ValueError("no data"), SystemExit(2), OtherAllocator("another one")])
def test_an_error_which_no_call_raises_is_the_jobs_own(error: BaseException) -> None:
    assert explained(error, [Entry(Entered.REFUSED, "cudaIpcGetMemHandle", 1)], "") is error


def test_who_asks_for_it_is_told_before() -> None:
    def enable_symm_mem_for_group(name: str) -> None: ...

    with pytest.raises(OtherAllocator, match="between ranks, by enable_symm_mem_for_group"):
        refusing(enable_symm_mem_for_group)("0")
