"""Runs a training command's program in this process, as `python train.py args` or `python -m package.train args` would."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from multiprocessing import process
from types import ModuleType

from vramcast.job import Command
from vramcast.tracer.nullgpu import subprocesses


def run(command: Command) -> None:
    """Run the program to its end; an exit with a code of success is none.

    Raises:
        SystemExit: it ended with another code.
    """
    os.environ.update(command.environment)
    subprocesses.let_follow(os.environ)
    # Python notes when it starts where it was started. Processes which `multiprocessing` spawns look there for the script.
    vars(process)["ORIGINAL_DIR"] = os.getcwd()
    sys.argv = list(command.words)
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
    for child in multiprocessing.active_children():
        if not child.daemon:  # Python waits for these at its end
            child.join()


def _run_code(command: Command) -> None:
    """Run `python -c`: the code's own name is `-c`, and the current folder comes first, whichever it is."""
    sys.argv[0] = "-c"
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(command.program, "<string>", "exec"), vars(main))
