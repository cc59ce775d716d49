"""Tests of the documents' code blocks: each runs or gives a reason; the options of the others exist."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml

import vramcast
from vramcast.cli.main import VERBS, main, parser
from vramcast.jobs.caller_variables import decision

ROOT = Path(__file__).parents[2]
DATA = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
# `make docs-outputs`: real outputs replace those in the pages.
WRITES = bool(os.environ.get("VRAMCAST_WRITE_OUTPUTS"))
# The numbers in the pages are from this torch; with another one, commands run without a comparison.
TORCH = re.search(r'"torch==([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]  # type: ignore[index]
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# README.md and CONTRIBUTING.md begin with commands that set up a checkout: CI runs those.
SETUP = re.compile(r"(make|pip install) ")


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words of each vramcast command, regardless of the text around it on the line."""
    for line in text.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|[\s;&|(])(?:python -m )?vramcast ((?:[a-z-]+) .*|[a-z-]+)$", line)
        if found is None or line.lstrip().startswith("#"):
            continue
        with contextlib.suppress(ValueError):  # a quote that ends on another line
            words = shlex.split(found[1], comments=True)
            ends = [at for at, word in enumerate(words) if word in ("|", ">", ">>", "&&", ";", "--", "2>&1")]
            yield words[: min(ends, default=len(words))]


# ------------------------------------------------------------------------------------------------ read
def test_every_block_runs_or_gives_reason(page: str, blocks: dict[str, Any]) -> None:
    known = {"console", "python", *DATA, "text"}
    wrong = [b.place for b in blocks[page] if not b.reason and b.kind not in known and not SETUP.match(b.text)]
    assert wrong == [], "write ```sh not run: REASON, or a kind that is run: " + ", ".join(sorted(known))


def test_commands_have_known_options_and_programs(page: str, blocks: dict[str, Any]) -> None:
    wrong = []
    for block in blocks[page]:
        if block.kind not in ("sh", "console", ""):
            continue
        text = "\n".join(command for command, _ in commands_of(block.text)) if block.kind == "console" else block.text
        for verb, *words in commands_in(text):
            options = parser([verb]).options
            given = [word.partition("=")[0].strip("[]") for word in words if re.match(r"\[?--[a-z]", word)]
            wrong += [f"{block.place}: vramcast {verb} {word}" for word in given if word not in options]
            wrong += [f"{block.place}: vramcast {verb}"] if verb not in VERBS else []
        for module in re.findall(r"python -m (benchmarks[\w.]*)", block.text):
            path = ROOT / module.replace(".", "/")
            wrong += (
                [] if path.with_suffix(".py").is_file() or (path / "__main__.py").is_file() else [f"{block.place}: {module}"]
            )
    assert wrong == []


def test_data_blocks_are_valid(page: str, blocks: dict[str, Any]) -> None:
    for block in blocks[page]:
        if block.kind in DATA and not block.reason:
            DATA[block.kind](block.text)


# ------------------------------------------------------------------------------------------------ run
@pytest.fixture(scope="module")
def names_known(tracer: Any) -> dict[str, Any]:
    """Return the names that Python blocks may use without imports."""
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))
    batch = (torch.zeros(64, 1024), torch.zeros(64, dtype=torch.long))
    est = vramcast.estimate(model, batch, device="a100-40gb")
    return {"__name__": "page", "vramcast": vramcast, "model": model, "batch": batch, "est": est, "trace": est.trace}


@pytest.mark.integration
@patch.dict(os.environ)
def test_block_outputs_equal_page(
    live_page: str, blocks: dict[str, Any], names_known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the blocks of a page in one folder, from top to bottom; Python blocks share their names."""
    for name in filter(decision, [*os.environ]):  # Lightning sets some for the rest of the process
        os.environ.pop(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names_known["trace"].save("job.trace")
    monkeypatch.delitem(sys.modules, "model", raising=False)  # another page's
    names = dict(names_known)
    for block in filter(lambda block: block.is_run, blocks[live_page]):
        if block.file:
            Path(block.file).write_text(block.text)
        elif block.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), names)
        else:
            found = "".join(f"$ {command}\n{cut(shown, output_of(command))}" for command, shown in commands_of(block.text))
            if WRITES:
                block.page.write_text(block.page.read_text(encoding="utf-8").replace(block.text, found, 1), encoding="utf-8")
            elif torch.__version__.partition("+")[0] == TORCH:
                assert doctest.OutputChecker().check_output(block.text, found, SAME), f"{block.place}: it prints\n{found}"


def commands_of(text: str) -> list[tuple[str, str]]:
    """Return each command of a console's text with its output; a backslash continues a command in the next line."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)\n?((?:(?!\$ ).*\n?)*)", text, re.MULTILINE)


def cut(shown: str, found: str) -> str:
    """Return an output cut like the page's: a line `...` replaces the lines between its first and its last ones."""
    lines, all_lines = shown.splitlines(), found.splitlines()
    if "..." not in lines:
        return found
    head = lines.index("...")
    tail = len(lines) - head - 1
    return "\n".join([*all_lines[:head], "...", *all_lines[len(all_lines) - tail :]]) + "\n"


def output_of(command: str) -> str:
    """Return a command's output, and its exit code if it is not 0; commands of vramcast run in this process."""
    words = shlex.split(command, comments=True)
    if words[0] == "vramcast":
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            code = main(words[1:])
        output = shown.getvalue()
    else:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        code, output = done.returncode, done.stdout + done.stderr
    assert words[0] != "vramcast" or code in (0, 1, 4), f"{command}: {output}"  # 2 and 3 are not answers
    return output + (f"(exit code {code})\n" if code else "")


def test_reads_commands_with_options() -> None:
    text = (
        "$ vramcast check a --on t4 -- train.py --x\npython -m vramcast doctor\n# vramcast nothing\nx | vramcast run --json > a"
    )
    assert list(commands_in(text)) == [["check", "a", "--on", "t4"], ["doctor"], ["run", "--json"]]
    assert commands_of("$ one \\\n  two\nout\nput\n$ three") == [("one \\\n  two", "out\nput\n"), ("three", "")]


def test_cuts_output_like_page() -> None:
    assert cut("old\n...\n", "1\n2\n3\n") == "1\n...\n"
    assert cut("...\nold\n", "1\n2\n3\n") == "...\n3\n"
    assert cut("whole\n", "1\n2\n3\n") == "1\n2\n3\n"
