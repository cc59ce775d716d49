"""The tracers that need no CUDA code, from the caller's end. The caller's process needs no torch."""

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
    """A tracer in a process of its own with an unlimited card: its requests must be played against an allocator.

    Attributes:
        name: Name of the tracer.
        module: Module with `run_job(job, options) -> Result`.
        advice: Advice for a timeout; ends the sentence "The job did not end within 9 s ...".
    """

    name: str
    module: str
    advice: str

    def trace(self, job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float = 1800.0) -> Result:
        """Run `job` and return its result (status ok). Its `ledger` lists the assumptions.

        Args:
            job: The job to run; a model, not a script.
            options: Options of the run.
            timeout_s: Seconds after which the job is killed.
        Raises:
            JobError: The job's own code raised.
            UsageError: The job's description is wrong.
            WorkerError: The process died (perhaps out of memory) or timed out.
        """
        return trace_in_process(self.module, job, options, timeout_s=timeout_s, advice=self.advice)

    def observe(self, job: Job, options: RunOptions, *, timeout_s: float) -> Observation:
        """Return the observation of `job`; see `Tracer`."""
        return Observation.of(self.trace(job, options, timeout_s=timeout_s), self.name)


# On fake tensors, with CUDA's decisions: no GPU, no compiler, any build of torch.
FAKE: Final = PortableTracer("fake", "vramcast.tracer.fake.main", ": raise the limit, or trace fewer steps.")
# For real: it takes the job's own time, and memory for its weights, gradients, optimizer state and activations in this
# machine's RAM.
CPU: Final = PortableTracer("cpu", "vramcast.tracer.cpu.main", " on the CPU: raise the limit, or trace a smaller batch.")
