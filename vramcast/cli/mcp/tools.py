"""The tools of `vramcast mcp`: each is a verb, with the verb's own options as its input and its command line as its call.

What an agent asks for is not what the user typed. So a file outside the working folder is refused, and so is all that runs
a command, or code that is not a file of that folder, unless the user allows it.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_origin

from vramcast.cli.main import BEFORE_COMMAND, VERBS, Parser
from vramcast.cli.options import HINTS
from vramcast.core.errors import UsageError
from vramcast.core.text import shorten
from vramcast.jobs import optimizers
from vramcast.jobs.targets import TRUST, refusal

_ALLOW: Final = "start the server with --allow-run (vramcast mcp --allow-run)"
_CODE: Final = f"it is code: {_ALLOW}"
_ADVICE: Final = "Trace variants of a job, such as half the batch or checkpointing, to find what makes it fit a card."
_WITH_COMMAND: Final = ("run", "advise", *BEFORE_COMMAND)
_NAMES: Final = ("estimate", "check", "run", "largest", "advise", "explain", "devices")
# The options that an agent needs; most others are for people who look at pictures.
_OPTIONS: Final = """on memory batch_size seq image_size batch labels optimizer precision mode checkpointing lora qlora parallel
    world_size steps alloc_conf stack axis"""
_COMMAND: Final = "words of the command that starts the job, in place of TARGET: python, train.py, --epochs, 3"


def schemas() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the description of each tool, and the JSON schema of its input."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for tool in (one for one in _NAMES if one in VERBS or one == "advise"):
        properties = {name: _property(action) for name, action in _inputs(tool).items()}
        if tool in _WITH_COMMAND:
            properties["command"] = {"type": "array", "items": {"type": "string"}, "description": _COMMAND}
        found[tool] = VERBS.get(tool, _ADVICE), {"type": "object", "properties": properties, "additionalProperties": False}
    return found


def command_line(tool: str, given: Mapping[str, Any], folder: Path, *, is_run_allowed: bool) -> list[str]:
    """Return the words of the command line that answers a call.

    Raises:
        UsageError: The input names a file outside of the folder, or what may not run here, or no job.
    """
    command = given.get("command")
    if command is not None and not is_run_allowed:
        raise UsageError(f"Commands do not run here: {_ALLOW}.")
    verb = tool if tool != "advise" else "run" if command else "estimate"
    options, places = ["--advise"] if tool == "advise" else [], []
    for name, action in _inputs(tool).items():
        values = given.get(name, [])
        for value in values if isinstance(values, list) else [values]:
            text, option = str(value), action.option_strings[:1]
            _require_inside(name, text, folder)
            reason = "it looks like an option" if not option and text.startswith("-") else ""
            if reason := reason or ("" if is_run_allowed else _code(name, text)):
                raise UsageError(f"{name} '{shorten(text)}' is refused: {reason.replace(TRUST, _ALLOW)}.")
            if action.nargs == 0:
                options += option * value
            elif option:
                options.append(f"{option[0]}={text}")  # one word: a value that begins with - stays a value
            else:
                places.append(text)
    if tool in _WITH_COMMAND and not places and not command:
        raise UsageError("No job is given: give a target or a command.")
    return [verb, "--json", "-q", *options, *places, *(["--", *command] if command else [])]


def _inputs(tool: str) -> dict[str, argparse.Action]:
    """Return the arguments of a tool's verb by name: the positional ones, and the options that an agent needs."""
    known = Parser(add_help=False)
    importlib.import_module(f"vramcast.cli.verbs.{'estimate' if tool == 'advise' else tool}").add_arguments(known)
    named = {(one.option_strings or [one.dest])[0].lstrip("-").replace("-", "_"): one for one in known.arguments}
    known_names = {*_OPTIONS.split(), *(one.dest for one in known.arguments if not one.option_strings)} - {"command"}
    return {name: one for name, one in named.items() if name in known_names}


def _property(action: argparse.Action) -> dict[str, Any]:
    one: dict[str, Any] = {"type": "boolean"} if action.nargs == 0 else {"type": ["string", "integer"]}
    one = {"enum": list(action.choices)} if action.choices else one
    one = {"type": "array", "items": one} if get_origin(HINTS.get(action.dest)) is tuple else one
    return {**one, "description": (action.help or "").replace("%%", "%")}


def _require_inside(name: str, text: str, folder: Path) -> None:
    """Raise if a value, or a part of it, is a path that leads out of the folder: any value may be a file's name."""
    scheme, _, place = text.partition(":")
    for part in (text, scheme, place.partition("?")[0], *re.split(r"[\s:=,?]+", text.partition("?{")[0])):
        if "\0" in part or not (folder / part).resolve().is_relative_to(folder):
            place = f"{shorten(part)} is outside of the working folder, {folder}"
            raise UsageError(
                f"{name} '{shorten(text)}' is refused: {place}. Copy the file into it, or start vramcast mcp there."
            )


def _code(name: str, text: str) -> str:
    """Return why a value would run code, or make a library open a file; "" if it does not. A file's own code may run."""
    scheme, colon, place = text.partition(":")
    if name == "optimizer":
        is_code = ":" in optimizers.parse(text)[0] and scheme.lower() not in optimizers.SHORT_NAMES
        return _CODE if is_code else ""
    if name != "target" or not colon:
        return ""
    arguments = place.partition("?")[2]
    if scheme.endswith(".py"):  # with arguments, any function that the file imports could be called
        return _CODE if arguments else ""
    return refusal(f"{scheme}:any?{arguments}" if scheme in ("hf", "diffusers") else text)  # an id, or a file of this folder
