"""The completeness check of a trace: the only place where it is compared with all other accounts.

  - PyTorch's allocator counts the peaks of requested and of reserved memory;
  - the null GPU counts every page that it gave away, to the allocator or past it;
  - modules and optimizers know the addresses of their parameters.

All comparisons are exact: both sides count the same events.
"""

from __future__ import annotations

from vramcast.core.errors import IncompleteTrace
from vramcast.tracer.format.ledger import CallHandling
from vramcast.tracer.format.trace import Action, Trace
from vramcast.tracer.protocol.job_result import Result

_PAGE_BYTES = 2 << 20  # spec: PAGE_BYTES of csrc/memory.c, the card's unit of counting


def check(result: Result) -> None:
    """Raise if a trace is incomplete.

    Raises:
        IncompleteTrace: The trace is incomplete; the message describes the difference.
    """
    if result.trace is None:
        return
    missing = [*_against_the_allocator(result.trace), *_against_the_card(result, result.trace)]
    if strangers := result.trace.header.get("strange_parameters", 0):
        missing.append(f"{strangers} parameters or buffers lie outside the recorded blocks")
    if missing:
        raise IncompleteTrace(
            f"The trace of the job is incomplete, and its numbers would be wrong: {'; '.join(missing)}. Does the job use "
            "another allocator, or memory of another library? If not, please report it."
        )


def _against_the_allocator(trace: Trace) -> list[str]:
    peaks = trace.header.get("peaks")
    if not isinstance(peaks, dict):
        return []  # the tracer has no allocator
    wrong = []
    for what, name, found in (
        # A block ends when its free is complete.
        ("requested", "requested", int(trace.live(trace.size_bytes).max(initial=0))),
        ("held in segments", "reserved", int(trace.reserved_bytes().max(initial=0))),
    ):
        if found != peaks[name]:
            by_allocator = f"{peaks[name]:,} by the allocator's statistics"
            wrong.append(f"at most {found:,} bytes were {what} at once by the history, {by_allocator}")
    return wrong


def _against_the_card(result: Result, trace: Trace) -> list[str]:
    if result.taken is None:
        return []
    gained = (trace.action == Action.SEGMENT_ALLOC) | (trace.action == Action.SEGMENT_MAP)
    pages = -(-trace.size_bytes // _PAGE_BYTES) * _PAGE_BYTES
    ever_bytes = int(pages[gained].sum())
    lost = (trace.action == Action.SEGMENT_FREE) | (trace.action == Action.SEGMENT_UNMAP)
    now_bytes = ever_bytes - int(pages[lost].sum())
    if result.taken.now_bytes != now_bytes:
        taken = f"{result.taken.now_bytes:,} bytes of the card are taken at the end"
        return [f"{taken}, {now_bytes:,} of them by PyTorch's allocator"]
    peaks = trace.header.get("peaks")
    # A segment that the card refuses half-way returns its pages, and the history does not record that.
    if isinstance(peaks, dict) and (peaks.get("retries") or peaks.get("ooms")):
        return []
    if result.taken.ever_bytes != ever_bytes:
        return [f"the card gave {result.taken.ever_bytes:,} bytes in all, {ever_bytes:,} of them to PyTorch's allocator"]
    launches = sum(entry.hits for entry in result.ledger if entry.kind is CallHandling.LAUNCHES)
    if launches and not (trace.action == Action.ALLOC).any():
        return [f"{launches} kernels ran, but no memory was requested"]
    return []
