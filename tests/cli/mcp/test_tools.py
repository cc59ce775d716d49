"""Tests of a tool's call: it becomes a command line of the verb, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramcast.cli.main import VERBS, _split, parser
from vramcast.cli.mcp.tools import command_line, schemas
from vramcast.core.errors import UsageError

OUTSIDE = "is outside of the working folder"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working folder with files, and with links that lead out of it."""
    found = tmp_path / "project"
    (found / "models").mkdir(parents=True)
    for name in ("net.py", "config.json", "card.toml", "models/config.json"):
        (found / name).write_text("{}")
    (tmp_path / "secret.json").write_text("{}")
    (found / "link.json").symlink_to(tmp_path / "secret.json")
    (found / "link to it.json").symlink_to(tmp_path / "secret.json")
    (found / "up").symlink_to(tmp_path)
    return found.resolve()


def words(tool: str, folder: Path, *, allow: bool = False, **given: Any) -> list[str]:
    return command_line(tool, given, folder, is_run_allowed=allow)


def test_tools_are_the_verbs_that_exist_and_advise() -> None:
    texts = {tool: text for tool, (text, _) in schemas().items()}
    assert {"estimate", "check", "run", "largest", "advise", "devices"} <= set(texts) <= {*VERBS, "advise"}
    assert {tool: VERBS.get(tool, text) for tool, text in texts.items()} == texts


def test_inputs_have_the_form_and_the_words_of_the_verb() -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    found = {tool: schema for tool, (_, schema) in schemas().items()}
    for schema in found.values():
        validator.check_schema(schema)
        assert all(one["description"] for one in schema["properties"].values())
    of_check = found["check"]["properties"]
    assert (of_check["batch"]["type"], of_check["checkpointing"]["type"]) == ("array", "boolean")
    assert "bf16" in of_check["precision"]["enum"]
    assert {"target", "command", "on", "batch_size"} <= set(of_check)
    assert {"snapshot", "artifact", "stub", "verbose", "json"} & set(of_check) == set()
    assert "command" not in found["estimate"]["properties"]


def test_call_is_a_command_line_that_the_verb_takes(folder: Path) -> None:
    given = {"target": "net.py:mlp", "batch": ["8x16", "8:int64"], "batch_size": 4, "checkpointing": True, "on": "t4"}
    found = words("check", folder, **given)
    assert found[:3] == ["check", "--json", "-q"]
    assert set(found[3:-1]) == {"--batch=8x16", "--batch=8:int64", "--batch-size=4", "--checkpointing", "--on=t4"}
    read = parser(["check"]).parse_args(_split(found)[0])
    assert (read.target, read.batch, read.batch_size, read.device) == ("net.py:mlp", ["8x16", "8:int64"], 4, "t4")
    assert words("devices", folder) == ["devices", "--json", "-q"]
    assert "--checkpointing" not in words("check", folder, target="net.py:mlp", checkpointing=False)


def test_value_never_becomes_an_option(folder: Path) -> None:
    assert words("estimate", folder, target="gpt2", memory="--verbose")[-2:] == ["--memory=--verbose", "gpt2"]
    for target in ("--verbose", "-h", "--", "-"):
        with pytest.raises(UsageError, match="looks like an option"):
            words("estimate", folder, target=target)


def test_command_runs_only_if_that_is_allowed(folder: Path) -> None:
    command = ["python", "train.py", "--json", "--", "-x"]
    for tool in ("run", "check", "largest", "advise"):
        with pytest.raises(UsageError, match=r"do not run here: start the server with --allow-run"):
            words(tool, folder, command=command, on="t4")
        found = words(tool, folder, allow=True, command=command, on="t4")
        assert found[found.index("--") + 1 :] == command
        assert found[0] == ("run" if tool == "advise" else tool)
    assert words("advise", folder, target="gpt2") == ["estimate", "--json", "-q", "--advise", "gpt2"]


@pytest.mark.parametrize("tool", ["run", "check", "largest", "advise"])
def test_call_without_a_job_is_refused(tool: str, folder: Path) -> None:
    for given in ({}, {"command": []}):  # check would run the jobs of pyproject.toml, which may be commands
        with pytest.raises(UsageError, match="No job is given"):
            words(tool, folder, allow=True, **given)


@pytest.mark.parametrize("is_allowed", [False, True])
@pytest.mark.parametrize(
    "target",
    ["/etc/net.py:mlp", "../net.py:mlp", "models/../../net.py:mlp", "up/net.py:mlp", "hf:/etc/config.json", "hf:link.json",
     "hf:link to it.json", 'hf:link.json?{"dtype": "float32"}', "hf:../secret.json", "timm:local-dir:/etc", "up", "a\0:b"],
)  # fmt: skip
def test_file_outside_of_the_folder_is_refused(target: str, is_allowed: bool, folder: Path) -> None:
    with pytest.raises(UsageError, match=OUTSIDE):
        words("estimate", folder, allow=is_allowed, target=target)


@pytest.mark.parametrize("given", [{"on": "/etc/card.toml"}, {"on": "up/card.toml"}, {"labels": "x=/etc/passwd"}])
def test_every_value_may_be_the_name_of_a_file(given: dict[str, str], folder: Path) -> None:
    with pytest.raises(UsageError, match=OUTSIDE):
        words("estimate", folder, target="gpt2", **given)


@pytest.mark.parametrize(
    ("target", "on"),
    [("net.py:mlp", "card.toml"), ("./net.py:mlp", "NVIDIA A100-SXM4-80GB"), ("hf:config.json", "t4"), ("hf:./models", "t4"),
     ("hf:models/config.json", "t4"), ("models", "gpu:a100:2"), ("hf:meta-llama/Llama-3.1-8B", "t4"),
     ("hf:some/model-of-the-hub", "t4"), ('hf:gpt2?{"n_layer": 2}', "t4"), ('timm:resnet50?{"in_chans": 1}', "t4")],
)  # fmt: skip
def test_name_of_a_model_or_a_file_of_the_folder_passes(target: str, on: str, folder: Path) -> None:
    for optimizer in ("adamw:fused=true", "paged_adamw_8bit"):
        assert words("estimate", folder, target=target, on=on, optimizer=optimizer)[-1] == target


@pytest.mark.parametrize(
    ("target", "optimizer"),
    [("os:getcwd", "adam"), ('subprocess:getoutput?{"cmd": "id"}', "adam"),
     ('net.py:run?{"args": ["id"]}', "adam"),  # of a file that imports run from subprocess
     ("gpt2", "subprocess:Popen"), ("gpt2", "package.module:lion:lr=1")],
)  # fmt: skip
def test_code_of_a_module_runs_only_if_that_is_allowed(target: str, optimizer: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"is code: start the server with --allow-run"):
        words("estimate", folder, target=target, optimizer=optimizer)
    assert words("estimate", folder, allow=True, target=target, optimizer=optimizer)[-1] == target


@pytest.mark.parametrize(
    "target",
    ['timm:resnet50?{"checkpoint_path": "x.pth"}', 'hf:gpt2?{"name": "\\u002fetc\\u002fpasswd"}',
     'hf:some/model?{"pretrained_model_name_or_path": "x"}', "timm:hf-hub:user"],
)  # fmt: skip
def test_model_that_opens_a_file_is_refused(target: str, folder: Path) -> None:
    with pytest.raises(UsageError, match="start the server with --allow-run"):
        words("estimate", folder, target=target)
