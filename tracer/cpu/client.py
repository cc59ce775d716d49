"""The caller's end of the CPU tracer. Needs no torch in the caller's process."""

from __future__ import annotations

from vramcast.job import Job
from vramcast.tracer.process import trace_in_process
from vramcast.tracer.result import Result
from vramcast.tracer.run_options import AS_USUAL, RunOptions


def trace(job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float = 1800.0) -> Result:
    """Run `job` for real, on the CPU, and return its result (status ok) with the requests a GPU would have seen.

    The trace has no addresses, no segments and no peaks: `vramcast.simulator` says what they come to. Memory and time are
    those of the real job: its weights, gradients, optimizer state and activations in this machine's RAM.

    Args:
        job: What to run; a model, not a script.
        options: How.
        timeout_s: The job is killed after so many seconds.
    Raises:
        JobError: the job's own code raised.
        UsageError: the job's description is wrong.
        WorkerError: its process died (out of memory?) or ran out of time.
    """
    advice = " on the CPU: raise the limit, or trace a smaller batch."
    return trace_in_process("vramcast.tracer.cpu.main", job, options, timeout_s=timeout_s, advice=advice)
