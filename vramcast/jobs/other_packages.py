"""Folders with other releases of a job's packages: those of `VRAMCAST_PACKAGES`, filled by `pip install --target FOLDER`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from vramcast.hardware.stack import Stack

VARIABLE: Final = "VRAMCAST_PACKAGES"


def folders_with(stack: Stack | None) -> tuple[str, ...]:
    """Return the folder that comes first on a job's import path, if its stack names another release that a folder has."""
    folders, name = os.environ.get(VARIABLE, "").split(os.pathsep), f"transformers-{_asked(stack)}.dist-info"
    return tuple(os.path.abspath(one) for one in folders if one and (Path(one) / name).is_dir())[:1]


def remarks(stack: Stack | None) -> Iterator[str]:
    """Yield what is needed to run a job with the release that its stack names, if the installed one runs it instead."""
    if (asked := _asked(stack)) and not folders_with(stack):
        # measured: a published row with 4.51 and with 5.17, 2026-11
        yield (
            f"transformers {_installed() or 'of no release'} ran the job, but its stack has {asked}: releases differ by up to "
            f"4 % on the same job; to run it, pip install --target FOLDER transformers=={asked}, and set {VARIABLE}=FOLDER"
        )


def _asked(stack: Stack | None) -> str | None:
    """Return the release that a stack names, if another one is installed."""
    return stack.transformers if isinstance(stack, Stack) and stack.transformers != _installed() else None


def _installed() -> str:
    return next((one.version for one in metadata.distributions(name="transformers")), "")
