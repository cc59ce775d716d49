"""Fixtures for the tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

import vramcast
from vramcast.cli.main import main

SCHEMAS = Path(vramcast.__file__).parent / "schema"
OF_VERB = {
    "estimate": "estimate",
    "run": "estimate",
    "sweep": "sweep",
    "largest": "largest",
    "explain": "explain",
    "plan": "plan",
    "replay": "replay",
    "evaluate": "evaluate",
    "adopt": "adopt",
    "learn": "adopt",
}


def closed(schema: Any) -> Any:
    """Return a schema that forbids fields it does not describe; the published one allows them, for later releases."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items()}
    is_object = isinstance(parts.get("properties"), dict) and "type" in parts
    return {"additionalProperties": False, **parts} if is_object else parts


def validator(name: str) -> Draft202012Validator:
    """Return a validator of a text by a schema without undescribed fields."""
    schemas = {path.name: closed(json.loads(path.read_text(encoding="utf-8"))) for path in SCHEMAS.glob("*.json")}
    if name == "sweep":  # its rows have the size too
        schemas["estimate.schema.json"]["properties"] |= {"batch": {"type": "integer"}, "world_size": {"type": "integer"}}
        schemas["sweep.schema.json"]["properties"]["rows"]["items"]["anyOf"][1].pop("additionalProperties")
    found = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in schemas.values())
    return Draft202012Validator(schemas[f"{name}.schema.json"], registry=found)


@pytest.fixture(scope="session")
def require_schema() -> Callable[[str, str], None]:
    """Return a function that fails unless a JSON text follows the published schema of this name exactly."""
    known: dict[str, Draft202012Validator] = {}

    def require(name: str, text: str) -> None:
        if name not in known:
            known[name] = validator(name)
        wrong = [f"{error.json_path}: {error.message}" for error in known[name].iter_errors(json.loads(text))]
        assert not wrong, f"{name}.schema.json: {wrong}"

    return require


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], require_schema: Callable[[str, str], None]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command here and returns exit code, stdout, stderr; JSON must follow its schema."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse's own exit
            code = int(end.code or 0)
        said = capsys.readouterr()
        if "--json" in arguments and said.out.startswith("{") and (name := _schema_of(arguments[0], json.loads(said.out))):
            require_schema(name, said.out)
        return code, said.out, said.err

    return run


def _schema_of(verb: str, said: dict[str, Any]) -> str | None:
    """Return the schema for an answer of a verb; None: none is published."""
    if "error" in said and "message" in said:
        return "error"
    if verb == "check":
        return "jobs" if "jobs" in said else "estimate"
    return OF_VERB.get(verb)
