"""Checkpoints written by torch.distributed.checkpoint in a traced command: redirected to a folder removed with the job.

No real checkpoint is replaced by one with meaningless weights, and none remains. Large shards are not written at all: the
estimating machine need not have the job's disk. Redirected checkpoints are read back from the same folder.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute, when_imported
from vramcast.tracer.libraries.checkpoints import WHOLE_BYTES
from vramcast.tracer.libraries.library import Library

_MODULE: Final = "torch.distributed.checkpoint.filesystem"


@contextmanager
def kept_apart(folder: str) -> Iterator[None]:
    """Redirect distributed checkpoints written inside, as described above.

    Args:
        folder: Their new place; the caller removes it.
    """
    with contextlib.ExitStack() as stack, when_imported(_MODULE, lambda: _Apart(Path(folder)).enter(stack)):
        yield


class _Apart:
    """Original folders of checkpoints, and their new places."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._moved: dict[str, Path] = {}
        self._without_data: set[Path] = set()

    def enter(self, stack: contextlib.ExitStack) -> None:
        """Replace the writing and reading functions until the stack is closed."""
        writer, reader = torch_api.FileSystemWriter, torch_api.FileSystemReader
        for owner, name, instead in (
            (writer, "set_up_storage_writer", self._begin), (writer, "write_data", self._write),
            (reader, "read_metadata", self._open), (reader, "read_data", self._read),
        ):  # fmt: skip
            stack.callback(ReplacedAttribute(owner, name, _given_original(instead)).remove)

    def _begin(self, original: Any, writer: Any, *args: Any, **kwargs: Any) -> Any:
        path = Path(writer.path)
        if self._folder not in path.parents:
            writer.path = self._moved.setdefault(os.path.abspath(path), Path(tempfile.mkdtemp(dir=self._folder)))
        return original(writer, *args, **kwargs)

    def _write(self, original: Any, writer: Any, plan: Any, planner: Any) -> Any:
        if _size_bytes(plan) <= WHOLE_BYTES:
            return original(writer, plan, planner)
        self._without_data.add(Path(writer.path))
        return _done([])

    def _open(self, original: Any, reader: Any, *args: Any, **kwargs: Any) -> Any:
        reader.path = self._moved.get(os.path.abspath(reader.path), reader.path)
        return original(reader, *args, **kwargs)

    def _read(self, original: Any, reader: Any, plan: Any, planner: Any) -> Any:
        return _done(None) if Path(reader.path) in self._without_data else original(reader, plan, planner)


def _given_original(instead: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    """Return a wrapper that makes a method from `instead`, which receives the original method as its first argument."""
    return lambda original: lambda *args, **kwargs: instead(original, *args, **kwargs)


def _size_bytes(plan: Any) -> int:
    """Return the size of the tensors of a plan."""
    parts = [item.tensor_data for item in plan.items if item.tensor_data is not None]
    return sum(math.prod(part.chunk.sizes) * part.properties.dtype.itemsize for part in parts)


def _done(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return future


LIBRARY: Final = Library("torch.distributed.checkpoint", lambda process: kept_apart(process.folder))
