"""The process of a portable tracer's job: its start, and its errors and exit.

On Linux a warm worker forks it (`warm_worker.py`); elsewhere each job starts a Python process of its own, with only pipes:

    python -m vramcast.tracer.processes.job_process MODULE    stdin: a Job and its RunOptions; stdout: a Result
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
from vramcast.tracer.format.ledger import CallHandling
from vramcast.tracer.processes.warm_worker import WarmWorker, death
from vramcast.tracer.protocol import consistency
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

_LONGEST_MESSAGE = 10_000  # arbitrary: characters of a job's own message; some contain a whole tensor or a log
_LONGEST_TRACEBACK = 100_000  # arbitrary: likewise, deeper than any recursion that ends by itself


def trace_in_process(module: str, job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float, advice: str) -> Result:
    """Run `job` by `run_job` of `module` in a process of its own and return its result (status ok or oom).

    Args:
        module: Module with `run_job(job, options) -> Result`, and `warm_up()`, which imports the modules that all jobs need.
        job: The job to run; a model, not a script.
        options: Options of the run.
        timeout_s: Seconds after which the process is killed.
        advice: Advice for a timeout; ends the sentence "The job did not end within 9 s ...".
    Raises:
        JobError: The job's own code raised.
        UsageError: The job's description is wrong.
        WorkerError: The process died (perhaps out of memory) or timed out.
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
    # A worker keeps its imports, so another path needs another worker.
    worker = WarmWorker.shared(f"{module} {environment['PYTHONPATH']}", worker_command(module), environment)
    answer: Result = worker.ask(job, environment, options, timeout_s=timeout_s, advice=advice)
    return checked(answer)


def worker_command(module: str) -> list[str]:
    """Return the command of a warm worker for `run_job` of `module`."""
    return [sys.executable, "-m", "vramcast.tracer.processes.fork_server", module]


def run_once(module: str, job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float, advice: str) -> Result:
    """Run the job as `trace_in_process` does, in a fresh Python process; the result is not checked."""
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
                    pass  # it died before it read; its exit code has more information
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
    """Run one job as the main function of its process."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the model's output goes to stderr
    question: tuple[Job, RunOptions] = pickle.load(sys.stdin.buffer)  # from our own process
    threading.Thread(target=_end_with_caller, daemon=True).start()
    me = os.getpid()
    result = importlib.import_module(module).run_job(*question)
    if os.getpid() != me:  # the job forked and returned twice
        os._exit(0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the job may have closed or replaced it
            stream.flush()
    pickle.dump(result, answers)
    answers.flush()
    os._exit(0)  # no cleanup of the job's objects: it takes seconds and may raise


def _end_with_caller() -> None:
    """End this process when its caller has exited: the caller sends nothing more."""
    if not sys.stdin.buffer.read(1):
        os._exit(1)


def _environment() -> dict[str, str]:
    return {**job_environment(), "CUDA_VISIBLE_DEVICES": ""}


def job_environment() -> dict[str, str]:
    """Return the environment of a tracing process: the caller's, and the variables needed in another working folder.

    Its working folder is not the caller's, and a user without a name (in a container) cannot import parts of torch.
    """
    environment = {**os.environ, "PYTHONPATH": python_path()}
    environment.pop("VRAMCAST_SUBPROCESSES", None)  # of the job that the caller itself runs in (nullgpu/subprocesses.py)
    with contextlib.suppress(CompilerError):  # no cache: code that needs one raises
        environment["VRAMCAST_CACHE"] = str(cache_folder())
    try:
        getpass.getuser()
    except (ImportError, KeyError, OSError):  # the type depends on the system and on Python's version
        environment["USER"] = f"uid{os.getuid()}"
    return environment


def python_path() -> str:
    """Return PYTHONPATH for a process with the caller's search path, also for a checkout that is not installed."""
    return os.pathsep.join(
        dict.fromkeys([str(import_root()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )


def checked(result: Result) -> Result:
    """Return `result`, or raise the error in it.

    Raises:
        IncompleteTrace: Its trace is incomplete.
        VramcastError: The error of the job or of its description.
    """
    if result.status != "error":
        consistency.check(result)
        if result.trace is not None:
            result.trace = replace(result.trace, ledger=tuple(result.ledger))
        return result
    kind = getattr(errors, result.error, JobError)
    refused = [entry.words for entry in result.ledger if entry.kind is CallHandling.REFUSED]
    message = result.message
    if refused:
        message += f" (the null GPU rejected: {', '.join(refused)})"
    if kind is JobError:
        drawn = any(entry.kind is CallHandling.DRAWN for entry in result.ledger)
        after_reads = bool(result.reads or drawn or refused or result.is_ours)
        said = shorten(result.job_traceback, _LONGEST_TRACEBACK)
        why = f"The job {shorten(message, _LONGEST_MESSAGE)}"
        raise JobError(why, said, after_reads=after_reads, is_of_machine=result.is_of_machine)
    raise kind(shorten(message, _LONGEST_MESSAGE))


if __name__ == "__main__":
    main(sys.argv[1])
