"""A tracer's answer: the trace of a job, or why there is none. Plain data, sent between our own processes."""

from __future__ import annotations

import errno
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vramcast.core.errors import VramcastError
from vramcast.core.text import one_line
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.format.trace import COURSE, Trace
from vramcast.tracer.protocol.alloc_conf import AllocConf, Watch
from vramcast.tracer.protocol.job_advice import advice
from vramcast.tracer.protocol.run_options import Tape
from vramcast.tracer.protocol.source_places import SourceLine, users_place

_SHORT: Final = (errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ENOSPC, errno.EDQUOT)
_NO_THREAD: Final = "can't start new thread"  # spec: CPython, a RuntimeError
_TRACER = Path(__file__).parents[1]
_PROGRAM = ("model_program.py", "meta_model.py", "meta_pickle.py", "variations.py")
_SPEAKS_FOR_THE_JOB = frozenset(
    {*(f"program/{name}" for name in _PROGRAM), "nullgpu/child/main.py", "nullgpu/child/program.py"}
)
_SHOWN_MESSAGE: Final = 600  # arbitrary: characters of an exception's message
_LATE: Final = "CUDA kernel errors might be"  # spec: torch, c10/cuda/CUDAException.cpp; the null GPU fails at once
UNKNOWN_SHARE = 0.05  # arbitrary: share of the reserved memory that one kind of unanswered call may hide


@dataclass(frozen=True, slots=True)
class CardAccount:
    """The card's own account, in whole pages: bytes given since the job began, and those not returned by its end."""

    ever_bytes: int
    now_bytes: int


@dataclass(slots=True)
class Result:
    """The result of tracing one job.

    Attributes:
        status: ok, oom (the card is full, `message` is torch's own), or error (the job or its description raised).
        message: For a failed job the end of a sentence: "raised ValueError: no data (train.py:41, in main)".
        error: The exception's name among vramcast's, "JobError" for the user's own code.
        is_ours: Whether the tracer's own code raised, and not the job's.
        is_of_machine: Whether the machine ran out of processes, files, memory or disk space: another attempt may succeed.
        alloc_conf: The allocator settings in force.
        was_expandable: Whether they ever had expandable segments.
        notes: Notes for readers of the estimate.
        said: Messages of this rank, if there are several; only processes of the job open them.
        answers: Counts of messages of absent ranks that were assumed to equal this rank's, by kind of request.
        beside: Of several ranks, another one than this, which reserved least: its number and its trace.
        inputs: The inputs that were made from the job's sizes, and its adapters; None: it has neither.
        touched_s: When the process first touched the card, by the clock of `nullgpu/child/lifetimes.py`; 0: unobserved.
        grown_bytes: Growth of its processes' main memory; None: unobserved.
        taken: Memory that the null GPU gave, to the allocator or past it; None: the tracer has no card.
    """

    status: str
    trace: Trace | None = None
    message: str = ""
    error: str = ""
    job_traceback: str = ""
    ledger: list[Entry] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    torch: str = ""
    cuda: str = ""
    steps: int = 0
    max_resident_bytes: int = 0
    grown_bytes: int | None = None
    alloc_conf: AllocConf = field(default_factory=AllocConf)
    was_expandable: bool = False
    touched_s: float = 0.0
    taken: CardAccount | None = None
    is_ours: bool = False
    is_of_machine: bool = False
    notes: tuple[str, ...] = ()
    said: Tape = field(default_factory=Tape)
    answers: dict[str, int] = field(default_factory=dict)
    beside: tuple[int, Trace] | None = None
    inputs: Inputs | None = None

    @property
    def reads(self) -> int:
        """Return the number of host reads of unknown values from the card, which returned zeros."""
        return sum(entry.hits for entry in self.ledger if entry.kind is CallHandling.READ)

    @property
    def ended(self) -> str:
        """Return why a training command ended early, in words; the trace has the observations until then."""
        course = self.trace.header.get(COURSE) if self.trace is not None else None
        return str(course["ended"]) if course else ""

    def note_settings(self, watch: Watch) -> None:
        """Record the allocator settings in force; a job that bypassed the allocator has failed."""
        try:
            self.alloc_conf, self.was_expandable = watch.in_force(), watch.was_expandable
        except VramcastError as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Record that the job failed: one of our errors by its name, anything else (SystemExit included) as the job's own."""
        self.status = "error"
        if isinstance(error, VramcastError):
            self.error, self.message = type(error).__name__, str(error)
            return
        self.error = "JobError"
        self.is_ours = _is_ours(error)
        self.is_of_machine = _is_of_machine(error)
        place = place_of(error)
        self.message = f"{_what(error)}{f' ({place})' if place else ''}{advice(error)}"
        self.job_traceback = "".join(traceback.format_exception(error))


def _is_of_machine(error: BaseException | None) -> bool:
    """Return whether an exception, or one of its causes, reports that the machine ran out of a resource."""
    while error is not None:
        is_full = isinstance(error, OSError) and error.errno in _SHORT
        if is_full or isinstance(error, MemoryError | BlockingIOError) or _NO_THREAD in _message(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_ours(error: BaseException) -> bool:
    """Return whether an exception was raised by the tracer, and not by the job or its stand-ins."""
    raised_in = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not raised_in or _TRACER not in raised_in[-1].parents:
        return False
    return raised_in[-1].relative_to(_TRACER).as_posix() not in _SPEAKS_FOR_THE_JOB


def _what(error: BaseException) -> str:
    """Return the outcome of the job, as the end of a sentence."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return f"ended with exit code {error.code}"
    return f"raised {type(error).__name__}: {_message(error)}"


def place_of(error: BaseException) -> str:
    """Return the place in the user's code that raised, `train.py:41, in main`: the last frame outside libraries."""
    walked = traceback.walk_tb(error.__traceback__)
    stack = [SourceLine(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]
    place = users_place(reversed(stack))
    return "" if place is None else f"{place}, in {place.function}"


def _message(error: BaseException) -> str:
    """Return an exception's message, in one line; its __str__ is the job's code, and may raise or return any object."""
    try:
        return one_line("".join([str(error)]).partition(_LATE)[0], _SHOWN_MESSAGE) or "no message"
    except Exception as second:
        return f"no message (its __str__ raised {type(second).__name__})"


def peak_resident_bytes() -> int:
    """Return the peak main memory of this process; 0 if the system does not report it."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # spec: getrusage(2), bytes on macOS and KiB on Linux
