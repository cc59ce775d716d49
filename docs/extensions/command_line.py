"""A directive which writes the command line's reference from the program's own parser.

Help texts are shown as plain text, so that no character in one can break the page.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from vramcast.cli.main import parser

_HIDDEN = {"-h", "--help"}  # every verb has it


class CommandLine(SphinxDirective):
    """`{command-line}`: a section for each verb, with its description and its options."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        verbs = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
        return [_section(name, verb) for name, verb in verbs.choices.items()]


def _section(name: str, verb: argparse.ArgumentParser) -> nodes.section:
    """Return the section of a verb; its anchor is the verb's name."""
    section = nodes.section(ids=[name], names=[name])
    section += nodes.title(text=name)
    usage = verb.format_usage().removeprefix("usage: ").strip()
    section += _literal(re.sub(r"\n\s+", "\n    ", usage), "text")
    section += list(_prose((verb.description or "") + "\n\n" + (verb.epilog or "")))
    options = nodes.definition_list()
    for action in verb._actions:
        if action.help is not argparse.SUPPRESS and not _HIDDEN & set(action.option_strings):
            options += _option(name, verb, action)
    section += options
    return section


def _prose(text: str) -> Iterator[nodes.Node]:
    """Yield paragraphs; one with a command or a table in it keeps its lines."""
    for paragraph in filter(None, re.split(r"\n\s*\n", text.strip("\n"))):
        is_flowing = not any(line.startswith((" ", "vramcast ", "$ ")) for line in paragraph.splitlines())
        yield nodes.paragraph(text=" ".join(paragraph.split())) if is_flowing else _literal(paragraph, "text")


def _literal(text: str, language: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language=language)


def _option(verb_name: str, verb: argparse.ArgumentParser, action: argparse.Action) -> nodes.definition_list_item:
    """Return an option with its value's name, its choices and its help; its anchor is `VERB-OPTION`."""
    value = verb._get_formatter()._format_args(action, action.metavar or action.dest.upper()) if action.nargs != 0 else ""
    if action.choices is not None:
        value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    names = " ".join([", ".join(action.option_strings), value]).strip()
    anchor = f"{verb_name}-{(action.option_strings or [action.dest])[-1].lstrip('-').lower()}"
    term = nodes.term("", "", nodes.literal(names, names), ids=[anchor])
    words = verb._get_formatter()._expand_help(action) if action.help else ""
    default = action.default
    if not words and default not in (None, False, argparse.SUPPRESS):
        words = f"default: {default}"
    return nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph(text=words or "-")))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
