"""Serve the verbs as tools for coding agents: the Model Context Protocol on standard input and output.

vramcast mcp
vramcast mcp --allow-run

An agent's program starts it in the folder of the project. Files outside of that folder are refused, and without --allow-run
so are commands.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

from vramcast._version import __version__
from vramcast.cli.mcp.tools import command_line, schemas
from vramcast.core.errors import UsageError, VramcastError
from vramcast.core.extras import needed
from vramcast.core.text import shorten

_VERDICTS: Final = (0, 1, 4)  # spec: the exit codes of an answer
_MOST: Final = 2_000  # arbitrary: characters of an error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument("--allow-run", action="store_true", help="let agents run commands, and code of any module")


def main(options: argparse.Namespace) -> int:
    """Run the verb until standard input ends; return 0."""
    with needed("vramcast mcp", "mcp"):
        import mcp  # noqa: F401
    asyncio.run(_serve(Path.cwd().resolve(), is_run_allowed=options.allow_run))
    return 0


async def _serve(folder: Path, *, is_run_allowed: bool) -> None:
    from jsonschema import ValidationError, validate
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    known = schemas()
    tools = [types.Tool(name=name, description=words, input_schema=schema) for name, (words, schema) in known.items()]

    async def list_tools(context: Any, asked: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        answer, given = None, asked.arguments or {}
        try:
            if asked.name not in known:
                raise UsageError(f"There is no tool '{shorten(asked.name)}': use one of {', '.join(known)}.")
            validate(given, known[asked.name][1])
            text, answer = await _answer(command_line(asked.name, given, folder, is_run_allowed=is_run_allowed))
        except (ValidationError, VramcastError, ValueError) as error:  # the last: a text that is no word of a command line
            text = shorten(str(getattr(error, "message", error)), _MOST)
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(content=content, structured_content=answer, is_error=answer is None)

    server = Server("vramcast", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _answer(words: list[str]) -> tuple[str, dict[str, Any] | None]:
    """Return the answer of a command line as text and as JSON; without an answer, the reason and None."""
    # -P: a file of the working folder does not take the place of one of Python's modules.
    command, pipe = (sys.executable, "-P", "-m", "vramcast", *words), asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        said, messages = await child.communicate()
    finally:
        if child.returncode is None:  # the call was given up
            child.terminate()
    found = json.loads(said) if said else {}
    if child.returncode not in _VERDICTS or not said:
        reason = messages.decode(errors="replace").strip() or f"vramcast {words[0]} ended with exit code {child.returncode}."
        return found.get("message", reason), None
    return "\n".join(found.get("answer", ())) or said.decode().strip(), found
