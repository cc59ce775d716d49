"""Checkpoints written by a traced command: their weights are meaningless, so none remains, and no real one is replaced.

An existing file stays as it is, and its replacement goes elsewhere. A new file is written, with holes in place of large
storages, because the script may read it again. It is removed when the job has ended.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

import torch

from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.hooks.tensors import tensors_in
from vramcast.tracer.libraries.library import Library
from vramcast.tracer.program.training_loop_hooks import checkpoint_writers
from vramcast.tracer.protocol.messages import LENT

_FOLDER: Final = "vramcast-"
WHOLE_BYTES: Final = 16 * 2**20  # arbitrary: smaller files are written unchanged, including states of random numbers


@contextmanager
def kept_apart() -> Iterator[None]:
    """Keep checkpoints written inside apart from real ones, as described above."""
    written: dict[str, int] = {}  # file -> the process that wrote it: a fork inherits its parent's entries
    made: set[str] = set()
    replaced = [ReplacedAttribute(*place, lambda save: _apart(save, written)) for place in checkpoint_writers()]
    replaced.append(ReplacedAttribute(os, "mkdir", lambda mkdir: _noting(mkdir, made)))  # os.makedirs and pathlib call it
    try:
        yield
    finally:
        for place in replaced:
            place.remove()
        for path in [path for path, process in written.items() if process == os.getpid()]:
            with suppress(OSError):
                os.remove(path)
                while (path := os.path.dirname(path)) in made or os.path.basename(path).startswith(_FOLDER):
                    os.rmdir(path)  # a folder with other contents stays


def _noting(mkdir: Callable[..., None], made: set[str]) -> Callable[..., None]:
    """Return an `os.mkdir` that records new folders: a checkpoint folder without a checkpoint would mislead the next run."""

    def noted(path: Any, *args: Any, **kwargs: Any) -> None:
        mkdir(path, *args, **kwargs)
        if isinstance(path, str | os.PathLike) and "dir_fd" not in kwargs:
            made.add(os.path.abspath(os.fspath(path)))

    return noted


def _apart(save: Callable[..., Any], written: dict[str, int]) -> Callable[..., Any]:
    """Return a temporary version of `torch.save`, or of safetensors' `save_file`."""

    def saved(content: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.pop("f", kwargs.pop("filename", None))
        if isinstance(path, str | os.PathLike):  # otherwise it is the script's own file object, or a buffer
            path = os.path.abspath(os.fspath(path))
            if os.path.exists(path) and path not in written:
                path = os.path.join(tempfile.mkdtemp(prefix=_FOLDER, dir=os.environ.get(LENT)), "checkpoint")
            with suppress(OSError):
                os.remove(path)  # it may be mapped: a program that loaded it goes on reading its former contents
            written.setdefault(path, os.getpid())
        is_large = save.__module__ == "torch.serialization" and sum(t.nbytes for t in tensors_in(content)) > WHOLE_BYTES
        with torch.serialization.skip_data() if is_large else nullcontext():
            return save(content, path, *args[1:], **kwargs)

    return saved


LIBRARY: Final = Library("torch.save, safetensors", on_card=lambda process: kept_apart())
