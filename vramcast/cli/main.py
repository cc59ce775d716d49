"""The command line: one file a verb, and this one, which alone turns errors into text and exit codes.

Exit codes: 0 yes or done, 1 does not fit, 2 wrong usage, 3 cannot estimate, 4 uncertain. With --json one JSON object goes
to stdout, also for 1, 3 and 4; everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from vramcast.cli import calibrate, check, doctor, estimate, evaluate, import_, measure, plan, replay, run, sweep, train
from vramcast.cli.signals import end_orderly
from vramcast.errors import CannotEstimate, JobError, VramcastError

VERBS = (estimate, check, sweep, run, replay, plan, measure, import_, train, calibrate, evaluate, doctor)


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors: the usage is one --help away."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"vramcast: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = _Parser(prog="vramcast", description="How much GPU memory will this PyTorch training job take?")
    top.add_argument("--version", action="version", version=f"vramcast {_version()}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        name = verb.__name__.rpartition(".")[2].rstrip("_")  # `import` is a keyword of Python
        summary = (verb.__doc__ or "").strip().splitlines()[0]
        sub = verbs.add_parser(
            name, help=summary, description=verb.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        verb.add_arguments(sub)
        sub.set_defaults(function=verb.main)
    return top


def _version() -> str:
    from vramcast import __version__

    return __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no exception of ours escapes."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    try:
        return int(options.function(options))
    except VramcastError as error:
        if isinstance(error, JobError) and error.job_traceback and getattr(options, "verbose", False):
            print(error.job_traceback, file=sys.stderr)
        # One line, whatever the job's own message looks like; --json and the API have it as it is.
        print(f"vramcast: {' | '.join(line.strip() for line in str(error).splitlines() if line.strip())}", file=sys.stderr)
        if isinstance(error, CannotEstimate) and getattr(options, "json", False):
            print(json.dumps({"schema": 1, "error": type(error).__name__, "message": str(error)}))
        return error.exit_code
    except KeyboardInterrupt:
        print("vramcast: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`): nothing is left to say, not even at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def entry() -> NoReturn:
    """The console script."""
    end_orderly()
    sys.exit(main())
