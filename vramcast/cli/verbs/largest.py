"""Find the longest prompt that fits on a card, for a command that generates text with transformers.

    vramcast largest --axis seq --on rtx4090 -- python generate.py
    vramcast largest --memory 20GiB --json -- python chat.py --max-new-tokens 512

Each prompt that the command passes to `generate` gets another length, and the command is traced with it. The answer is exact
to 1 %. The largest batch of a model: vramcast sweep TARGET --max-batch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vramcast.cli import options as shared
from vramcast.cli.checked_job import COMMAND_HELP, RUN_COMMANDS, estimate_of
from vramcast.cli.help_text import JOB, group
from vramcast.cli.streams import answer
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.core.progress import one_output, part
from vramcast.core.units import gib
from vramcast.estimates.sweep import MOST, largest, search
from vramcast.tracer.format.prompt import Prompt, prompt_of
from vramcast.tracer.protocol.run_options import RunOptions

if TYPE_CHECKING:
    from vramcast.estimates.result import Estimate
    from vramcast.jobs.job import Command

_PARTS: Final = 100  # arbitrary: each further digit takes three or four traces more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options; `command` holds the words after `--` (main.py)."""
    group(parser, JOB).add_argument("--axis", choices=("seq",), default="seq", help="what to enlarge: seq, the prompt")
    shared.add_course(parser)
    shared.add_fields(parser, *shared.RANKS)
    shared.add_output(parser, RUN_COMMANDS)
    parser.set_defaults(command=None)
    parser.epilog = f"After all options: -- COMMAND: {COMMAND_HELP}"


@one_output()
def main(options: argparse.Namespace) -> int:
    """Run the verb; if no prompt fits, return the exit code of the shortest one's verdict."""
    if not options.command:
        raise UsageError("No command is given: write it after --, as in vramcast largest --on t4 -- python generate.py.")
    shared.require_card(vars(options))
    estimator, text = shared.estimator_of(vars(options)), shared.text_of(vars(options))
    _require_generation(text.job(estimator.named_card).command)
    own = estimate_of(estimator, text)
    prompt = _prompt(own)
    traced: dict[int, Estimate | CannotEstimate] = {}

    def note(tokens: int, one: Estimate | CannotEstimate) -> None:
        traced[tokens] = one
        if not options.json:
            answer(_row(tokens, one))

    def estimate(tokens: int, _next: int) -> Estimate | CannotEstimate:
        if tokens not in traced:
            with part(f"prompt {tokens}", len(traced) + 1):
                try:
                    note(tokens, estimate_of(estimator, text, own.job, RunOptions(prompt_tokens=tokens)))
                except CannotEstimate as error:
                    note(tokens, error)
        return traced[tokens]

    if not options.json:
        answer(f"{'prompt':>9} {'process':>12} {'bound':>12}   {own.job.device.name}")
    note(prompt.tokens, own)
    most = MOST if prompt.most is None else prompt.most
    value = largest(estimate, search(min(prompt.tokens, most), most, _PARTS))
    larger = min((tokens for tokens in traced if tokens > value), default=None)
    limit = prompt.limit if value == most else ""
    if options.json:
        rows = [{"value": tokens, **_as_json(one)} for tokens, one in sorted(traced.items(), key=lambda row: row[0])]
        said = {"schema": 1, "axis": options.axis, "device": own.job.device.key, "value": value, "next": larger}
        answer(json.dumps({**said, "limit": limit or None, "traced": rows}))
    else:
        end = f"limited by {limit}" if limit else f"{larger:,} do not" if larger else "none larger was tried"
        answer(f"longest prompt that fits on {own.job.device.name}: {value:,} tokens; {end}")
    shortest = traced[min(traced)]
    return 0 if value else shortest.exit_code if isinstance(shortest, CannotEstimate) else shortest.verdict.exit_code


def _require_generation(command: Command | None) -> None:
    """Raise if a script trains, and neither it nor a file beside it generates text.

    Raises:
        UsageError: It has no prompt.
    """
    script = Path(command.program if command is not None else "")
    if script.suffix != ".py" or not script.is_file() or "backward(" not in (own := script.read_text(errors="replace")):
        return
    if not any(
        "generate" in one or "pipeline" in one
        for one in (own, *(file.read_text(errors="replace") for file in script.parent.glob("*.py")))
    ):
        raise UsageError(
            f"'{script}' trains and generates no text, so it has no prompt to enlarge: run it with other batch sizes "
            "(vramcast check --on CARD -- ...), or give its model (vramcast sweep TARGET --max-batch)."
        )


def _prompt(estimate: Estimate) -> Prompt:
    """Return the command's longest prompt.

    Raises:
        CannotEstimate: It passes none to `generate`, or no prompt is short enough for the model.
    """
    prompt = prompt_of(estimate.trace)
    if prompt is None:
        raise CannotEstimate(
            "The command passes no prompt of tokens to `generate` of transformers, so there is none to enlarge: give a script "
            "that calls model.generate(input_ids, ...) or a text-generation pipeline. An engine's longest context is part of "
            "its answer (vramcast run)."
        )
    if prompt.most is not None and prompt.most < 1:
        raise CannotEstimate(f"No prompt is possible: {prompt.limit}. Ask for fewer new tokens.")
    return prompt


def _as_json(one: Estimate | CannotEstimate) -> dict[str, Any]:
    if isinstance(one, CannotEstimate):
        return {"error": type(one).__name__, "message": str(one)}
    return {"verdict": one.verdict.value, "process_bytes": one.process, "upper_bound_bytes": one.upper_bound}


def _row(tokens: int, one: Estimate | CannotEstimate) -> str:
    if isinstance(one, CannotEstimate):
        return f"{tokens:>9,} {(str(one).splitlines() or [type(one).__name__])[0]}"
    return f"{tokens:>9,} {gib(one.process):>12} {gib(one.upper_bound):>12}   {one.verdict.value}"
