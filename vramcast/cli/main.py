"""The command line. Each verb is a file of its own; this one turns errors into text and exit codes.

Exit codes: 0 yes or done, 1 does not fit, 2 wrong usage, 3 cannot estimate, 4 uncertain. With --json one JSON object goes
to stdout, also for 1, 3 and 4; everything else goes to stderr. An unexpected error exits with 3 as well, because it gives
no estimate.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Collection, Sequence
from typing import Any, Final, NoReturn

from vramcast._version import __version__
from vramcast.cli import streams, terminal, values
from vramcast.cli.help_text import ADVANCED, ANSWER, Formatter, group_or_options, overview
from vramcast.cli.signals import end_orderly
from vramcast.cli.suggestions import explained, meant_command, simpler_inputs, unrecognized
from vramcast.cli.terminal import painted, wrapped
from vramcast.core.errors import CannotEstimate, JobError, OutputError, VramcastError
from vramcast.core.text import one_line, shorten
from vramcast.core.units import MIB, gib

_LEARN: Final = "Learn from your cluster's history, and deploy the result if it is no worse than the current artifact."
# Each verb's help: the first line of its module, vramcast/cli/verbs/VERB.py, which is imported for that verb alone.
VERBS: Final = {
    "estimate": "Estimate the memory of a training job.",
    "check": "Check whether a job fits on a card: exit code 0 fits, 1 does not fit, 4 uncertain.",
    "sweep": "Estimate a job over batch sizes or numbers of ranks, or find the largest batch that fits.",
    "largest": "Find the largest batch, prompt, length or rank that fits on a card, for a model or an unmodified command.",
    "run": (
        "Run an unmodified training command on the null GPU for --steps training steps and an evaluation, and estimate "
        "its memory."
    ),
    "explain": "Explain why a job ran out of memory: the cause, what held the card, and the changes that would have helped.",
    "replay": "Replay a recorded PyTorch memory history in the allocator simulator and compare it event by event.",
    "plan": (
        "Plan a job's memory: place blocks in a pool by their lifetimes, and move them to the host while they are unused."
    ),
    "follow": "Run a training command with its memory served from a plan.",
    "measure": "Measure real training jobs on this machine's GPU and append them to a data set.",
    "learn": _LEARN,
    "serve": "Serve estimates, checks and observations over HTTP, for schedulers (docs/serving.md).",
    "devices": "List the known cards: the built-in ones and your site's (VRAMCAST_SITE).",
    "models": "List the models that a TARGET can name: those of torchvision, timm, hf or diffusers.",
    "doctor": "Report what is installed and which tracers work; fetch another cuDNN; measure this card's context.",
    "mcp": "Serve the verbs as tools for coding agents: the Model Context Protocol on standard input and output.",
    "stub-checkpoint": "Write a checkpoint with real shapes and no weights, for scripts that call from_pretrained.",
    # Parts of `learn`, and its former name: not in the list of verbs, and to be removed in the next release.
    "adopt": _LEARN,
    "import": "Read job histories into a data set.",
    "train": "Train the learned correction on measured runs: yours, ours, or both.",
    "calibrate": "Calibrate an artifact on your own runs: recompute its bounds and keep its trees.",
    "evaluate": "Evaluate estimates and bounds against measured runs.",
}
_GROUPS: Final = {
    "estimate": ("estimate", "check", "run", "sweep", "largest", "explain", "plan", "follow", "replay"),
    "your history": ("learn", "measure"),
    "cluster": ("serve",),
    "tools": ("devices", "models", "doctor", "mcp", "stub-checkpoint"),
}
_MODULES: Final = {"import": "import_", "adopt": "learn"}  # of verbs with another name: `import` is a keyword of Python
_WITHOUT_JSON = ("serve", "follow", "mcp")
BEFORE_COMMAND = ("check", "explain", "largest", "plan", "follow")  # verbs that take a COMMAND after `--`, not a TARGET
_TRACING = ("estimate", "check", "sweep", "largest", "run")  # the verbs that use the null GPU, unless another tracer is given
_LONGEST_LINE = 2_000  # arbitrary: characters that a person may still read
_LONGEST_MESSAGE = 10_000  # arbitrary: in the JSON object; a program may need the end of a longer message too
_LEAST_MEMORY_BYTES = 512 * MIB  # measured: imports fail below 0.2 GB, 2 cores, 2026-11; OpenBLAS needs more with more cores
_BY_SIGNAL = 128  # spec: POSIX shells add this to the number of the signal that ended a process
_INTERRUPTED = _BY_SIGNAL + 2  # spec: SIGINT
_CANNOT_ESTIMATE = 3  # spec: the exit code when there is no estimate
_VERSION = f"vramcast {__version__}"


def _require_memory() -> None:
    """Raise if the imports of a verb would not fit into memory: numpy's OpenBLAS would then call exit(1) without a message.

    Raises:
        CannotEstimate: The limit on main memory is too low.
    """
    if sys.platform == "win32":
        return
    import resource

    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < _LEAST_MEMORY_BYTES:
        raise CannotEstimate(
            f"This process may use {gib(limit_bytes)} of main memory (ulimit -v), but vramcast alone needs "
            f"{gib(_LEAST_MEMORY_BYTES)}, and a job on torch several GiB: raise the limit."
        )


def _start_ahead(given: Sequence[str]) -> None:
    """Start the worker of the null GPU if the verb needs it, so that it imports torch while this process imports the verb."""
    others = {"-h", "--help", "fake", "--tracer=fake", "cpu", "--tracer=cpu"}
    if given and given[0] in _TRACING and not others & set(given):
        from vramcast.tracer.nullgpu.client import NullGpuTracer

        NullGpuTracer.start_ahead()


class _ParserEnd(SystemExit):
    """The exit of argparse (--help, --version, wrong usage), distinct from any other SystemExit."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with one-line errors, which point to --help for the usage.

    Attributes:
        options: Names of the options.
    """

    def __init__(self, **settings: Any) -> None:
        self.options: list[str] = []
        self._wrong: list[str] = []
        self._n_cards = 0
        super().__init__(
            **settings, formatter_class=Formatter, allow_abbrev=False
        )  # a new option must not change what an abbreviation meant

    @property
    def arguments(self) -> list[argparse.Action]:
        """The arguments that were added."""
        return self._actions

    def print_help(self, file: Any = None) -> None:
        """Print the help; unlike argparse, fail if stdout is closed or full."""
        streams.answer(self.format_help(), end="")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit after a message on stderr; unlike argparse, survive a closed stream."""
        if message:
            streams.say(message, end="")
        raise _ParserEnd(status)

    def _get_values(self, action: argparse.Action, texts: list[str]) -> Any:
        """Return the values of an argument; unlike argparse, note a wrong one and continue, to report all at once."""
        self._n_cards += "--on" in action.option_strings
        try:
            return super()._get_values(action, texts)
        except argparse.ArgumentError as error:
            if action.nargs == argparse.PARSER:  # the verb: nothing is known about the rest
                raise
            self._wrong.append(str(error))
            return action.default

    def parse_known_args(self, *given: Any, **settings: Any) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        """Parse a verb's arguments; unlike argparse, reject unknown ones here, where their verb is known."""
        self._n_cards = 0
        found, unknown = super().parse_known_args(*given, **settings)
        if self._n_cards > 1:
            self._wrong.append("--on is given twice: name one card, or none to learn the smallest that fits")
        if unknown:
            self.error(unrecognized(unknown, self.options, takes_command=hasattr(found, "command")))
        if self._wrong:
            self.error()
        return found, unknown

    def error(self, message: str = "") -> NoReturn:
        """Exit with a line for each wrong argument, and for the message."""
        wrong = [one.removeprefix("argument ") for one in (*self._wrong, message) if one]
        lines = [one_line(explained(one), _LONGEST_LINE, " | ") + self._form_of(one) for one in wrong]
        lines[-1] += f" (see {self.prog} --help)"
        self.exit(2, "".join(f"{wrapped(f'vramcast: {line}', sys.stderr)}\n" for line in lines))

    def _form_of(self, message: str) -> str:
        """Return how to write an option without its value, as the end of the message that says so; "" for other messages."""
        option = re.match(r"(--[\w-]+)\S*: expected one argument$", message)
        action = self._option_string_actions.get(option[1]) if option else None
        return f": write {option[1]} {action.metavar}" if option and action and isinstance(action.metavar, str) else ""


class _Program(Parser):
    """The parser of the program, with a help of its own."""

    def format_help(self) -> str:
        """Return examples, and the verbs in groups."""
        return overview(self.prog, {title: {verb: VERBS[verb] for verb in verbs} for title, verbs in _GROUPS.items()})


def parser(loaded: Collection[str] = VERBS.keys()) -> Parser:
    """Return the parser of the command line.

    Args:
        loaded: The verbs to import; the others are listed by name only.
    """
    top = _Program(prog="vramcast")
    top.add_argument("--version", action="version", version=_VERSION)
    top.set_defaults(json=False)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", prog=top.prog, parser_class=Parser)
    for name, help_line in VERBS.items():
        if name not in loaded:
            verbs.add_parser(name, help=help_line)
            continue
        verb = importlib.import_module(f"vramcast.cli.verbs.{_module(name)}")
        words = (verb.__doc__ or "").strip()  # python -OO strips it
        sub = verbs.add_parser(name, help=help_line, description=words, add_help=False)
        sub.register("type", None, values.text)  # an argument that may be empty passes `type=str`
        verb.add_arguments(sub)
        if name not in _WITHOUT_JSON:
            group_or_options(sub, ANSWER).add_argument("--json", action="store_true", help="print one JSON object on stdout")
        group_or_options(sub, ADVANCED).add_argument(
            "--verbose", action="store_true", help=("show tracebacks: the job's if it raises, vramcast's own if vramcast fails")
        )
        group_or_options(sub, ADVANCED).add_argument(
            "--progress",
            choices=("line", "json"),
            default="line",
            help="json: report progress on stderr as JSON lines (default: a line of a terminal, or else one every 10 s)",
        )
        group_or_options(sub, ADVANCED).add_argument(
            "-q", "--quiet", dest="progress", action="store_const", const="quiet", help="no progress, no output of the job"
        )
        group_or_options(sub, ADVANCED).add_argument("--no-color", action="store_true", help="no colors, as NO_COLOR=1 does")
        group_or_options(sub, ADVANCED).add_argument("-h", "--help", action="help", help="print this help")
        sub.set_defaults(function=verb.main)
        sub.options = sorted(sub._option_string_actions)
        top.options += sub.options
    return top


def _complete() -> None:
    """Answer a shell's completion request (docs/start.md) and exit, if argcomplete is installed."""
    if "_ARGCOMPLETE" in os.environ:
        from vramcast.cli.shell_completion import complete

        complete(parser(_verb_of(os.environ.get("COMP_LINE", "").split())))


def _verb_of(words: Sequence[str]) -> list[str]:
    """Return the verb of a command line as a list, empty if there is none. No option before it takes a value."""
    return [word for word in words if word in VERBS][:1]


def _module(verb: str) -> str:
    """Return the name of a verb's module."""
    return _MODULES.get(verb, verb.replace("-", "_"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; only the SystemExit of a signal handler escapes."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # In force until the options are parsed.
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
            if not given:
                known.exit(2, known.format_help())
            if not given[0].startswith("-") and given[0] not in VERBS:
                known.error(meant_command(given, VERBS))
            own_words, command = _split(given)
            options = known.parse_args(own_words)
            terminal.mode, terminal.is_plain = options.progress, options.no_color
        except _ParserEnd as end:
            return int(end.code or 0)
        options.asked = (known.prog, *given)
        if command is not None:
            options.command = command
        streams.require_stdout()
        return int(options.function(options))
    except KeyboardInterrupt:
        streams.say("vramcast: interrupted")
        return _INTERRUPTED
    except VramcastError as error:
        hint = ""
        if isinstance(error, JobError):
            hint = simpler_inputs(getattr(options, "target", None), getattr(options, "batch", None))
            if error.job_traceback and options.verbose:
                streams.say(error.job_traceback)
            elif error.job_traceback:
                hint += " [--verbose shows the traceback]"
        return _failed(error, str(error), error.exit_code, is_json=options.json, hint=hint)
    except BaseException as error:  # also SystemExit: Python's own exit code 1 would mean "does not fit"
        if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > _BY_SIGNAL:
            raise  # raised by a signal handler, with the exit code that a shell expects
        if options.verbose:
            streams.say("".join(traceback.format_exception(error)).rstrip())
        if isinstance(error, OSError) and error.filename is not None:  # a file that the caller named, or a full disk
            named = shorten(str(error.filename))
            return _failed(
                error,
                (f"'{named}' cannot be used: {error.strerror}. Check that the path exists, is accessible and has room."),
                _CANNOT_ESTIMATE,
                is_json=options.json,
            )
        words = "".join(traceback.format_exception_only(error)).strip()
        if isinstance(error, ModuleNotFoundError):
            words += f" ({error.name} is missing or incomplete here: pip install . in vramcast's checkout)"
        elif isinstance(error, MemoryError | ImportError):
            words += " (is main memory low, or limited by ulimit -v?)"
        report = "the traceback is above" if options.verbose else "--verbose shows the traceback"
        text = (
            f"{shorten(words, _LONGEST_MESSAGE)}. This error is unexpected, and there is no estimate: please report it; "
            f"{report}."
        )
        return _failed(error, text, _CANNOT_ESTIMATE, is_json=options.json)


def _split(given: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return a verb's own words, and those of the command after `--`; None: this verb takes no command there."""
    if not given or given[0] not in BEFORE_COMMAND:
        return list(given), None
    at = given.index("--") if "--" in given else len(given)
    return list(given[:at]), list(given[at + 1 :])


def _failed(error: BaseException, text: str, code: int, *, is_json: bool, hint: str = "") -> int:
    """Report an error on stderr, and with --json on stdout; return the exit code."""
    name = "vramcast:"
    words = wrapped(f"{name} {one_line(text, _LONGEST_LINE, ' | ')}{hint}", sys.stderr)
    streams.say(f"{painted(name, 'red', sys.stderr)}{words.removeprefix(name)}")
    if is_json and code != 2 and sys.stdout is not None:
        message = {"schema": 1, "error": type(error).__name__, "message": shorten(text, _LONGEST_MESSAGE)}
        try:
            streams.answer(json.dumps(message))
        except OutputError as silent:
            streams.say(f"vramcast: {silent}")
    return code


def entry() -> NoReturn:
    """Run the console script."""
    end_orderly()
    code = main()
    if code == _INTERRUPTED:  # threads may be in C++ code of NumPy, which the interpreter's own end would abort
        atexit._run_exitfuncs()
        os._exit(code)
    sys.exit(code)
