"""Runs a training command's program in this process, like `python train.py args` or `python -m package.train args`."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from multiprocessing import process
from types import ModuleType
from typing import Any, Final

from vramcast.core import progress
from vramcast.jobs.job import Command
from vramcast.jobs.ranks import Rank
from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.nullgpu.child import subprocesses
from vramcast.tracer.program.loop_sources import compiled
from vramcast.tracer.protocol.source_places import is_ours, stack_of, users_place

# spec: torch 2.11, torch.distributed.launch; DeepSpeed 0.18, launcher/launch.py: the first argument of each process.
_LOCAL_RANK: Final = ("--local-rank=0", "--local_rank=0")


def run(command: Command, rank: Rank) -> None:
    """Run the program of one rank to its end; an exit with a success code counts as that.

    Raises:
        SystemExit: It ended with another code.
    """
    os.environ.update(rank.variables({**os.environ, **dict(command.environment)}))
    subprocesses.let_follow(os.environ)
    # Python records its working folder at startup. Processes that `multiprocessing` spawns look for the script there.
    vars(process)["ORIGINAL_DIR"] = os.getcwd()
    sys.argv = list(command.words)
    progress.tell(progress.Stage.COMMAND)
    if sys.argv[1:2] and sys.argv[1] in _LOCAL_RANK:
        sys.argv[1] = f"{sys.argv[1][:-1]}{rank.local}"
    places = [ReplacedAttribute(os, name, _as_a_child) for name in ("execv", "execve")]  # all of os.exec* call these
    places.append(ReplacedAttribute(warnings, "showwarning", _at_its_own_line))
    try:
        if command.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(command.program, run_name="__main__", alter_sys=True)
        elif command.is_code:
            _run_code(command)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(command.program)))
            runpy.run_path(command.program, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    finally:
        for place in places:
            place.remove()
    _wait_as_python_does()


def _at_its_own_line(original: Callable[..., None]) -> Callable[..., None]:
    """Show a warning that was raised in our code, through which the job's calls go, at the job's own line."""

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        place = users_place(stack_of(sys._getframe(1))) if is_ours(filename) else None
        at = (filename, lineno) if place is None else (place.file, place.line)
        original(message, category, *at, file, line)

    return show


def _wait_as_python_does() -> None:
    """Wait for non-daemon processes of `multiprocessing`; idle workers of pools end."""
    pools = sys.modules.get("concurrent.futures.process")
    if pools is not None:
        getattr(pools, "_python_exit", lambda: None)()  # spec: CPython 3.11 to 3.14, called by the interpreter at its end
    for child in multiprocessing.active_children():
        if not child.daemon:
            child.join()


def _run_code(command: Command) -> None:
    """Run `python -c`: the code's own name is `-c`, and the current folder comes first, even after a change."""
    sys.argv[0] = "-c"
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compiled(command.program, "<string>", "exec"), vars(main))


def _as_a_child(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a program as a child, not in this process's place, and exits with its code.

    This process still has to return its result; the child is followed like every process that a job starts. Launchers replace
    themselves in this way, and so do scripts that restart themselves with another environment.
    """
    job = os.getpid()

    def run(path: Any, words: Any, environment: Any = None) -> None:
        if os.getpid() != job:  # a fork: it has no result to return
            original(path, words) if environment is None else original(path, words, environment)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        code = subprocess.run(list(words), executable=path, env=environment, check=False).returncode
        raise SystemExit(code)

    return run
