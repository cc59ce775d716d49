"""A portable tracer's job in a process of its own: how one is started, and what becomes of it when it raises or dies.

On Linux a warm worker forks it (`warm_worker.py`); elsewhere each job starts a Python of its own, with pipes only:

    python -m vramcast.tracer.processes.job_process MODULE    a Job and its RunOptions come by stdin, a Result goes to stdout
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

from vramcast.core import errors
from vramcast.core.cache import cache_folder
from vramcast.core.deadline import Deadline
from vramcast.core.errors import CompilerError, JobError, TimeLimit, UsageError, WorkerError
from vramcast.core.location import import_root
from vramcast.core.text import shorten
from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import Entered
from vramcast.tracer.processes.warm_worker import WarmWorker, death
from vramcast.tracer.protocol import consistency
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

_LONGEST_MESSAGE = 10_000  # arbitrary: characters of a job's own message; some put a whole tensor or a log into it
_LONGEST_TRACEBACK = 100_000  # arbitrary: likewise, deeper than any recursion which ends by itself


def trace_in_process(module: str, job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float, advice: str) -> Result:
    """Let `run_job` of `module` run `job` in a process of its own and return its result (status ok or oom).

    Args:
        module: Has `run_job(job, options) -> Result` and `warm_up()`, which imports what all jobs need.
        job: What to run; a model, not a script.
        options: How.
        timeout_s: The process is killed after so many seconds.
        advice: What to do when that happens; ends the sentence "The job did not end within 9 s ...".
    Raises:
        JobError: the job's own code raised.
        UsageError: the job's description is wrong.
        WorkerError: the process died (out of memory?) or ran out of time.
    """
    if job.command is not None:
        name = module.split(".")[-2]
        raise UsageError(f"The {name} tracer runs models, not scripts: use --tracer nullgpu for vramcast run.")
    if job.parallel is not None:
        name = module.split(".")[-2]
        raise UsageError(f"The {name} tracer runs one rank alone, not one of {job.world.size}: use --tracer nullgpu.")
    if sys.platform != "linux":
        return checked(run_once(module, job, options, timeout_s=timeout_s, advice=advice))
    environment = _environment()
    # What a worker imports, it keeps: who changes the path gets another one.
    worker = WarmWorker.shared(f"{module} {environment['PYTHONPATH']}", worker_command(module), environment)
    answer: Result = worker.ask(job, environment, options, timeout_s=timeout_s, advice=advice)
    return checked(answer)


def worker_command(module: str) -> list[str]:
    """Return the command of a warm worker for `run_job` of `module`."""
    return [sys.executable, "-m", "vramcast.tracer.processes.fork_server", module]


def run_once(module: str, job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float, advice: str) -> Result:
    """As `trace_in_process`, with a fresh Python; the result is not checked."""
    deadline = Deadline.after(timeout_s)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "vramcast.tracer.processes.job_process", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, cwd=Path(sys.executable).anchor, env=_environment(),
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(min(deadline.left_s(), threading.TIMEOUT_MAX), stop)
        timer.start()
        try:
            with process.stdin, process.stdout:  # stdin stays open: the process ends when it closes
                try:
                    pickle.dump((job, options), process.stdin)
                    process.stdin.flush()
                except BrokenPipeError:
                    pass  # it died before it read; its exit code says more
                answer = process.stdout.read()
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
        if late.is_set():
            raise TimeLimit.within(timeout_s, advice)
        if code != 0 or not answer:
            said.seek(0)
            raise WorkerError(death(code, said.read()))
    result: Result = pickle.loads(answer)  # from our own process
    return result


def main(module: str) -> None:
    """Be the process of one job."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the model prints goes where errors go
    question: tuple[Job, RunOptions] = pickle.load(sys.stdin.buffer)  # from our own process
    threading.Thread(target=_end_with_caller, daemon=True).start()
    me = os.getpid()
    result = importlib.import_module(module).run_job(*question)
    if os.getpid() != me:  # the job forked, and came back twice
        os._exit(0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the job may have closed it, or put anything in its place
            stream.flush()
    pickle.dump(result, answers)
    answers.flush()
    os._exit(0)  # no clean-up of the job's objects: it takes seconds and may raise


def _end_with_caller() -> None:
    """End this process when the caller's has ended: it sends nothing more."""
    if not sys.stdin.buffer.read(1):
        os._exit(1)


def _environment() -> dict[str, str]:
    return {**job_environment(), "CUDA_VISIBLE_DEVICES": ""}


def job_environment() -> dict[str, str]:
    """Return the environment of a process which traces: the caller's, and what it needs to do without the caller's place.

    Its working folder is not the caller's, and a user without a name (a container's) cannot import parts of torch.
    """
    environment = {**os.environ, "PYTHONPATH": python_path()}
    environment.pop("VRAMCAST_SUBPROCESSES", None)  # of the job in which the caller itself runs (nullgpu/subprocesses.py)
    with contextlib.suppress(CompilerError):  # no cache: whoever needs one says so
        environment["VRAMCAST_CACHE"] = str(cache_folder())
    try:
        getpass.getuser()
    except (ImportError, KeyError, OSError):  # which of them depends on the system and on Python's version
        environment["USER"] = f"uid{os.getuid()}"
    return environment


def python_path() -> str:
    """Return PYTHONPATH for a process which must find what the caller finds, also in a checkout that is not installed."""
    return os.pathsep.join(
        dict.fromkeys([str(import_root()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )


def checked(result: Result) -> Result:
    """Return `result`, or raise what it stands for.

    Raises:
        IncompleteTrace: it has a trace which is not the whole story.
        VramcastError: what the job, or its description, came to.
    """
    if result.status != "error":
        consistency.check(result)
        if result.trace is not None:
            result.trace = replace(result.trace, ledger=tuple(result.ledger))
        return result
    kind = getattr(errors, result.error, JobError)
    refused = [entry.words for entry in result.ledger if entry.kind is Entered.REFUSED]
    message = result.message
    if refused:
        message += f" (the null GPU had to refuse: {', '.join(refused)})"
    if kind is JobError:
        drawn = any(entry.kind is Entered.DRAWN for entry in result.ledger)
        after_reads = bool(result.reads or drawn or refused or result.is_ours)
        said = shorten(result.job_traceback, _LONGEST_TRACEBACK)
        why = f"The job {shorten(message, _LONGEST_MESSAGE)}"
        raise JobError(why, said, after_reads=after_reads, is_of_machine=result.is_of_machine)
    raise kind(shorten(message, _LONGEST_MESSAGE))


if __name__ == "__main__":
    main(sys.argv[1])
