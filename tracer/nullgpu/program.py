"""Runs a training command's program in this process, as `python train.py args` or `python -m package.train args` would."""

from __future__ import annotations

import os
import runpy
import sys

from vramcast.job import Command


def run(command: Command) -> None:
    """Run the program to its end; an exit with a code of success is none.

    Raises:
        SystemExit: it ended with another code.
    """
    os.environ.update(command.environment)
    sys.argv = list(command.words)
    try:
        if command.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(command.program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(command.program)))
            runpy.run_path(command.program, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
