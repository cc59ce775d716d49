"""The tracers which need no CUDA code, from the caller's end. Needs no torch in the caller's process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vramcast.jobs.job import Job
from vramcast.tracer.observation import Observation
from vramcast.tracer.processes.job_process import trace_in_process
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions


@dataclass(frozen=True, slots=True)
class PortableTracer:
    """Runs a job in a process of its own, on an unlimited card: its requests are to be played against an allocator.

    Attributes:
        name: What it is called.
        module: Has `run_job(job, options) -> Result`.
        advice: What to do when its time is up; ends the sentence "The job did not end within 9 s ...".
    """

    name: str
    module: str
    advice: str

    def trace(self, job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float = 1800.0) -> Result:
        """Run `job` and return its result (status ok). `ledger` names what was assumed.

        Args:
            job: What to run; a model, not a script.
            options: How.
            timeout_s: The job is killed after so many seconds.
        Raises:
            JobError: the job's own code raised.
            UsageError: the job's description is wrong.
            WorkerError: its process died (out of memory?) or ran out of time.
        """
        return trace_in_process(self.module, job, options, timeout_s=timeout_s, advice=self.advice)

    def observe(self, job: Job, options: RunOptions, *, timeout_s: float) -> Observation:
        """See `Tracer`."""
        return Observation.of(self.trace(job, options, timeout_s=timeout_s), self.name)


# On fake tensors, with CUDA's decisions: no GPU, no compiler, any build of torch.
FAKE: Final = PortableTracer("fake", "vramcast.tracer.fake.main", ": raise the limit, or trace fewer steps.")
# For real: memory and time are those of the job, its weights, gradients, optimizer state and activations in this machine's RAM.
CPU: Final = PortableTracer("cpu", "vramcast.tracer.cpu.main", " on the CPU: raise the limit, or trace a smaller batch.")
