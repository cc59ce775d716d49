"""The command line: one file a verb, and this one, which alone turns errors into text and exit codes.

Exit codes: 0 yes or done, 1 does not fit, 2 wrong usage, 3 cannot estimate, 4 uncertain. With --json one JSON object goes
to stdout, also for 1, 3 and 4; everything else goes to stderr. An unexpected error is 3 too: it is no answer.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Collection, Sequence
from typing import Any, Final, NoReturn

from vramcast._version import __version__
from vramcast.cli import streams, values
from vramcast.cli.signals import end_orderly
from vramcast.cli.terminal import painted
from vramcast.core.errors import CannotEstimate, JobError, OutputError, VramcastError
from vramcast.core.text import one_line, shorten
from vramcast.core.units import MIB, gib

# What each verb does: the first line of its module, vramcast/cli/verbs/VERB.py, which is imported for that verb alone.
VERBS: Final = {
    "estimate": "Estimate the memory of a training job.",
    "check": "Say whether a job fits on a card: exit 0 fits, 1 does not, 4 uncertain.",
    "sweep": "Estimate a job over batch sizes or numbers of ranks, or find the largest batch which fits.",
    "run": "Run an unmodified training command on the null GPU through --steps training steps and an evaluation, and estimate.",
    "replay": "Play a recorded PyTorch memory history through the allocator simulator and compare it event by event.",
    "plan": "Plan a job's memory: blocks placed by their lifetimes in a pool, and moved to the host while nothing needs them.",
    "measure": "Measure real training jobs on this machine's GPU and append them to a data set.",
    "import": "Read job histories into a data set.",
    "train": "Train the learned correction on measured runs: your own history, ours, or both.",
    "calibrate": "Calibrate an artifact on your own runs: the trees stay, the bounds become true here.",
    "evaluate": "Judge estimates and bounds against measured runs.",
    "adopt": "Learn from the cluster's own history, and put the result in place if it is no worse than what is there.",
    "serve": "Serve estimates, checks and observations over HTTP, for schedulers (docs/serving.md).",
    "devices": "List the cards an estimate can be made for: the table's, and the site's own (VRAMCAST_SITE).",
    "models": "List the models which a TARGET can name out of a registry: torchvision, timm or hf.",
    "doctor": "Say what is installed and which tracers work here; fetch another cuDNN to ask; measure this card's context.",
    "stub-checkpoint": "Write a checkpoint of true shapes without weights, for scripts that begin with from_pretrained.",
}
_WITHOUT_JSON = ("serve",)
_BEFORE_COMMAND = ("check",)  # the verbs which take a COMMAND behind `--`, instead of a TARGET
_TRACING = ("estimate", "check", "sweep", "run")  # the verbs which ask the null GPU, unless another tracer is given
_LONGEST_LINE = 2_000  # arbitrary: characters which a person may still read
_LONGEST_MESSAGE = 10_000  # arbitrary: of the JSON object; a program may want the end of a longer message as well
_LEAST_MEMORY_BYTES = 512 * MIB  # measured: imports fail below 0.2 GB, 2 cores, 2026-11; OpenBLAS takes more on more
_BY_SIGNAL = 128  # spec: POSIX shells' exit code of what a signal ended is above
_CANNOT_ESTIMATE = 3  # spec: the exit code of what is no answer
_VERSION = f"vramcast {__version__}"


def _require_memory() -> None:
    """Raise where what the verbs import could not be loaded: numpy's OpenBLAS would end us by exit(1), and say nothing.

    Raises:
        CannotEstimate: a limit on main memory is lower.
    """
    if sys.platform == "win32":
        return
    import resource

    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < _LEAST_MEMORY_BYTES:
        raise CannotEstimate(
            f"This process may use {gib(limit_bytes)} of main memory (ulimit -v), and vramcast alone takes "
            f"{gib(_LEAST_MEMORY_BYTES)}, a job on torch several GiB: raise the limit."
        )


def _start_ahead(given: Sequence[str]) -> None:
    """Start the null GPU's worker where it will be asked, so that it imports torch while we import our own."""
    others = {"-h", "--help", "fake", "--tracer=fake", "cpu", "--tracer=cpu"}
    if given and given[0] in _TRACING and not others & set(given):
        from vramcast.tracer.nullgpu.client import NullGpuTracer

        NullGpuTracer.start_ahead()


class _ParserEnd(SystemExit):
    """argparse's own way out (--help, --version, wrong usage), to be told from a SystemExit of somebody else."""


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors (the usage is one --help away), in which no value is ignored because it is empty.

    Attributes:
        options: What the options are called.
    """

    def __init__(self, **settings: Any) -> None:
        self.options: list[str] = []
        super().__init__(**settings, allow_abbrev=False)  # a new option must not change what a shortened one meant

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add an argument; one which may be empty says `type=str`."""
        takes_text = settings.get("action", "store") in ("store", "append") and settings.get("nargs") != argparse.REMAINDER
        if takes_text:
            settings.setdefault("type", values.text)
        added = super().add_argument(*names, **settings)
        self.options += added.option_strings
        return added

    def print_help(self, file: Any = None) -> None:
        """Answer with the help; argparse's own ignores that stdout is closed or full."""
        streams.answer(self.format_help(), end="")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End, after a message on stderr; argparse's own ignores a stream which is closed."""
        if message:
            streams.say(message, end="")
        raise _ParserEnd(status)

    def error(self, message: str) -> NoReturn:
        """End with one line which says what is wrong."""
        self.exit(2, f"vramcast: {one_line(message, _LONGEST_LINE, ' | ')}{self._meant(message)} (see {self.prog} --help)\n")

    def _meant(self, message: str) -> str:
        """Return what a misspelt verb or option was probably meant to be; "" where nothing is close."""
        wrong = re.match(r"unrecognized arguments: (--[\w-]+)|argument VERB: invalid choice: '([^']*)'", message)
        if wrong is None:
            return ""
        close = difflib.get_close_matches(wrong[1] or wrong[2], self.options if wrong[1] else VERBS, n=1)
        return f": did you mean {close[0]}?" if close else ""


def parser(loaded: Collection[str] = VERBS.keys()) -> Parser:
    """Return the parser of the command line.

    Args:
        loaded: The verbs that are imported; of the others it knows the names alone.
    """
    top = Parser(prog="vramcast", description="How much GPU memory will this PyTorch training job take?")
    top.add_argument("--version", action="version", version=_VERSION)
    top.set_defaults(json=False)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, help_line in VERBS.items():
        if name not in loaded:
            verbs.add_parser(name, help=help_line)
            continue
        verb = importlib.import_module(f"vramcast.cli.verbs.{_module(name)}")
        words = (verb.__doc__ or "").strip()  # python -OO leaves none
        sub = verbs.add_parser(name, help=help_line, description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
        verb.add_arguments(sub)
        if name not in _WITHOUT_JSON:
            sub.add_argument("--json", action="store_true", help="one JSON object on stdout")
        sub.add_argument("--verbose", action="store_true", help="show tracebacks: the job's when it raises, ours when we fail")
        sub.set_defaults(function=verb.main)
        top.options += sub.options
    return top


def _complete() -> None:
    """Answer a shell which asks how the line may go on (docs/start.md), where argcomplete is installed; then end."""
    if "_ARGCOMPLETE" in os.environ:
        from vramcast.cli.shell_completion import complete

        complete(parser(_verb_of(os.environ.get("COMP_LINE", "").split())))


def _verb_of(words: Sequence[str]) -> list[str]:
    """Return the verb of a command line, alone; none where it has none. No option before it takes a value."""
    return [word for word in words if word in VERBS][:1]


def _module(verb: str) -> str:
    """Return the name of a verb's module: `import` is a keyword of Python, and a hyphen no letter."""
    return "import_" if verb == "import" else verb.replace("-", "_")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; nothing escapes but the SystemExit of a signal's handler."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # What is in force until the options are known, if they ever are.
    options = argparse.Namespace(json="--json" in given, verbose="--verbose" in given)
    try:
        streams.secure()
        if given[:1] == ["--version"]:
            streams.answer(_VERSION)
            return 0
        _require_memory()
        _complete()
        _start_ahead(given)
        known = parser(_verb_of(given))
        try:
            own_words, command = _split(given)
            options = known.parse_args(own_words)
        except _ParserEnd as end:
            return int(end.code or 0)
        options.asked = (known.prog, *given)
        if command is not None:
            options.command = command
        streams.require_stdout()
        return int(options.function(options))
    except KeyboardInterrupt:
        streams.say("vramcast: interrupted")
        return 130
    except VramcastError as error:
        hint = ""
        if isinstance(error, JobError) and error.job_traceback:
            if options.verbose:
                streams.say(error.job_traceback)
            else:
                hint = " [--verbose shows the traceback]"
        return _failed(error, str(error), error.exit_code, is_json=options.json, hint=hint)
    except BaseException as error:  # SystemExit too: Python's own exit code 1 would say "does not fit"
        if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > _BY_SIGNAL:
            raise  # a signal's handler ends us, as a shell expects it
        if options.verbose:
            streams.say("".join(traceback.format_exception(error)).rstrip())
        if isinstance(error, OSError) and error.filename is not None:  # one which the caller named, or whose place is full
            named = shorten(str(error.filename))
            return _failed(error, f"'{named}' cannot be used: {error.strerror}.", _CANNOT_ESTIMATE, is_json=options.json)
        words = "".join(traceback.format_exception_only(error)).strip()
        if isinstance(error, ModuleNotFoundError):
            words += f" ({error.name} is not installed here, or in part: pip install vramcast installs what it needs)"
        elif isinstance(error, MemoryError | ImportError):
            words += " (is main memory short, or limited by ulimit -v?)"
        report = "the traceback is above" if options.verbose else "--verbose shows the traceback"
        text = f"{shorten(words, _LONGEST_MESSAGE)}. This error is unexpected, and is no answer: please report it; {report}."
        return _failed(error, text, _CANNOT_ESTIMATE, is_json=options.json)


def _split(given: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return a verb's own words, and those of the command behind `--`; None: the verb takes none there."""
    if not given or given[0] not in _BEFORE_COMMAND:
        return list(given), None
    at = given.index("--") if "--" in given else len(given)
    return list(given[:at]), list(given[at + 1 :])


def _failed(error: BaseException, text: str, code: int, *, is_json: bool, hint: str = "") -> int:
    """Say why there is no answer, on stderr and with --json on stdout; return the exit code."""
    streams.say(f"{painted('vramcast:', 'red', sys.stderr)} {one_line(text, _LONGEST_LINE, ' | ')}{hint}")
    if is_json and code != 2 and sys.stdout is not None:
        message = {"schema": 1, "error": type(error).__name__, "message": shorten(text, _LONGEST_MESSAGE)}
        try:
            streams.answer(json.dumps(message))
        except OutputError as silent:
            streams.say(f"vramcast: {silent}")
    return code


def entry() -> NoReturn:
    """The console script."""
    end_orderly()
    sys.exit(main())
