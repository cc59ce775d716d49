"""Processes which a job starts have the null GPU too, and what they take of the card is in the answer.

    caller                              job's process                       a Python which the job starts
    Shared.made: a folder with          let_follow: startup/ is first       startup/sitecustomize.py: before torch is imported,
    the question                        on PYTHONPATH                       watching.before_torch loads the stand-ins; when CUDA
                                        watching.follow_forks: a fork of     is first touched it begins to be watched (`Claim`);
                                        it which trains is followed too     at its end the process writes its Result into the
    Shared.fullest: the Result of the   end_others: they shall say now      folder
    process which took most             what they took

Libraries are loaded by ctypes as in the worker, and not by LD_PRELOAD: compilers and shells see nothing of it. A process which
does not import torch pays for a small file, one which does not touch CUDA (data loaders) for loading the stand-ins.

Known limitations: a Python which ignores its environment (`python -I`, `-E`, an empty `env`) has no null GPU; a process which
touches CUDA in another than its main thread cannot be stopped by a limit.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from vramcast.core.text import shorten
from vramcast.core.units import gib
from vramcast.jobs.job import Job
from vramcast.tracer.format.trace import COURSE
from vramcast.tracer.nullgpu.fullest_rank import reserved_bytes
from vramcast.tracer.program.cutoff import STOP
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.messages import LENT
from vramcast.tracer.protocol.run_options import RunOptions

_STARTUP: Final = Path(__file__).parents[1] / "startup"
_QUESTION, _ROOT = "question", "root"
_CLAIM, _SAID = ".claim", ".process"  # what a process writes when it touches the card, and at its end
_SHOWN: Final = 80  # arbitrary: characters of a process's command in a warning
# For the other processes to say what they took. A job is killed some time after it should have stopped.
_PATIENCE_S: Final = 10.0  # arbitrary
_SHARE: Final = 0.1  # arbitrary
_LOOK_S: Final = 0.02  # arbitrary


@dataclass(frozen=True, slots=True)
class Question:
    """What a process must know.

    Attributes:
        job: The job.
        options: How it is traced.
        libraries: Where the stand-ins are.
        torch: For which torch they were built: its file.
        started_s: When the job began, by `time.monotonic`, which all processes share.
    """

    job: Job
    options: RunOptions
    libraries: str
    torch: str
    started_s: float

    @classmethod
    def read(cls, folder: str) -> Question:
        """Return the question in a folder of the job's own."""
        question: Question = pickle.loads((Path(folder) / _QUESTION).read_bytes())
        return question


@dataclass(frozen=True, slots=True)
class Process:
    """What one process took of the card.

    Attributes:
        command: Its words, for people.
        result: What was recorded.
    """

    command: str
    result: Result

    @property
    def reserved_bytes(self) -> int:
        """What its allocator held at most."""
        return reserved_bytes(self.result)


# ------------------------------------------------------------------------------------------------ the caller's end
class Shared:
    """The folder which a job's processes share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    @contextmanager
    def made(cls, job: Job, options: RunOptions, *, libraries: Path, torch: Path, root: str) -> Iterator[Shared]:
        """Make one, which is removed at the end.

        Args:
            job: What runs.
            options: How it is traced.
            libraries: Folder of the stand-ins.
            torch: The file of the package for which they were built.
            root: A folder on whose path vramcast is found.
        """
        folder = Path(tempfile.mkdtemp(prefix="vramcast-"))  # the user's alone: what is in it is unpickled
        try:
            (folder / _QUESTION).write_bytes(pickle.dumps(Question(job, options, str(libraries), str(torch), time.monotonic())))
            (folder / _ROOT).write_text(root, encoding="utf-8")
            yield cls(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def processes(self) -> list[Process]:
        """Return what the job's processes left so far, but for the job's own; who left nothing has failed."""
        found = []
        for claim in sorted(self.folder.glob(f"*{_CLAIM}")):
            said = claim.with_suffix(_SAID)
            if said.exists():
                found.append(pickle.loads(said.read_bytes()))
            else:
                killed = Result("error", error="WorkerError", message="was killed before it said what it took")
                found.append(Process(claim.read_text(encoding="utf-8"), killed))
        return found

    def only(self, own: Result) -> Result:
        """Return the result of a rank: of the job's own process, or of the one which it started and which used the card.

        Args:
            own: Of the job's own process.
        """
        others = [process for process in self.processes() if process.result.trace is None or process.reserved_bytes]
        if len(others) == 1 and not Process("", own).reserved_bytes:
            result = others[0].result
            return result if own.status != "error" else _ended(result, own)
        if not others or own.status == "error":
            return own
        message = (
            f"'{shorten(others[0].command, _SHOWN)}' is one of several processes of one rank which use its card: which of "
            "them is the rank cannot be told. Start ranks by torchrun, or by processes which call init_process_group."
        )
        return replace(own, status="error", trace=None, error="CannotEstimate", message=message)

    def fullest(self, own: Result, command: Sequence[str]) -> Result:
        """Return the result of the process which took most, with a note on the others.

        Args:
            own: Of the job's own process.
            command: Its words.
        """
        told = self.processes()
        lost = [process for process in told if process.result.trace is None]
        mine = Process(" ".join(command), own)
        found = [process for process in told if process.reserved_bytes]
        if lost:
            which = f"'{shorten(lost[0].command, _SHOWN)}' {shorten(lost[0].result.message, _SHOWN)}"
            if own.status == "ok" and not found and not mine.reserved_bytes:
                return replace(
                    own, status="error", trace=None, error="JobError", message=f"has a process which was not recorded: {which}"
                )
            note = f"{len(lost)} processes used the card and could not be recorded, what they took is not counted: {which}"
            own = replace(own, notes=(*own.notes, note))
        if not found:
            return own
        others = [*found, mine] if mine.reserved_bytes else found
        most = max(others, key=lambda process: process.reserved_bytes)
        note = f"estimated is the process '{shorten(most.command, _SHOWN)}', which the job started"
        if most is mine:
            note = "estimated is the job's own process"
        if len(others) > 1:
            total = gib(sum(process.reserved_bytes for process in others))
            note = (
                f"{len(others)} processes used the card: {note}, of all the one which reserved most "
                f"({gib(most.reserved_bytes)}); together they reserved {total}, besides a context each"
            )
        kept = () if most is mine else own.notes
        result = replace(most.result, notes=(*kept, *most.result.notes, note))
        return result if own.status != "error" else _ended(result, own)


def _ended(result: Result, own: Result) -> Result:
    """Return the result of a process whose job failed without asking for memory itself: it may have failed with the process."""
    course = result.trace.header.get(COURSE) if result.trace is not None else None
    if result.trace is None or not isinstance(course, dict) or course["ended"] or own.error != "JobError":
        return result
    header = {**result.trace.header, COURSE: {**course, "ended": f"it {own.message}"}}
    return replace(result, trace=replace(result.trace, header=header))


# ------------------------------------------------------------------------------------------------ in the job's process
def let_follow(environment: MutableMapping[str, str]) -> None:
    """Let each Python which is started with this environment have the null GPU, if a caller asked for it."""
    if environment.get(LENT):
        rest = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(_STARTUP)]
        environment["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *rest])


def end_others(limit_s: float | None) -> None:
    """Let the other processes of the job which use the card end, and wait until they have said what they took of it.

    Args:
        limit_s: Of the job; a tenth of it is waited, and no longer than they need.
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
    """Return the claims of other processes which have not said what they took, and live."""
    claims = {
        path for path in folder.glob(f"*{_CLAIM}") if path.stem != str(os.getpid()) and not path.with_suffix(_SAID).exists()
    }
    return {claim for claim in claims if _is_held(claim)}


def _is_held(claim: Path) -> bool:
    with open(claim, "rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def asked_in_a_fork(question: Callable[[], str]) -> str:
    """Return the answer to a question which, asked here, would make torch refuse CUDA in all later forks of this process."""
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
    """A process's word that it uses the card: it lives as long as the claim is locked, and says at its end what it took.

    Args:
        command: Its words, for people.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._path = Path(os.environ[LENT]) / f"{os.getpid()}{_CLAIM}"
        self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
        self._file.write(command)
        self._file.flush()
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # the process's own: no fork of it holds the lock

    @property
    def is_mine(self) -> bool:
        """Whether this process claimed, and not one of which it is a fork."""
        return self._path.stem == str(os.getpid())

    def say(self, result: Result) -> None:
        """Write what the process took."""
        hidden = self._path.with_suffix(".part")
        with contextlib.suppress(OSError):  # the folder is gone: nobody waits any more
            hidden.write_bytes(pickle.dumps(Process(self._command, result), protocol=pickle.HIGHEST_PROTOCOL))
            hidden.rename(self._path.with_suffix(_SAID))
