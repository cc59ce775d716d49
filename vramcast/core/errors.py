"""Every error that vramcast raises on purpose, in one tree::

    VramcastError                 base; carries the exit code of the command line
    ├── UsageError                a wrong argument: target, shape, dtype, optimizer, device       exit 2
    ├── TraceFileError            a trace or snapshot file which cannot be read                    exit 2
    ├── DatasetError              a measured run or a job history which cannot be read or kept        exit 2
    ├── ArtifactError             a trained correction which cannot be read or kept                exit 2
    ├── DownloadError             a library which was asked for cannot be fetched                  exit 3
    ├── NoAnswer                  the service is away, slow, or knows no number of a job              exit 3
    ├── Overloaded                the service has as many questions as it may keep                    exit 3
    ├── OutputError               an answer, a report or a picture cannot be written                exit 3
    ├── RequestRefused            no card which a scheduler has is large enough for a job               exit 1
    ├── SimulatedOutOfMemory      a request which the simulated card cannot serve                  exit 1
    └── CannotEstimate            the job is well formed, but no number can be given               exit 3
        ├── CompilerError         C code cannot be compiled or kept here
        ├── CacheError            what is in the cache may be untrusted: it is not used
        ├── NullGpuError          the null GPU is not available here (compiler, torch build)
        ├── OtherAllocator        the job's memory does not pass through PyTorch's caching allocator
        ├── IncompleteTrace       what was recorded is not all that the job took
        ├── DoesNotFit            no peak is known, but it is certain that the job does not fit           exit 1
        ├── NothingAsked          the job ended without asking the card for memory
        ├── MissingPeerValue               a rank waits for what another one says, which did not come so far
        ├── JobError              the user's model, batch, loss or script raised
        └── WorkerError           the process which traces died or ran out of memory
            └── TimeLimit         it did not end in time

Classes group by what the caller can do. Each message says the value, what was expected, and the next step.
`vramcast.cli.main` alone turns them into exit codes; the Python API raises them as they are.
"""

from __future__ import annotations


class VramcastError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        exit_code: What the command line ends with.
        is_of_machine: Whether this machine's state may be the reason: another time, the same job may have an answer.
    """

    exit_code = 3
    is_of_machine = False


class UsageError(VramcastError, ValueError):
    """An argument is wrong; the message names it, its value and what is accepted."""

    exit_code = 2


class TraceFileError(VramcastError, ValueError):
    """A trace or snapshot file is damaged, of another version, or not allowed to be read."""

    exit_code = 2


class DatasetError(VramcastError, ValueError):
    """A file of measured runs or a job history is damaged, of another format, or cannot be written."""

    exit_code = 2


class ArtifactError(VramcastError, ValueError):
    """A trained artifact is damaged, newer, made for other features, or cannot be written."""

    exit_code = 2


class DownloadError(VramcastError, RuntimeError):
    """A library cannot be fetched: no pip, no network, no such version, another hash, or no place for it."""


class NoAnswer(VramcastError):
    """A scheduler's hook asked the service, and has no number: it is away, slow, or cannot say one."""


class Overloaded(VramcastError, RuntimeError):
    """The service has as many questions as it may keep; `retry_after_s` says when to ask again."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} questions wait, and more may not (--queue): ask again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class OutputError(VramcastError, OSError):
    """What was asked for cannot be written: stdout is closed or full, or there is no place for a file."""


class RequestRefused(VramcastError, RuntimeError):
    """No card which a scheduler has is large enough for a job, which is not queued: it would wait for ever, or die."""

    exit_code = 1


class SimulatedOutOfMemory(VramcastError):
    """The simulated card cannot serve a request; the message has torch's numbers in torch's form.

    `requested_bytes` is the segment which the driver refused.
    """

    exit_code = 1

    def __init__(self, message: str, requested_bytes: int) -> None:
        super().__init__(message)
        self.requested_bytes = requested_bytes


class CannotEstimate(VramcastError, RuntimeError):
    """No estimate can be given; the message says why and what to try."""


class CompilerError(CannotEstimate):
    """vramcast's C code cannot be compiled here, or its result cannot be kept; the message says what to do."""

    is_of_machine = True


class CacheError(CannotEstimate):
    """The cache, or something in it, may be somebody else's. No tracer works without it: the message says what to do."""

    is_of_machine = True


class NullGpuError(CannotEstimate):
    """The null GPU cannot run here: no compiler, a CPU-only torch, an unknown torch build."""

    is_of_machine = True


class OtherAllocator(CannotEstimate):
    """The job's memory does not pass through PyTorch's caching allocator: no caching, another one, or what processes share."""


class IncompleteTrace(CannotEstimate):
    """What was recorded of a job differs from what others counted: its numbers would be too low."""


class DoesNotFit(CannotEstimate):
    """No peak can be given, but it is certain that the job does not fit on its card."""

    exit_code = 1


class NothingAsked(CannotEstimate):
    """The job ended without asking the card for memory."""


class MissingPeerValue(CannotEstimate):
    """A rank waits for what another one says, which did not run before it, or did not come so far."""


class JobError(CannotEstimate):
    """The job's own code raised an exception while it was traced.

    `after_reads`: it had read values which nobody knows, was refused a call, or it was the tracer's own code which raised: on a
    GPU it may not raise. `is_of_machine`: the machine had no process, file, memory or room on the disk left.
    """

    def __init__(
        self, message: str, job_traceback: str = "", *, after_reads: bool = False, is_of_machine: bool = False
    ) -> None:
        super().__init__(message)
        self.job_traceback = job_traceback
        self.after_reads = after_reads
        self.is_of_machine = is_of_machine


class WorkerError(CannotEstimate):
    """The process which runs the job ended without an answer."""

    is_of_machine = True


class TimeLimit(WorkerError):
    """The job did not end within the time that the caller gave it; `advice` ends the sentence."""

    advice = ""

    @classmethod
    def within(cls, limit_s: float, advice: str) -> TimeLimit:
        """Return the error of a limit in seconds."""
        error = cls(f"The job did not end within {limit_s:g} s{advice}")
        error.advice = advice
        return error
