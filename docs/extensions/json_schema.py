"""A directive which writes the fields of a published JSON Schema as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).parents[2] / "vramcast" / "schema"


class JsonSchema(SphinxDirective):
    """`{json-schema} NAME`: what `vramcast/schema/NAME.schema.json` describes, a row for each field."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the schema's description, and the table."""
        path = FOLDER / f"{self.arguments[0]}.schema.json"
        self.env.note_dependency(str(path))
        schema = json.loads(path.read_text(encoding="utf-8"))
        rows = [_row(cells) for cells in _fields(schema)]
        head = _row(([nodes.Text("field")], [nodes.Text("type")], [nodes.Text("holds")]))
        group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in (30, 15, 55)), cols=3)
        group += nodes.thead("", head)
        group += nodes.tbody("", *rows)
        return [nodes.paragraph("", "", *_words(schema["description"])), nodes.table("", group, classes=["fields"])]


def _row(cells: tuple[list[nodes.Node], ...]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def _words(text: str) -> list[nodes.Node]:
    """Return a text in which backticks mean code."""
    parts = text.split("`")
    return [nodes.literal(part, part) if at % 2 else nodes.Text(part) for at, part in enumerate(parts) if part]


def _fields(schema: dict[str, Any], place: str = "") -> Iterator[tuple[list[nodes.Node], ...]]:
    """Yield name, type and description of each field, those inside of another one behind it."""
    required = set(schema.get("required", ()))
    for name, part in schema.get("properties", {}).items():
        path = f"{place}{name}"
        words = part.get("description", "") + ("" if name in required else " (optional)")
        yield _words(f"`{path}`"), [nodes.Text(_type(part))], _words(words.strip())
        yield from _fields(part, f"{path}.")
        yield from _fields(part.get("items", {}), f"{path}[].")
        if isinstance(inner := part.get("additionalProperties"), dict):
            yield from _fields(inner, f"{path}.NAME.")


def _type(part: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    if "$ref" in part:
        named = {"bytes": "bytes", "bytes_or_null": "bytes or null", "figures": "these figures", "serving": "accounts"}
        return named.get(part["$ref"].split("/")[-1], "estimate")
    if "const" in part:
        return json.dumps(part["const"])
    if "enum" in part:
        return ", ".join(map(json.dumps, part["enum"]))
    if "anyOf" in part:
        return " or ".join(_type(one) for one in part["anyOf"])
    kind = part["type"]
    return " or ".join(kind) if isinstance(kind, list) else kind


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("json-schema", JsonSchema)
    return {"parallel_read_safe": True}
