"""`[tool.vramcast]` of a pyproject.toml: one table a job, whose keys are the options of `vramcast check`.

[tool.vramcast]
device = "a100-40gb"                  # of all jobs which do not say another one

[tool.vramcast.jobs.resnet50]
target = "torchvision:resnet50"
batch = "32x3x224x224"
labels = "32:int64<1000"

[tool.vramcast.jobs.finetune]
command = "torchrun --nproc_per_node=2 train.py --epochs 1"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.core.text import shown

NAME: Final = "pyproject.toml"
_EXAMPLE: Final = f"{NAME} needs a table [tool.vramcast.jobs.NAME] with a target and its batch (docs/ci-gate.md)"


def read_jobs(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return the jobs of a folder's pyproject.toml by name, each with the shared options; None: it has no [tool.vramcast].

    Raises:
        UsageError: the file cannot be read, or its table is not of this form.
    """
    path = folder / NAME
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read ({error}): it must be a text file in UTF-8.") from None
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"'{path}' is not TOML: {error}.") from None
    if not isinstance(tool, dict) or "vramcast" not in tool:
        return None
    return _jobs_of(tool["vramcast"])


def _jobs_of(table: object) -> dict[str, dict[str, Any]]:
    if not isinstance(table, dict):
        raise UsageError(f"tool.vramcast is {shown(table)}: a table is expected: {_EXAMPLE}.")
    common = {key: value for key, value in table.items() if key != "jobs"}
    for key, value in common.items():
        if isinstance(value, dict):
            raise UsageError(f"[tool.vramcast.{key}] is not known: write [tool.vramcast.jobs.{key}] for a job of this name.")
    jobs = table.get("jobs", {})
    if not isinstance(jobs, Mapping) or not jobs:
        raise UsageError(f"[tool.vramcast] names no job: {_EXAMPLE}.")
    for name, job in jobs.items():
        if not isinstance(job, dict):
            raise UsageError(f"tool.vramcast.jobs.{name} is {shown(job)}: a table is expected: {_EXAMPLE}.")
    return {name: {**common, **job} for name, job in jobs.items()}
