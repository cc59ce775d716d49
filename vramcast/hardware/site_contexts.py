"""Writer of a site's measured contexts to its file (`vramcast doctor --measure-context`), which keeps comments.

It uses no library: tomlkit would save thirty lines here, but add a package to every installation for one option.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from vramcast.core.errors import UsageError
from vramcast.core.files import atomic_write
from vramcast.hardware.card_file import ContextRow
from vramcast.hardware.cards import of_site, read


def fields(row: ContextRow) -> dict[str, str | float | list[str]]:
    """Return the fields of a file for the context of one stack on one card."""
    (gpu,), (torch,) = row.gpus, row.torch
    return {
        "gpu": gpu, "torch": torch, "driver": row.driver, "libraries": sorted(row.libraries), "size_mib": row.size.mib,
    }  # fmt: skip


def context_block(row: ContextRow) -> str:
    """Return a context as TOML: [[context]], then one field per line."""
    # spec: a JSON string without escaped slashes is a basic string of TOML, and a list of them an array
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields(row).items()]
    return "\n".join(["[[context]]", *lines, ""])


def write_contexts(path: str | os.PathLike[str], rows: list[ContextRow]) -> None:
    """Write contexts to a site file, in place of those with the same card, software and libraries; the rest is unchanged.

    The write is atomic.

    Raises:
        UsageError: The existing file is not a site file.
        OutputError: The file cannot be written.
    """
    file = Path(path)
    before = read(file).contexts if file.exists() else ()
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    new = {row.identity for row in rows}
    parts = re.split(r"^(?=[ \t]*\[\[)", text, flags=re.MULTILINE)
    kept = [_comments(part) if _identity(part) in new else part for part in parts]
    whole_text = "\n".join(part.strip("\n") + "\n" for part in ["".join(kept), *map(context_block, rows)] if part.strip())
    data = whole_text.encode()
    after = {row.identity for row in of_site(data, file).contexts}
    if after != new | {row.identity for row in before}:
        raise UsageError(f"The layout of '{path}' cannot be changed automatically: put these lines into it.\n{whole_text}")
    with atomic_write(file) as out:
        out.write(data)


def _identity(part: str) -> object:
    """Return the identity of the context in a part of a file."""
    try:
        contexts = of_site(part.encode(), Path("part")).contexts
    except UsageError:
        return None
    return contexts[0].identity if len(contexts) == 1 else None


def _comments(part: str) -> str:
    """Return the comments at the end of a removed part, which belong to the next part."""
    lines = part.splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    return "".join(lines[last + 1 :])
