"""What a traced command tells experiment trackers: it stays on this machine, in a folder that goes with the job.

Its losses are nobody's, and would stand in a project beside real ones. The libraries run as ever, for what they do on the card
(histograms of gradients) is the job's own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from vramcast.tracer.hooks.replacement import Replaced, when_imported

# spec: the environment variables of each library; {folder}: where it writes.
_VARIABLES: Final = {
    "WANDB_MODE": "offline",
    "WANDB_DIR": "{folder}",
    "MLFLOW_TRACKING_URI": "file://{folder}/mlruns",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}
_SILENT: Final = {"WANDB_MODE": ("disabled", "dryrun"), "NEPTUNE_MODE": ("offline", "read-only")}  # the user's own, as good
_EVENTS: Final = ("tensorboard.summary.writer.event_file_writer", "tensorboardX.event_file_writer")


@contextmanager
def kept_apart(folder: str) -> Iterator[None]:
    """Let what is tracked inside be as above.

    Args:
        folder: Somebody else removes it.
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
    """Let a script's own `mlflow.set_tracking_uri` change nothing."""
    _replace(stack, sys.modules["mlflow"], "set_tracking_uri", lambda original: lambda *args, **kwargs: None)


def _move_events(module: str, place: Path, stack: contextlib.ExitStack) -> None:
    """Let TensorBoard's files of events go to a folder of ours."""

    def moved(original: Callable[..., None]) -> Callable[..., None]:
        def begin(writer: Any, logdir: str, *args: Any, **kwargs: Any) -> None:
            original(writer, str(place / "events" / Path(os.path.abspath(logdir)).relative_to("/")), *args, **kwargs)

        return begin

    _replace(stack, sys.modules[module].EventFileWriter, "__init__", moved)


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    stack.callback(Replaced(owner, name, wrap).remove)
