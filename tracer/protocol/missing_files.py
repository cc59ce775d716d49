"""Weights which a job asked of a hub that is not there: said with the command which makes a checkpoint without them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# Exceptions of huggingface_hub, by name: it need not be installed.
_OFFLINE: Final = frozenset({"LocalEntryNotFoundError", "OfflineModeIsEnabled"})
_HUB: Final = re.compile(r"huggingface\.co|is not a local folder and is not a valid model identifier|HF_HUB_OFFLINE")
_NAME: Final = re.compile(r"'([\w.-]+/[\w.-]+)'")


def advice(error: BaseException) -> str:
    """Return how to do without the files which a job did not get from a hub; "" where it did not fail for want of them."""
    chain = list(_chain(error))
    if not any(type(one).__name__ in _OFFLINE or (isinstance(one, OSError) and _HUB.search(str(one))) for one in chain):
        return ""
    found = _NAME.search(" ".join(str(one) for one in chain))
    name = found[1] if found is not None else "org/name"
    return (
        " The weights need not be there: vramcast stub-checkpoint CONFIG.json --out DIR writes a checkpoint of the true shapes "
        f"without them, from the config.json of '{name}' or from a model type (llama); give DIR in its place."
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
