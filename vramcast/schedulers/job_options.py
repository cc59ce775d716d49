"""Words of a job, as annotations and batch scripts have them: `steps=4` is a number, `optimizer=adamw` a name."""

from __future__ import annotations

import json
from typing import Any


def value_of(text: str) -> Any:
    """Return a number or a truth value where `text` is one as JSON writes it, else `text`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text
