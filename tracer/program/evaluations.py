"""Detection of possible evaluations in a training command: without one, a missing evaluation needs no warning."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Final

from vramcast.core.location import FOLDER
from vramcast.tracer.protocol.source_places import is_library

# arbitrary: words likely in code that evaluates, validates, tests or generates; a superfluous word costs a certainty
_SIGNS: Final = re.compile(rb"no_grad|inference_mode|set_grad_enabled|eval|valid|\bval|test|predict|generat|sampl")
_LARGEST_SOURCE: Final = 4 << 20  # arbitrary: bytes; a larger source counts as having a sign
_OURS: Final = str(FOLDER)
_TORCH: Final = "/site-packages/torch/"


def may_evaluate(frame: FrameType | None) -> bool:
    """Return whether a job may evaluate: a library drives its training, or its own source has a word for it.

    Args:
        frame: Frame of a training step.
    """
    if any("site-packages" in file for file in _files_of(frame)):
        return True
    modules = filter(os.path.isfile, _own(_modules()))  # some do not exist, for example torch._ops'
    return any(map(_has_sign, {*modules, *_own(_files_of(frame))}))


def _own(files: Iterable[str]) -> Iterator[str]:
    """Yield the job's own files."""
    return (file for file in files if not is_library(file) and not file.startswith(_OURS))


def _modules() -> Iterator[str]:
    """Return the files of all modules."""
    files = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    return (str(file) for file in files if file)


def _files_of(frame: FrameType | None) -> Iterator[str]:
    """Yield the files of a frame and its callers, without torch's and our own."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS) and _TORCH not in file:
            yield file
        frame = frame.f_back


def _has_sign(file: str) -> bool:
    try:
        with open(file, "rb") as source:
            text = source.read(_LARGEST_SOURCE + 1)
    except (OSError, ValueError):  # code passed as text
        return True
    return len(text) > _LARGEST_SOURCE or _SIGNS.search(text) is not None
