"""vLLM: one of its ranks in this process, its accounts, its end when it is ready, and its folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from vramcast.core import cache
from vramcast.core.errors import CompilerError
from vramcast.tracer.engines.vllm import accounts, ranks, starts
from vramcast.tracer.libraries.library import Library, TracedProcess

_CACHE: Final = "VLLM_CACHE_ROOT"  # spec: vLLM's environment variables
_NO_REPORT: Final = "VLLM_NO_USAGE_STATS"  # spec: as above; vLLM reports each start on a card to its makers
_MODELS: Final = "modelinfos"  # spec: vLLM 0.22, registry.py; facts about model classes, which take it 10 s each to find


@contextmanager
def in_program(process: TracedProcess) -> Iterator[None]:
    """Let an engine be one rank of the job inside, and note its accounts."""
    os.environ[_NO_REPORT] = "1"
    os.environ[_CACHE] = own_folder(process.folder)
    noted = accounts.noted(process.accounts, process.card, process.set_driver, process.note_kv_cache)
    with ranks.one_rank(process.world), noted:
        yield


def own_folder(lent: str) -> str:
    """Return vLLM's folder within the job's own one. It shares the facts about model classes with other jobs.

    vLLM puts its compiled code there, and fails if a graph is missing, so the folder ends with the job.
    """
    folder = os.path.join(lent, "vllm")
    os.makedirs(folder, exist_ok=True)
    with contextlib.suppress(CompilerError, OSError):  # no writable cache; another process of the job was first
        os.symlink(cache.folder(f"vllm-{_MODELS}"), os.path.join(folder, _MODELS))
    return folder


LIBRARY: Final = Library("vllm", in_program, lambda process: starts.until_ready(process.course, process.before_stop))
