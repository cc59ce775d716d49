"""Every error that vramcast raises on purpose, in one tree::

    VramcastError                 base; carries the exit code of the command line
    ├── UsageError                a wrong argument: target, shape, dtype, optimizer, device       exit 2
    │   └── UnknownArgument       a function has no argument of that name (also a TypeError)
    ├── TraceFileError            a trace or snapshot file cannot be read                          exit 2
    ├── DatasetError              a measured run or a job history cannot be read or stored         exit 2
    ├── ArtifactError             a trained correction cannot be read or stored                    exit 2
    ├── DownloadError             a requested library cannot be fetched                            exit 3
    ├── NoAnswer                  the service is unreachable, slow, or has no estimate of a job    exit 3
    ├── Overloaded                the service's queue is full                                      exit 3
    ├── OutputError               an answer, a report or a picture cannot be written               exit 3
    ├── RequestRefused            no card of a scheduler is large enough for a job                 exit 1
    ├── SimulatedOutOfMemory      the simulated card cannot serve a request                        exit 1
    └── CannotEstimate            the job is well formed, but no number can be given               exit 3
        ├── CompilerError         C code cannot be compiled here, or its result cannot be stored
        ├── CacheError            the cache may be untrusted, so it is not used
        ├── NullGpuError          the null GPU is not available here (compiler, torch build)
        ├── OtherAllocator        the job's memory does not pass through PyTorch's caching allocator
        ├── IncompleteTrace       the recording does not cover all memory of the job
        ├── DoesNotFit            no peak is known, but the job certainly does not fit             exit 1
        ├── NothingAsked          the job ended without requesting memory from the card
        ├── MissingPeerValue      a rank waits for data of another rank that is not available
        ├── JobError              the user's model, batch, loss or script raised
        └── WorkerError           the tracing process died or ran out of memory
            └── TimeLimit         the job did not end in time

The classes follow the caller's options. Each message names the value, what was expected, and the next step.
Only `vramcast.cli.main` turns them into exit codes; the Python API raises them unchanged.
"""

from __future__ import annotations


class VramcastError(Exception):
    """Base class of all errors raised on purpose.

    Attributes:
        exit_code: Exit code of the command line.
        is_of_machine: Whether this machine's state may be the cause, so that the same job may succeed later.

    Example:
        >>> try:
        ...     vramcast.TensorSpec((-1, 3))
        ... except vramcast.VramcastError as error:
        ...     print(f"{type(error).__name__}, exit code {error.exit_code}: {error}")
        UsageError, exit code 2: Shape (-1, 3) has a negative dimension: all must be >= 0.
    """

    exit_code = 3
    is_of_machine = False


class UsageError(VramcastError, ValueError):
    """An argument is wrong; the message names it, its value and the accepted values."""

    exit_code = 2


class UnknownArgument(UsageError, TypeError):
    """A function has no argument of that name; the message names the one that was meant."""


class TraceFileError(VramcastError, ValueError):
    """A trace or snapshot file is damaged, has another version, or may not be read."""

    exit_code = 2


class DatasetError(VramcastError, ValueError):
    """A file of measured runs or a job history is damaged, has another format, or cannot be written.

    Attributes:
        kind: The reason without the values of one row, by which rows of a file are grouped.
    """

    exit_code = 2

    def __init__(self, message: str, *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind or message


class ArtifactError(VramcastError, ValueError):
    """A trained artifact is damaged, newer than this release, made for other features, or cannot be written."""

    exit_code = 2


class DownloadError(VramcastError, RuntimeError):
    """A library cannot be fetched: no pip, no network, no such version, a wrong hash, or no place to store it."""


class NoAnswer(VramcastError):
    """The service gave a scheduler's hook no number: it is unreachable, slow, or has no estimate."""


class Overloaded(VramcastError, RuntimeError):
    """The service's queue is full.

    Attributes:
        retry_after_s: Seconds after which to ask again.
    """

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} requests are waiting, the most that --queue allows: retry in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class OutputError(VramcastError, OSError):
    """The output cannot be written: stdout is closed or full, or a file has no space or permission."""


class RequestRefused(VramcastError, RuntimeError):
    """No card of a scheduler is large enough for a job. The job is not queued: it would wait forever, or die."""

    exit_code = 1


class SimulatedOutOfMemory(VramcastError):
    """The simulated card cannot serve a request; the message has the numbers and the form of torch's message.

    Attributes:
        requested_bytes: Size of the rejected segment, in bytes.
    """

    exit_code = 1

    def __init__(self, message: str, requested_bytes: int) -> None:
        super().__init__(message)
        self.requested_bytes = requested_bytes


class CannotEstimate(VramcastError, RuntimeError):
    """No estimate can be given; the message gives the reason and what to try."""


class CompilerError(CannotEstimate):
    """vramcast's C code cannot be compiled here, or its result cannot be stored; the message says what to do."""

    is_of_machine = True


class CacheError(CannotEstimate):
    """The cache, or a file in it, may belong to another user. No tracer works without it; the message says what to do."""

    is_of_machine = True


class NullGpuError(CannotEstimate):
    """The null GPU cannot run here: no compiler, a CPU-only torch, an unknown torch build."""

    is_of_machine = True


class OtherAllocator(CannotEstimate):
    """The job's memory does not pass through PyTorch's caching allocator: no caching, another allocator, or shared memory."""


class IncompleteTrace(CannotEstimate):
    """The recording of a job disagrees with other counters, so its numbers would be too low."""


class DoesNotFit(CannotEstimate):
    """No peak can be given, but the job certainly does not fit on its card."""

    exit_code = 1


class NothingAsked(CannotEstimate):
    """The job ended without requesting memory from the card."""


class MissingPeerValue(CannotEstimate):
    """A rank waits for data of another rank that did not run before it, or did not get that far."""


class JobError(CannotEstimate):
    """The job's own code raised an exception while it was traced.

    Attributes:
        job_traceback: The job's traceback, as text.
        after_reads: Whether the job may succeed on a GPU: it had read values that are unknown here, a call was rejected, or the
            tracer's own code raised.
        is_of_machine: Whether the machine ran out of processes, files, memory or disk space.
    """

    def __init__(
        self, message: str, job_traceback: str = "", *, after_reads: bool = False, is_of_machine: bool = False
    ) -> None:
        super().__init__(message)
        self.job_traceback = job_traceback
        self.after_reads = after_reads
        self.is_of_machine = is_of_machine


class WorkerError(CannotEstimate):
    """The process that runs the job ended without an answer."""

    is_of_machine = True


class TimeLimit(WorkerError):
    """The job did not end within its time limit.

    Attributes:
        advice: The end of the message: what to try.
    """

    advice = ""

    @classmethod
    def within(cls, limit_s: float, advice: str) -> TimeLimit:
        """Return the error for a limit in seconds."""
        error = cls(f"The job did not end within {limit_s:g} s{advice}")
        error.advice = advice
        return error


for _error in [one for one in globals().values() if isinstance(one, type) and issubclass(one, VramcastError)]:
    _error.__module__ = "vramcast"  # the name by which programs catch it
del _error
