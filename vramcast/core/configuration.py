"""Configuration files of other programs, in JSON or YAML; PyYAML is imported only for YAML."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from vramcast.core.errors import UsageError


def read_configuration(path: Path) -> Any:
    """Return the content of a JSON or YAML file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is neither.
        UsageError: PyYAML is not installed.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    yaml = _yaml(path)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def write_configuration(path: Path, content: Any) -> None:
    """Write a JSON or YAML file."""
    path.write_text(json.dumps(content) if path.suffix == ".json" else _yaml(path).safe_dump(content), encoding="utf-8")


def _yaml(path: Path) -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise UsageError(f"'{path}' is YAML, but PyYAML is not installed: pip install pyyaml.") from None
