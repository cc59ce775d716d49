"""Experiment trackers of a traced command: their data stays on this machine, in a folder removed with the job.

The losses are meaningless, and would appear in a project next to real ones. The libraries run as usual, because their work on
the card (histograms of gradients) belongs to the job.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from vramcast.tracer.hooks.replacement import ReplacedAttribute, when_imported
from vramcast.tracer.libraries.library import Library

# spec: the environment variables of each library; {folder}: its output folder.
_VARIABLES: Final = {
    "WANDB_MODE": "offline",
    "WANDB_DIR": "{folder}",
    "MLFLOW_TRACKING_URI": "file://{folder}/mlruns",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}
_SILENT: Final = {
    "WANDB_MODE": ("disabled", "dryrun"),
    "NEPTUNE_MODE": ("offline", "read-only"),
}  # the user's own
_EVENTS: Final = ("tensorboard.summary.writer.event_file_writer", "tensorboardX.event_file_writer")


@contextmanager
def kept_apart(folder: str) -> Iterator[None]:
    """Keep tracking inside apart from real projects, as described above.

    Args:
        folder: Folder for their data; the caller removes it.
    """
    place = Path(folder) / "trackers"
    place.mkdir(exist_ok=True)
    for name, value in _VARIABLES.items():
        if os.environ.get(name) not in _SILENT.get(name, ()):
            os.environ[name] = value.format(folder=place)
    with contextlib.ExitStack() as stack:
        stack.enter_context(when_imported("mlflow", lambda: _keep_address(stack)))
        for module in _EVENTS:
            stack.enter_context(when_imported(module, lambda module=module: _move_events(module, place, stack)))  # type: ignore[misc]
        yield


def _keep_address(stack: contextlib.ExitStack) -> None:
    """Disable a script's own `mlflow.set_tracking_uri`."""
    _replace(stack, sys.modules["mlflow"], "set_tracking_uri", lambda original: lambda *args, **kwargs: None)


def _move_events(module: str, place: Path, stack: contextlib.ExitStack) -> None:
    """Redirect TensorBoard's event files to our folder."""

    def moved(original: Callable[..., None]) -> Callable[..., None]:
        def begin(writer: Any, logdir: str, *args: Any, **kwargs: Any) -> None:
            original(writer, str(place / "events" / Path(os.path.abspath(logdir)).relative_to("/")), *args, **kwargs)

        return begin

    _replace(stack, sys.modules[module].EventFileWriter, "__init__", moved)


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    stack.callback(ReplacedAttribute(owner, name, wrap).remove)


LIBRARY: Final = Library("wandb, mlflow, neptune, clearml, tensorboard", lambda process: kept_apart(process.folder))
