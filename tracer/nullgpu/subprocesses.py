"""Processes which a job starts have the null GPU too, and what they take of the card is in the answer.

    caller                              job's process                       a Python which the job starts
    Shared.make: a folder with          let_follow: startup/ is first       startup/sitecustomize.py: before torch is imported,
    the question                        on PYTHONPATH                       before_torch loads the stand-ins; when CUDA is first
                                        follow_forks: a fork of it          touched, a Recorder begins; at its end the process
                                        which trains is followed too        writes its Result into the folder
    Shared.fullest: the Result of the
    process which took most

Libraries are loaded by ctypes as in the worker, and not by LD_PRELOAD: compilers and shells see nothing of it. A process which
does not import torch pays for a small file, one which does not touch CUDA (data loaders) for loading the stand-ins.

Known limitations: values are not followed in these processes, whose reads give zeros; a Python which ignores its environment
(`python -I`, `-E`, an empty `env`) has no null GPU.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vramcast.job import Job
from vramcast.tracer.course import StopJob
from vramcast.tracer.job_result import Result
from vramcast.tracer.nullgpu import compilers
from vramcast.tracer.nullgpu.load import NullGpu
from vramcast.tracer.nullgpu.outcome import complete
from vramcast.tracer.run_options import RunOptions
from vramcast.tracer.trace import COURSE
from vramcast.units import gib, shortened

if TYPE_CHECKING:
    from vramcast.tracer.alloc_conf import Watch
    from vramcast.tracer.circumstances import Observer
    from vramcast.tracer.record import Recorder

VARIABLE: Final = "VRAMCAST_SUBPROCESSES"  # read by startup/sitecustomize.py too
_STARTUP: Final = Path(__file__).parent / "startup"
_QUESTION, _ROOT = "question", "root"
_SHOWN: Final = 80  # arbitrary: characters of a process's command in a warning
# Helpers which compile for the job: they see the card, and take nothing of it.
_HELPERS: Final = ("torch/_inductor/compile_worker",)


@dataclass(frozen=True, slots=True)
class _Question:
    """What a process must know: the job, how it is traced, where the stand-ins are, and for which torch they were built."""

    job: Job
    options: RunOptions
    libraries: str
    torch: str


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
        return int(self.result.trace.header["peaks"]["reserved"]) if self.result.trace is not None else 0


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
            (folder / _QUESTION).write_bytes(pickle.dumps(_Question(job, options, str(libraries), str(torch))))
            (folder / _ROOT).write_text(root, encoding="utf-8")
            yield cls(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def processes(self) -> list[Process]:
        """Return what the job's processes left so far, but for the job's own."""
        return [pickle.loads(path.read_bytes()) for path in sorted(self.folder.glob("*.process"))]

    def fullest(self, own: Result, command: Sequence[str]) -> Result:
        """Return the result of the process which took most, with a note on the others.

        Args:
            own: Of the job's own process.
            command: Its words.
        """
        told = self.processes()
        lost = [process for process in told if process.result.trace is None]
        if lost:
            note = (
                f"{len(lost)} processes used the card and could not be recorded, what they took is not counted: "
                f"'{shortened(lost[0].command, _SHOWN)}' {shortened(lost[0].result.message, _SHOWN)}"
            )
            own = replace(own, notes=(*own.notes, note))
        found = [process for process in told if process.reserved_bytes]
        if not found:
            return own
        mine = Process(" ".join(command), own)
        others = [*found, mine] if mine.reserved_bytes else found
        most = max(others, key=lambda process: process.reserved_bytes)
        note = f"estimated is the process '{shortened(most.command, _SHOWN)}', which the job started"
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
    if environment.get(VARIABLE):
        rest = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(_STARTUP)]
        environment["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *rest])


def follow_forks(watched: Watched) -> None:
    """Let forks by `multiprocessing` of a process which is watched say what they took, if they touch CUDA."""
    util.register_after_fork(watched, _in_fork)
    _KEPT.append(watched)


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


def _in_fork(watched: Watched) -> None:
    util.Finalize(None, watched.finish, exitpriority=0)


# ------------------------------------------------------------------------------------------------ in a process which it starts
def before_torch(folder: str, origin: str | None) -> Callable[[], None] | None:
    """Load the stand-ins, and return what is to be done after torch is imported; None: this torch is another one."""
    question: _Question = pickle.loads((Path(folder) / _QUESTION).read_bytes())  # of our own process
    if origin is None or not os.path.samefile(origin, question.torch):
        return None
    gpu = NullGpu(Path(question.libraries))
    # The profiler warns of host memory which is older than it is; torch reads the level once.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return lambda: _after_torch(question.job, question.options, gpu)


def _after_torch(job: Job, options: RunOptions, gpu: NullGpu) -> None:
    """Prepare the process, which has not touched CUDA yet: most never will."""
    from vramcast.tracer import alloc_conf, host_checks, torch_api

    if any(helper in word for word in sys.orig_argv for helper in _HELPERS):
        return
    host_checks.take_as_passed()
    compilers.prepare()
    settings = alloc_conf.Watch(job.alloc_conf, applies=True)
    settings.start()
    for owner, name in torch_api.places("lazy_init"):
        original = getattr(owner, name)

        def touch(owner: Any = owner, name: str = name, original: Callable[[], None] = original) -> None:
            setattr(owner, name, original)
            _begin(job, options, gpu, settings)
            original()

        setattr(owner, name, touch)


def _begin(job: Job, options: RunOptions, gpu: NullGpu, settings: Watch) -> None:
    """Begin to record: CUDA is about to be touched for the first time."""
    from vramcast.tracer.circumstances import Observer
    from vramcast.tracer.nullgpu.child import recorder_of

    watched = Watched(job, gpu, recorder_of(job, options), Observer(), settings)
    watched.begin()
    atexit.register(watched.finish)
    util.Finalize(None, watched.finish, exitpriority=0)  # processes of `multiprocessing` end without atexit
    said = sys.excepthook

    def ended(kind: type[BaseException], error: BaseException, at: Any) -> None:
        if issubclass(kind, StopJob):
            watched.finish()  # which ends the process
        watched.note(error)
        said(kind, error, at)

    sys.excepthook = ended


class Watched:
    """A process of the job's beside its own, which is watched.

    Args:
        job: The job.
        gpu: Its card.
        recorder: Records it, and stops it after its steps.
        observer: Likewise.
        settings: Of its allocator.
    """

    def __init__(self, job: Job, gpu: NullGpu, recorder: Recorder, observer: Observer, settings: Watch) -> None:
        self._job, self._gpu, self._recorder, self._observer, self._settings = job, gpu, recorder, observer, settings
        self._finishing = threading.Lock()
        self._ended = ""

    def begin(self) -> None:
        """Begin to watch."""
        self._recorder.start()
        self._observer.__enter__()
        compilers.hide_hooks()

    def note(self, error: BaseException) -> None:
        """Note what ended the process."""
        failed = Result("error")
        failed.fail(error)
        self._ended = f"it {failed.message}"

    def finish(self) -> None:
        """Write what came of it; a process which was stopped after its steps ends here, as one which has done its work."""
        import torch

        if not torch.cuda.is_initialized() or not self._finishing.acquire(blocking=False):  # type: ignore[no-untyped-call]
            return
        is_done = self._recorder.course.is_stopped
        try:
            result = self._result(is_done=is_done)
        except Exception as error:  # a damaged process must not keep the job from its end, nor be forgotten
            result = Result("error")
            result.fail(error)
        with contextlib.suppress(OSError):  # the folder is gone: nobody waits any more
            _write(Process(_command(), result))
        if is_done:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(0)

    def _result(self, *, is_done: bool) -> Result:
        """Return what was recorded; a card which was full ended the process, unless it made its steps."""
        import torch

        result = Result("ok", torch=str(torch.__version__), cuda=str(torch.version.cuda))
        complete(
            result, self._job, self._gpu, self._recorder, self._observer, self._settings,
            is_whole=not is_done and not self._ended, ended=self._ended,
        )  # fmt: skip
        assert result.trace is not None
        if result.status == "ok" and result.trace.header["peaks"]["ooms"] and not is_done:
            result.status, result.message = "oom", "CUDA out of memory in a process which the job started."
        return result


_KEPT: list[Any] = []  # what only weak references would know


def _command() -> str:
    return " ".join(os.path.basename(word) if at == 0 else word for at, word in enumerate(sys.argv)) or "python"


def _write(process: Process) -> None:
    folder = Path(os.environ[VARIABLE])
    hidden = folder / f"{os.getpid()}.part"
    hidden.write_bytes(pickle.dumps(process, protocol=pickle.HIGHEST_PROTOCOL))
    hidden.rename(hidden.with_suffix(".process"))
