"""Options that several verbs share, and the `Job` that they describe."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

from vramcast.cli import values, what_if_options
from vramcast.cli.help_text import ADVANCED, ANSWER, CARD, JOB, group
from vramcast.cli.streams import answer, say
from vramcast.cli.terminal import painted, progress, width_of
from vramcast.core.checks import number, whole
from vramcast.core.errors import UsageError
from vramcast.core.units import parse_bytes
from vramcast.hardware.cards import checked_card_bytes, device
from vramcast.hardware.stack import parse as parse_stack
from vramcast.jobs import optimizers
from vramcast.jobs.adapters import parse as parse_adapter
from vramcast.jobs.job import TRACERS, Job, TensorSpec, Training, canonical, parse_batch
from vramcast.jobs.ranks import parse_ranks
from vramcast.jobs.sizes import SIZES, Sizes
from vramcast.jobs.targets import resolved
from vramcast.jobs.text import JobText
from vramcast.views import DRAWINGS, PAGES, charts

if TYPE_CHECKING:
    from vramcast.estimates.advice_rows import Advice
    from vramcast.estimates.estimator import Estimator
    from vramcast.estimates.result import Estimate

HINTS: Final[dict[str, Any]] = {**get_type_hints(Training), **get_type_hints(JobText)}
_FIELDS: Final = {one.name: (one, HINTS[one.name]) for one in (*fields(Training), *fields(JobText))}
# Readers of the fields that are texts in a `Job` too, so that the command line reports all wrong ones at once.
_READ: Final[dict[str, Callable[[str], object]]] = {
    "alloc_conf": str,  # may be empty: torch's defaults
    "batch": values.valid(lambda text: parse_batch([text])),
    "labels": values.valid(TensorSpec.parse),
    "lora": values.valid(lambda text: parse_adapter(text, None)),
    "memory": values.valid(checked_card_bytes),
    "optimizer": values.valid(optimizers.parse),
    "qlora": values.valid(lambda text: parse_adapter(None, text)),
    "ranks": values.valid(parse_ranks),
    "stack": values.checked(parse_stack),
}
RANKS: Final = ("world_size", "nproc_per_node", "ranks")  # for commands


def add_output(parser: argparse.ArgumentParser, tracers: Collection[str] = TRACERS) -> None:
    """Add the options of every verb that estimates; `tracers` are those it can use."""
    group(parser, CARD).add_argument(
        "--on",
        "--device",
        dest="device",
        metavar="CARD",
        type=values.valid(device),
        help="the card, which a verdict needs: rtx4090, a100-80gb and so on (vramcast devices lists all), its name in "
        "nvidia-smi, or a file, card.toml",
    )
    add_fields(parser, "memory", "alloc_conf", "stack")
    advanced = group(parser, ADVANCED)
    advanced.add_argument(
        "--tracer",
        choices=tracers,
        default="auto",
        help="how the job is traced (vramcast doctor says which work here); default: auto, the most exact that works",
    )
    advanced.add_argument(
        "--artifact", metavar="DIR", help="the learned correction to use (see vramcast learn); default: $VRAMCAST_ARTIFACT"
    )
    group(parser, ANSWER).add_argument(
        "--level",
        type=values.level,
        metavar="P",
        help="confidence level of the upper bound (default: 0.95, or 0.9 with few measured models)",
    )
    advanced.add_argument(
        "--host-memory", type=values.valid(parse_bytes), metavar="SIZE",
        help="main memory of this machine that the job may take, such as 64GiB (default: 80 %% of the available memory)",
    )  # fmt: skip
    advanced.add_argument(
        "--timeout", dest="timeout_s", type=values.positive, default=1800.0, metavar="SECONDS",
        help="time limit for all runs of the job together (default: 1800)",
    )  # fmt: skip


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options of verbs with a single estimate: files to write, and what-if questions."""
    answers = group(parser, ANSWER)
    answers.add_argument("--snapshot", metavar="FILE", help="write the allocator's history, for pytorch.org/memory_viz")
    add_plot(parser)
    answers.add_argument(
        "--report",
        metavar="FILE",
        type=drawn_path(PAGES),
        help="write a one-page report: the answer, the timeline, what holds the memory, the assumptions (.html)",
    )
    parser.set_defaults(asked=())  # the words of the command line, which the report repeats (main.py)
    what_if_options.add_arguments(parser)


def add_details(parser: argparse.ArgumentParser) -> None:
    """Add --details."""
    group(parser, ANSWER).add_argument(
        "--details", action="store_true", help="all lines of the answer: margins, phases, ranks, warnings"
    )


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add --plot."""
    group(parser, ANSWER).add_argument(
        "--plot",
        metavar="FILE",
        type=lambda text: text if text == "-" else drawn_path(DRAWINGS)(text),
        help=f"write a timeline with the card's limit, in the format of the file extension: {', '.join(DRAWINGS)} "
        "(.json: for Perfetto); '-' prints the text view on stdout (on stderr with --json)",
    )


def drawn_path(endings: Collection[str]) -> Callable[[str], object]:
    """Return a reader for the path of a drawing, which rejects other endings before the job is traced."""
    return values.checked(partial(charts.checked_path, endings=endings))


def add_job(parser: argparse.ArgumentParser, *, is_optional: bool = False, without: Collection[str] = ()) -> None:
    """Add the description of a job by TARGET; `is_optional` if a command may replace it; fields `without` an option."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?" if is_optional else None,
        help="torchvision:NAME, timm:NAME, hf:ORG/NAME of the Hugging Face hub, hf:MODEL_TYPE, hf:CONFIG.json, "
        "diffusers:ORG/NAME, package.module:factory or file.py:factory",
    )
    add_fields(
        parser,
        *SIZES,
        "batch",
        "labels",
        "num_classes",
        "lora",
        "qlora",
        *(option.name for option in fields(Training) if option.name not in without),
    )


def add_fields(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add an option for each of these fields of `JobText` and `Training`, with the field's default, type, choices and group."""
    for name in names:
        option, hint = _FIELDS[name]
        kinds = {hint, *get_args(hint)}
        settings: dict[str, Any] = {"default": option.default, **option.metadata}
        if get_origin(hint) is tuple:
            settings |= {"default": None, "action": "append"}
        if name in _READ:
            settings["type"] = _READ[name]
        elif literal := [kind for kind in kinds if get_origin(kind) is Literal]:
            settings |= {"choices": get_args(literal[0]), "type": values.checked(partial(canonical, name))}
        elif bool in kinds:
            settings["action"] = argparse.BooleanOptionalAction if option.default else "store_true"
        elif str not in kinds:
            settings["type"] = values.checked(partial(_number, name, int if int in kinds else float))
        title = settings.pop("group", JOB)
        group(parser, title).add_argument(f"--{name.replace('_', '-')}", **settings)


def _number(name: str, kind: type[int] | type[float], text: str) -> object:
    """Return the number of a field of `JobText`, `Training` or `Sizes`, checked by its class if it is not `JobText`."""
    value: Any = values.as_number(kind, text)
    for owner in (Training, Sizes):
        if name in {one.name for one in fields(owner)}:
            return getattr(owner(**{name: value}), name)
    return whole("it", value) if kind is int else number("it", value)


def add_course(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how far a training command is followed."""
    add_fields(parser, "until", "budget_s", "precise_values")
    group(parser, ADVANCED).add_argument(
        "--bracket",
        action=argparse.BooleanOptionalAction,
        help="also run the job on an infinitely slow card, if the card's speed may change its peaks (default: only "
        "if the job has several ranks and its first run took less than a minute)",
    )


def text_of(values: Mapping[str, Any]) -> JobText:
    """Return the job that flat values give, as `JobText.of`; a model of the Hugging Face hub is looked up.

    Raises:
        UsageError: a value is wrong, or there is no such model.
    """
    target = values.get("target")
    return JobText.of(values if target is None else {**values, "target": resolved(target)})


def job_of(options: argparse.Namespace) -> Job:
    """Return the job that the options describe."""
    return text_of(vars(options)).asked().job(device(options.device) if options.device is not None else None)


def exit_code(estimate: Estimate) -> int:
    """Return the verdict's exit code if a card was named, otherwise 0; 4 for a command that its user stopped."""
    from vramcast.estimates.verdict import EXIT_CODES

    if estimate.has_card:
        return estimate.verdict.exit_code
    return EXIT_CODES["uncertain"] if estimate.course.is_interrupted else 0


def require_card(values: Mapping[str, Any]) -> None:
    """Check that flat values name a card or its size.

    Raises:
        UsageError: They name neither.
    """
    if values.get("device") is None and values.get("memory") is None:
        raise UsageError("No card is given: name one with --on (vramcast devices lists them), or give --memory.")


def estimator_of(values: Mapping[str, Any]) -> Estimator:
    """Return the estimator for flat values: the fields of `Estimator` are read, and None is a field's default."""
    from vramcast.estimates.estimator import Estimator

    names = [field.name for field in fields(Estimator)]
    return Estimator(**{name: values[name] for name in names if values.get(name) is not None})


def finish(
    options: argparse.Namespace,
    estimate: Estimate,
    questions: what_if_options.Questions,
    extra: dict[str, Any] | None = None,
    advice: Advice | None = None,
) -> None:
    """Print the estimate, write the files asked for, and answer the questions; `advice` is for the report."""
    more, text = write_files(options, estimate, questions, advice)
    if options.json:
        answer(json.dumps({**estimate.to_dict(), "answer": str(estimate).splitlines(), **(extra or {}), **more}))
    else:
        _say_answer(estimate, has_details=options.details)
        answer(text, end="")


def finish_advised(options: argparse.Namespace, estimate: Estimate, questions: what_if_options.Questions) -> None:
    """Finish, with variants of the job if --advise asks for them."""
    if not options.advise:
        finish(options, estimate, questions)
        return
    from vramcast.estimates.advice import advise  # it imports the planners, which a plain estimate does not need

    with progress("tracing its variants"):
        advice = advise(estimate)
    finish(options, estimate, questions, {"advice": advice.to_dicts()}, advice)
    if not options.json:
        answer(f"\n{advice}")


def _say_answer(estimate: Estimate, *, has_details: bool) -> None:
    from vramcast import report

    width = width_of(sys.stdout)
    answer(report.text(estimate, width, paint=partial(painted, stream=sys.stdout), signs=report.signs_of(sys.stdout.encoding)))
    if has_details:
        answer("")
        for line in report.details(estimate, width).splitlines():
            answer(painted(line, "yellow", sys.stdout) if line.startswith("warning:") else line)


def write_files(
    options: argparse.Namespace, estimate: Estimate, questions: what_if_options.Questions, advice: Advice | None = None
) -> tuple[dict[str, Any], str]:
    """Write the snapshot, the view and the report if they are asked for; return the questions' answers as JSON and as text."""
    from vramcast import report

    if options.snapshot:
        estimate.save_snapshot(Path(options.snapshot))
    if options.plot and options.plot != "-":
        estimate.plot(options.plot)
    if options.report:
        report.save(estimate, options.report, advice=advice, command=shlex.join(options.asked))
    more, text = questions.answers(estimate.trace)
    if options.plot == "-" and options.json:
        say(estimate.plot_text(), end="")
    elif options.plot == "-":
        text += estimate.plot_text()
    return more, text
