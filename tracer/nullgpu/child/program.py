"""Runs a training command's program in this process, as `python train.py args` or `python -m package.train args` would."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import process
from types import ModuleType
from typing import Any, Final

from vramcast.jobs.job import Command
from vramcast.jobs.ranks import Rank
from vramcast.tracer.hooks.replacement import Replaced
from vramcast.tracer.nullgpu.child import subprocesses

# spec: torch 2.11, torch.distributed.launch; DeepSpeed 0.18, launcher/launch.py: the first argument of each process.
_LOCAL_RANK: Final = ("--local-rank=0", "--local_rank=0")


def run(command: Command, rank: Rank) -> None:
    """Run the program of one rank to its end; an exit with a code of success is none.

    Raises:
        SystemExit: it ended with another code.
    """
    os.environ.update(rank.told(dict(command.environment)))
    subprocesses.let_follow(os.environ)
    # Python notes when it starts where it was started. Processes which `multiprocessing` spawns look there for the script.
    vars(process)["ORIGINAL_DIR"] = os.getcwd()
    sys.argv = list(command.words)
    if sys.argv[1:2] and sys.argv[1] in _LOCAL_RANK:
        sys.argv[1] = f"{sys.argv[1][:-1]}{rank.local}"
    places = [Replaced(os, name, _as_a_child) for name in ("execv", "execve")]  # what all of os.exec* end in
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


def _wait_as_python_does() -> None:
    """Wait for processes of `multiprocessing` which are no daemons; workers of pools have nothing to do any more, and end."""
    pools = sys.modules.get("concurrent.futures.process")
    if pools is not None:
        getattr(pools, "_python_exit", lambda: None)()  # spec: CPython 3.11 to 3.14, what the interpreter calls at its end
    for child in multiprocessing.active_children():
        if not child.daemon:
            child.join()


def _run_code(command: Command) -> None:
    """Run `python -c`: the code's own name is `-c`, and the current folder comes first, whichever it is."""
    sys.argv[0] = "-c"
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(command.program, "<string>", "exec"), vars(main))


def _as_a_child(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs a program which would take this process's place as its child, and exits as that did.

    The answer of this process is still to be given; the child is followed as every process which a job starts. Launchers do
    so, and scripts which start themselves again with another environment.
    """
    job = os.getpid()

    def run(path: Any, words: Any, environment: Any = None) -> None:
        if os.getpid() != job:  # a fork: it has no answer to give
            original(path, words) if environment is None else original(path, words, environment)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        code = subprocess.run(list(words), executable=path, env=environment, check=False).returncode
        raise SystemExit(code)

    return run
