"""The caller's end of the fake-tensor tracer: no GPU, no compiler, any build of torch."""

from __future__ import annotations

from vramcast.job import Job
from vramcast.tracer.process import trace_in_process
from vramcast.tracer.result import Result
from vramcast.tracer.run_options import AS_USUAL, RunOptions


def trace(job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float = 1800.0) -> Result:
    """Run `job` on fake tensors in a process of its own and return its result (status ok).

    The card has no end here: play the trace on a simulated one. `ledger` names what was assumed.

    Args:
        job: What to run; a model, not a script.
        options: How.
        timeout_s: The job is killed after so many seconds.
    Raises:
        JobError: the job's own code raised.
        UsageError: the job's description is wrong.
        WorkerError: its process died or ran out of time.
    """
    advice = ": raise the limit, or trace fewer steps."
    return trace_in_process("vramcast.tracer.fake.main", job, options, timeout_s=timeout_s, advice=advice)
