"""What came of a process on the null GPU: what its card and those who watched it say, put into its `Result`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import Entered, Entry
from vramcast.tracer.format.trace import CIRCUMSTANCES, COURSE, SHARDING
from vramcast.tracer.nullgpu.library.loader import NullGpu, foreign_libraries
from vramcast.tracer.protocol.job_result import Result, peak_resident_bytes

if TYPE_CHECKING:
    from vramcast.tracer.protocol.alloc_conf import Watch
    from vramcast.tracer.recording.job_context import Observer
    from vramcast.tracer.recording.recorder import Recorder


def complete(
    result: Result, job: Job, gpu: NullGpu, recorder: Recorder, observer: Observer, settings: Watch, *,
    followed: Sequence[Entry] = (), is_whole: bool, ended: str,
) -> None:  # fmt: skip
    """End the recording and put into a result all that was seen; a job which failed has no trace.

    Args:
        result: With its status and the versions.
        job: What ran.
        gpu: Its card.
        recorder: Recorded it.
        observer: Likewise.
        settings: Of its allocator.
        followed: What those who followed values enter into the ledger.
        is_whole: Whether a command came to its own end.
        ended: Why it ended before, in words, if that was no wish of ours.
    """
    has_failed = result.status == "error"
    result.steps = recorder.steps
    result.ledger = [*gpu.ledger(), *followed]
    result.taken = gpu.taken()
    result.note_settings(settings)
    if not has_failed:
        sizes = [entry.size_bytes for entry in result.ledger if entry.kind is Entered.WORKSPACE]
        header: dict[str, Any] = {CIRCUMSTANCES: observer.seen(), "tracer": "nullgpu", "device": job.device.key}
        header |= {"torch": result.torch, "cuda": result.cuda}
        if job.world.size > 1:
            header[SHARDING] = recorder.holdings.to_header()
        trace = recorder.stop(header=header, workspace_sizes=sizes)
        if job.command is not None:
            facts = recorder.course.facts(recorder.phases(trace), is_whole=is_whole, ended=ended)
            trace = replace(trace, header={**trace.header, COURSE: facts})
        result.trace = trace
    result.foreign = foreign_libraries()
    result.max_resident_bytes = peak_resident_bytes()
