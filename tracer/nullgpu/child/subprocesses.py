"""Processes that a job starts: they have the null GPU too, and their memory counts in the result.

    caller                              job's process                       a Python that the job starts
    Shared.made: a folder with          let_follow: startup/ is first       startup/sitecustomize.py: before torch is imported,
    the question                        on PYTHONPATH                       observer.before_torch loads the stand-ins; watching
                                        Watched.follow_forks: forks that    starts when CUDA is first touched (`Claim`); at its
                                        train are followed too              end the process writes its Result into the folder
    Shared.fullest: the Result of the   end_others: they now report
    largest process, and the memory     their memory
    of the others at the same time

Libraries are loaded by ctypes as in the worker, not by LD_PRELOAD, so compilers and shells are unaffected. A process that does
not import torch pays for a small file; one that does not touch CUDA (data loaders) pays for loading the stand-ins.

Known limitations: a Python that ignores its environment (`python -I`, `-E`, an empty `env`) has no null GPU. A process that
touches CUDA outside its main thread cannot be stopped by a limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from vramcast.core.text import shorten
from vramcast.core.units import gib
from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.format.trace import COURSE, INTERRUPTED, PROCESSES
from vramcast.tracer.nullgpu.child import lifetimes
from vramcast.tracer.nullgpu.child.lifetimes import Life
from vramcast.tracer.nullgpu.fullest_rank import reserved_bytes
from vramcast.tracer.program.cutoff import STOP
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.messages import LENT, Unreadable, loads
from vramcast.tracer.protocol.run_options import RunOptions

_STARTUP: Final = Path(__file__).parents[1] / "startup"
_QUESTION, _ROOT = "question", "root"
_CLAIM, _SAID = ".claim", ".process"  # written when a process touches the card, and at its end
_SHOWN: Final = 80  # arbitrary: characters of a process's command in a warning
# Time for the other processes to report their memory. A job is killed some time after it should have stopped.
_PATIENCE_S: Final = 10.0  # arbitrary
_SHARE: Final = 0.2  # arbitrary; with 0.1, a process had a second of a limit of 15 s, too little on a busy machine
_LOOK_S: Final = 0.02  # arbitrary


@dataclass(frozen=True, slots=True)
class ProcessQuestion:
    """The facts that a process needs.

    Attributes:
        job: The job.
        options: The options of the run.
        libraries: Folder of the stand-ins.
        torch: File of the torch that they were built for.
        started_s: Start of the job, by `time.monotonic`, which all processes share.
    """

    job: Job
    options: RunOptions
    libraries: str
    torch: str
    started_s: float

    @classmethod
    def read(cls, folder: str) -> ProcessQuestion:
        """Return the question in one of the job's own folders."""
        question: ProcessQuestion = pickle.loads((Path(folder) / _QUESTION).read_bytes())
        return question


@dataclass(frozen=True, slots=True)
class Process:
    """The memory that one process took on the card.

    Attributes:
        command: Its words, for people.
        result: Its recorded result.
        life: Its lifetime; unlimited if unknown.
    """

    command: str
    result: Result
    life: Life = field(default_factory=Life)

    @property
    def reserved_bytes(self) -> int:
        """The maximum that its allocator held."""
        return reserved_bytes(self.result)

    @property
    def has_context(self) -> bool:
        """Return whether it took memory on the card, at least a context."""
        return self.reserved_bytes > 0 or any(entry.kind is CallHandling.CONTEXT for entry in self.result.ledger)


# ------------------------------------------------------------------------------------------------ the caller's end
class SharedFolder:
    """The folder shared by a job's processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    @contextmanager
    def made(cls, job: Job, options: RunOptions, *, libraries: Path, torch: Path, root: str) -> Iterator[SharedFolder]:
        """Make a folder, which is removed at the end.

        Args:
            job: The job.
            options: The options of the run.
            libraries: Folder of the stand-ins.
            torch: File of the torch package that they were built for.
            root: Import path of vramcast.
        """
        folder = Path(tempfile.mkdtemp(prefix="vramcast-"))  # readable only by the user: its contents are unpickled
        try:
            (folder / _QUESTION).write_bytes(
                pickle.dumps(ProcessQuestion(job, options, str(libraries), str(torch), time.monotonic()))
            )
            (folder / _ROOT).write_text(root, encoding="utf-8")
            yield cls(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def processes(self) -> list[Process]:
        """Return the processes recorded so far, without the job's own; a process without a report has failed."""
        found = []
        for claim in sorted(self.folder.glob(f"*{_CLAIM}")):
            said = claim.with_suffix(_SAID)
            why = "was killed before it reported its memory"
            if said.exists():
                try:
                    found.append(loads(said.read_bytes()))
                    continue
                except Unreadable as error:
                    why = f"wrote an unreadable report ({error})"
            found.append(Process(claim.read_text(encoding="utf-8"), Result("error", error="WorkerError", message=why)))
        return found

    def only(self, own: Result) -> Result:
        """Return the result of a rank: the job's own process, or the one that it started and that used the card.

        Args:
            own: Result of the job's own process.
        """
        others = [process for process in self.processes() if process.result.trace is None or process.reserved_bytes]
        if len(others) == 1 and not Process("", own).reserved_bytes:
            result = others[0].result
            return _ended(result, own)
        if not others or own.status == "error":
            return own
        message = (
            f"'{shorten(others[0].command, _SHOWN)}' is one of several processes that use the card of one rank: it is "
            "unclear which of them is the rank. Start ranks with torchrun, or from processes that call init_process_group."
        )
        return replace(own, status="error", trace=None, error="CannotEstimate", message=message)

    def fullest(self, own: Result, command: Sequence[str], *, context_bytes: int = 0) -> Result:
        """Return the result of the largest process at the moment of the total maximum, with the others in its header.

        Args:
            own: Result of the job's own process.
            command: Its words.
            context_bytes: Context of each process.
        """
        others = self.processes()
        lost = [process for process in others if process.result.trace is None]
        mine = Process(" ".join(command), own, Life(began_s=own.touched_s))
        users = [process for process in (*others, mine) if process.result.trace is not None and process.has_context]
        own = _with_lost(own, lost) if lost else own
        if lost and own.status == "ok" and not any(process.reserved_bytes for process in users):
            message = f"has a process that was not recorded: {_described(lost[0])}"
            return replace(own, status="error", trace=None, error="JobError", message=message)
        if not any(process.reserved_bytes for process in users if process is not mine) and len(users) < 2:
            return own
        sizes = [process.reserved_bytes + context_bytes for process in users]
        at_once = [users[place] for place in lifetimes.fullest_moment([process.life for process in users], sizes)]
        most = max(at_once, key=lambda process: (process.result.status == "oom", process.reserved_bytes))
        result = own if most is mine else replace(most.result, notes=(*own.notes, *most.result.notes))
        result = _beside(result, most, users, at_once, is_own=most is mine)
        if most is not mine and lost:
            result = replace(result, ledger=[*result.ledger, *_unknown(lost)])
        return result if most is mine else _ended(result, own)


def _described(lost: Process) -> str:
    return f"'{shorten(lost.command, _SHOWN)}' {shorten(lost.result.message, _SHOWN)}"


def _unknown(lost: Sequence[Process]) -> list[Entry]:
    """Return ledger entries for processes that were not recorded: no bound covers them."""
    return [Entry(CallHandling.OPEN, f"the process {_described(process)}", 1) for process in lost]


def _with_lost(own: Result, lost: Sequence[Process]) -> Result:
    """Return the job's own result, with a note on the processes that were not recorded."""
    note = (
        f"{len(lost)} processes used the card and could not be recorded, so their memory is not counted: {_described(lost[0])}"
    )
    return replace(own, notes=(*own.notes, note), ledger=[*own.ledger, *_unknown(lost)])


def _beside(result: Result, most: Process, users: Sequence[Process], at_once: Sequence[Process], *, is_own: bool) -> Result:
    """Return the result of the largest process, with the others' memory in its trace's header and in a note."""
    assert result.trace is not None
    note = "the job's own process" if is_own else f"the process '{shorten(most.command, _SHOWN)}' (started by the job)"
    note = f"the estimate is for {note}"
    if len(users) > 1:
        total = gib(sum(process.reserved_bytes for process in at_once))
        note = (
            f"{len(users)} processes used the card, {len(at_once)} of them at once: {note}, which reserved "
            f"the most ({gib(most.reserved_bytes)}); together they reserved {total} plus a context each, and count together"
        )
    rows = [
        [shorten(process.command, _SHOWN), process.reserved_bytes, any(process is one for one in at_once)]
        for process in (most, *(process for process in users if process is not most))
    ]
    header = {**result.trace.header, **({PROCESSES: rows} if len(rows) > 1 else {})}
    return replace(result, trace=replace(result.trace, header=header), notes=(*result.notes, note))


def _ended(result: Result, own: Result) -> Result:
    """Return the result of a process with the reason of its end, which may be in the job's own process.

    That one stops all others, and knows why; and if it failed without using memory itself, the process may be the cause.
    """
    course = _course(result)
    if course is None or result.trace is None:
        return result
    ended = course["ended"]
    if ended == INTERRUPTED:
        ended = (_course(own) or {"ended": ""})["ended"]
    if not ended and own.error == "JobError":
        ended = f"it {own.message}"
    if ended == course["ended"]:
        return result
    return replace(result, trace=replace(result.trace, header={**result.trace.header, COURSE: {**course, "ended": ended}}))


def _course(result: Result) -> dict[str, Any] | None:
    course = result.trace.header.get(COURSE) if result.trace is not None else None
    return course if isinstance(course, dict) else None


# ------------------------------------------------------------------------------------------------ in the job's process
def let_follow(environment: MutableMapping[str, str]) -> None:
    """Give the null GPU to each Python started with this environment, if a caller asked for it."""
    if environment.get(LENT):
        rest = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(_STARTUP)]
        environment["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *rest])


def end_others(limit_s: float | None) -> None:
    """End the other processes of the job that use the card, and wait until they have reported their memory.

    Args:
        limit_s: Time limit of the job; a fifth of it is the longest wait.
    """
    if not (folder := os.environ.get(LENT)):
        return
    asked: set[Path] = set()
    until = time.monotonic() + min(_PATIENCE_S, _SHARE * limit_s if limit_s is not None else _PATIENCE_S)
    while time.monotonic() < until and (running := _running(Path(folder))):
        for claim in running - asked:
            with contextlib.suppress(OSError):
                os.kill(int(claim.stem), STOP)
        asked |= running
        time.sleep(_LOOK_S)


def _running(folder: Path) -> set[Path]:
    """Return the claims of other live processes that have not reported yet."""
    claims = {
        path for path in folder.glob(f"*{_CLAIM}") if path.stem != str(os.getpid()) and not path.with_suffix(_SAID).exists()
    }
    return {claim for claim in claims if _is_held(claim)}


def not_waited_for() -> frozenset[int]:
    """Return the processes of the job that have reported but have not been waited for."""
    return lifetimes.unreaped([int(said.stem) for said in Path(os.environ[LENT]).glob(f"*{_SAID}")])


def _is_held(claim: Path) -> bool:
    with open(claim, "rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def answer_of_fork(question: Callable[[], str]) -> str:
    """Return the answer to a query that, in this process, would make torch refuse CUDA in all later forks."""
    answers, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(answer, question().encode())
        os._exit(0)
    os.close(answer)
    with os.fdopen(answers) as said:
        found = said.read()
    os.waitpid(pid, 0)
    return found


class Claim:
    """A process's claim to the card: it is alive as long as the claim is locked, and reports its memory at its end.

    Args:
        command: Its words, for people.
        before: Processes that had ended when it began but had not been waited for.
    """

    def __init__(self, command: str, before: frozenset[int]) -> None:
        self._command = command
        self._life = Life(os.getpid(), lifetimes.made_s(), not_waited_for=before)
        self._path = Path(os.environ[LENT]) / f"{os.getpid()}{_CLAIM}"
        self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
        self._file.write(command)
        self._file.flush()
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # owned by the process: none of its forks holds the lock

    @property
    def is_mine(self) -> bool:
        """Return whether this process made the claim, and not one that it was forked from."""
        return self._path.stem == str(os.getpid())

    def say(self, result: Result) -> None:
        """Write the memory that the process took."""
        said = Process(self._command, result, replace(self._life, ended_s=lifetimes.now_s()))
        hidden = self._path.with_suffix(".part")
        with contextlib.suppress(OSError):  # the folder is gone: the caller has stopped waiting
            hidden.write_bytes(pickle.dumps(said, protocol=pickle.HIGHEST_PROTOCOL))
            hidden.rename(self._path.with_suffix(_SAID))
