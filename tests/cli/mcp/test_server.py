"""Tests of `vramcast mcp` with the client of the protocol's own SDK, over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli.main import main

Call = tuple[str, dict[str, Any]]
NET = "import torch\ndef mlp(): return torch.nn.Linear(16, 4)\n"
SCRIPT = (
    NET
    + """
model = mlp().cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    model(torch.rand(8, 16, device="cuda")).sum().backward()
    optimizer.step()
"""
)


@pytest.fixture
def ask(need: Callable[[str], Any], tmp_path: Path) -> Callable[..., list[Any]]:
    """Return a function that asks a server with these words: for its tools, and then for the answers to calls."""
    mcp = need("mcp")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the folder took the place of one of Python')")

    async def answers(words: tuple[str, ...], calls: list[Call]) -> list[Any]:
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]))
        command = {"command": sys.executable, "args": ["-P", "-m", "vramcast", "mcp", *words]}
        server = mcp.StdioServerParameters(**command, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path)
        async with mcp.stdio_client(server) as streams, mcp.ClientSession(*streams) as session:
            await session.initialize()
            tools = await session.list_tools()
            return [tools.tools, *[await session.call_tool(name, given) for name, given in calls]]

    return lambda *calls, words=(): asyncio.run(asyncio.wait_for(answers(words, list(calls)), 120))


@pytest.mark.release
def test_answers_are_text_and_json(tracer: object, ask: Callable[..., list[Any]]) -> None:
    estimate, run, missing = ask(
        ("estimate", {"target": "net.py:mlp", "batch": ["8x16"], "on": "t4"}),
        ("run", {"command": ["python", "train.py"], "on": "t4"}),
        ("check", {"command": ["no.py"], "on": "t4"}),
        words=("--allow-run",),
    )[1:]
    for one, target in ((estimate, "net.py:mlp"), (run, "train.py")):
        assert not one.is_error, one.content
        found, lines = one.structured_content, one.content[0].text.splitlines()
        assert (found["verdict"]["value"], found["target"]) == ("fits", target)
        assert lines == found["answer"]
        assert len(lines) <= 7
        assert lines[0].startswith("fits: at most ")
    assert missing.is_error
    assert "no.py" in missing.content[0].text


@pytest.mark.integration
def test_server_lists_tools_and_says_why_it_refuses(ask: Callable[..., list[Any]], tmp_path: Path) -> None:
    wrong = [
        ("estimate", {"target": "/etc/net.py:mlp"}, f"is outside of the working folder, {tmp_path.resolve()}"),
        ("run", {"command": ["python", "train.py"]}, "Commands do not run here: start the server with --allow-run"),
        ("estimate", {"target": "net.py:mlp", "batch_sise": 8}, "'batch_sise' was unexpected"),
        ("estimate", {"target": "net.py:mlp", "on": ["t4", "t4"]}, "is not of type 'string', 'integer'"),
        ("estimate", {"target": "torchvision:resnet18", "on": "voodoo"}, "Card 'voodoo' is not known. vramcast devices"),
        ("sweep", {"target": "net.py:mlp"}, "There is no tool 'sweep': use one of estimate, check, run"),
    ]
    tools, devices, *found = ask(("devices", {"part": "t4"}), *[call for *call, _ in wrong])
    assert {"estimate", "check", "run", "largest", "advise", "devices"} <= {tool.name for tool in tools}
    assert [card["key"] for card in devices.structured_content["devices"]] == ["t4"]
    assert [(one.is_error, one.structured_content) for one in found] == [(True, None)] * len(wrong)
    for one, (*_, words) in zip(found, wrong, strict=True):
        assert words in one.content[0].text


def test_missing_sdk_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp"]) == 2
    assert "vramcast mcp needs mcp: pip install '.[mcp]'" in capsys.readouterr().err
