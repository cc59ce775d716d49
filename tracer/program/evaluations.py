"""Detection of possible evaluations in a training command: without one, a missing evaluation needs no warning."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Final

from vramcast.core.location import FOLDER
from vramcast.tracer.program.loop_lengths import function_of, job_frames, nodes_of, statements_around
from vramcast.tracer.program.trainers import evaluates
from vramcast.tracer.protocol.source_places import is_library

CUT_SHORT: Final = "evaluation within a pass over the training data, which was ended early"
# arbitrary: words likely in code that evaluates, validates, tests or generates; a superfluous word costs a certainty
_SIGNS: Final = re.compile(rb"no_grad|inference_mode|set_grad_enabled|eval|valid|\bval|test|predict|generat|sampl")
# arbitrary: the same for the parts of a name in a loop, where `samples` and `sampler` are common
_WORDS: Final = frozenset(
    ("eval", "evaluate", "evaluation", "valid", "validate", "validation", "val", "test", "predict", "generate", "sample")
)
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+")
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


def evaluates_within(frame: FrameType | None) -> bool:
    """Return whether the loops around a training step evaluate under a condition: then their early end leaves that out.

    What follows a loop, or happens in each of its iterations, is observed in any case.

    Args:
        frame: Frame of a training step.
    """
    for one in job_frames(frame):
        said = evaluates(one)
        if said is not None:
            return said
        function = function_of(one.f_code)
        around = [] if function is None else statements_around(function, one.f_lineno)
        loops = [statement for statement in around if isinstance(statement, (ast.For, ast.While))]
        if any(is_evaluation(node) for loop in loops for node in nodes_of(loop.body, None) if isinstance(node, ast.If)):
            return True
    return False


def is_evaluation(condition: ast.If) -> bool:
    """Return whether a condition, or a call that depends on it, has a word for an evaluation in its name."""
    calls = [node.func for node in nodes_of([*condition.body, *condition.orelse], None) if isinstance(node, ast.Call)]
    nodes = [node for part in (condition.test, *calls) for node in ast.walk(part)]
    names = [
        node.id if isinstance(node, ast.Name) else node.attr for node in nodes if isinstance(node, (ast.Name, ast.Attribute))
    ]
    return any(part.lower() in _WORDS for name in names for part in _PARTS.findall(name))


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
