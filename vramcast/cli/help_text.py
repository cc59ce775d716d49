"""The layout of --help: groups of options, and the list of verbs."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, Final

JOB: Final = "the job"
CARD: Final = "the card"
ANSWER: Final = "the answer"
ADVANCED: Final = "advanced"
_GROUPS: Final = (JOB, CARD, ANSWER, ADVANCED)  # in the order of the help
_EXAMPLE: Final = re.compile(r"^ *vramcast ", re.MULTILINE)
_WIDTH: Final = 100  # arbitrary: longer lines are hard to read


def width() -> int:
    """Return the width of the help in characters: the terminal's, up to a limit."""
    return min(shutil.get_terminal_size().columns, _WIDTH)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """A formatter for a limited width, with a usage line of one verb that leaves the options to their groups."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap the paragraphs of a description; indent the examples of commands."""

        def laid_out(part: str) -> str:
            is_example = _EXAMPLE.search(part) is not None
            return textwrap.indent(textwrap.dedent(part), "  ") if is_example else textwrap.fill(part, width)

        return "\n\n".join(map(laid_out, inspect.cleandoc(text).split("\n\n")))

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """Return the words after an option; those of a command by their name, not as `...`."""
        if action.nargs == argparse.REMAINDER:
            return str(action.metavar)
        return super()._format_args(action, default_metavar)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Add the usage: the arguments, and the options that must be given."""
        self._prog += " [options]"
        super().add_usage(usage, [one for one in actions if one.required or not one.option_strings], [], prefix)


def group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return a verb's group of options, one of those above."""
    known = {one.title: one for one in parser._action_groups}
    if title not in known:
        known |= {one: parser.add_argument_group(one) for one in _GROUPS}
    return known[title]


def group_or_options(parser: argparse.ArgumentParser, title: str) -> argparse._ActionsContainer:
    """Return this group of a verb with groups, and the parser itself of another verb."""
    return group(parser, title) if any(one.title == title for one in parser._action_groups) else parser


def overview(program: str, groups: Mapping[str, Mapping[str, str]]) -> str:
    """Return the help of the program itself: examples, then the verbs in groups with the help of each."""
    longest = max(len(verb) for verbs in groups.values() for verb in verbs) + 4
    lines = [
        "How much GPU memory does a PyTorch job need?",
        "",
        f"  {program} estimate hf:meta-llama/Llama-3.1-8B --lora r=16",
        f"  {program} check torchvision:vgg16 --batch-size 64 --on t4",
        f"  {program} run --on rtx3090 -- train.py --epochs 10",
    ]
    for title, verbs in groups.items():
        lines += ["", f"{title}:"]
        for verb, words in verbs.items():
            lines += textwrap.wrap(words, width(), initial_indent=f"  {verb}".ljust(longest), subsequent_indent=" " * longest)
    end = f"{program} VERB --help prints the options of a verb, and {program} --version the version."
    return "\n".join([*lines, "", *textwrap.wrap(end, width()), ""])
