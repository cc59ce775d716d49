"""torch.compile in a job's process: where its compilers run, and which of their results the next job may reuse.

On several cores Inductor compiles Triton's kernels in fresh processes, which would see no card. So it compiles in the job's own
process; a job that requests several processes gets forks of it, which have the null GPU too.

Compiled code is kept for the next job, in our own folder. The user's folder must not receive code chosen on a card without
time, or kernels without their bodies (`triton.py`). Results of a benchmark, the *choices*, are never kept: a benchmark
takes memory, so a job with kept choices would request less than the first one did.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from vramcast.core import cache
from vramcast.core.errors import CompilerError
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.libraries import compiled_cache, triton
from vramcast.tracer.protocol.messages import LENT

_FOLDER: Final = "compiled"
_INDUCTOR: Final = "TORCHINDUCTOR_CACHE_DIR"
_CACHES: Final = {
    _INDUCTOR: "inductor",
    "TRITON_CACHE_DIR": "triton",
}  # spec: names; ours: values


def prepare(environ: MutableMapping[str, str] = os.environ) -> None:
    """Prepare this process for a job that may compile; call it before the job does.

    Args:
        environ: Environment from which Inductor and Triton read their settings.
    """
    # measured: `vramcast run` of a 9-layer GPT, 2 cores: Triton's part is 11 of 72 s of CPU, and the rest is single-threaded
    # anyway.
    threads = environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    environ["TORCHINDUCTOR_WORKER_START"] = "fork"
    environ["TRITON_CACHE_AUTOTUNING"] = "0"  # vLLM keeps Triton's choices, unless this is set
    if torch_api.INDUCTOR_CONFIG in sys.modules:  # imported by the warm worker, and it reads the variables only then
        torch_api.inductor_config.compile_threads = int(threads)
        torch_api.inductor_config.worker_start_method = "fork"
    environ.update(_own_caches())
    _when_first_compiled()


def _own_caches() -> dict[str, str]:
    """Return the compilers' folders within ours; empty if we have no writable place: then they use their own."""
    try:
        folder = cache.folder(_FOLDER)
    except CompilerError:
        return {}
    return {variable: str(folder / name) for variable, name in _CACHES.items()}


@functools.cache  # once per process
def _bound_own_caches() -> None:
    """Keep our folder within its limit, before the first compilation in this process."""
    if _keeps_apart():
        compiled_cache.enter(cache.folder(_FOLDER))


def _keeps_apart() -> bool:
    """Return whether compiled code is now stored out of reach of real cards."""
    own, lent = _own_caches(), os.environ.get(LENT)
    return bool(own) and all(
        os.environ.get(variable) == folder or _is_within(os.environ.get(variable, ""), lent) for variable, folder in own.items()
    )


def _ends_with_job() -> bool:
    """Return whether compiled graphs are now stored in the job's own folder, as vLLM's are."""
    return _is_within(os.environ.get(_INDUCTOR, ""), os.environ.get(LENT))


def _is_within(path: str, folder: str | None) -> bool:
    return bool(folder) and path.startswith(f"{folder}/")


def _when_first_compiled() -> None:
    import torch

    compile_ = torch.compile

    def prepare_and_compile(*args: Any, **kwargs: Any) -> Any:
        _keep_no_choices()
        _bound_own_caches()
        triton.install(_keeps_apart)
        return compile_(*args, **kwargs)

    torch.compile = prepare_and_compile


@functools.cache  # once per process
def _keep_no_choices() -> None:
    """Keep choices made by a benchmark, and graphs made with them, only for the lifetime of this process."""
    torch_api.inductor_config.autotune_local_cache = False  # the fastest of a kernel's configurations
    choices: dict[str, Any] = {}  # the kernel for a matrix product, and whether matrices are padded for it
    has_chosen = False

    def note_choices(self: Any, local_cache: dict[str, Any]) -> None:
        nonlocal has_chosen
        choices.update(local_cache)
        has_chosen = True

    for owner, name in torch_api.places("inductor_read_choices"):
        setattr(owner, name, lambda self: choices)
    for owner, name in torch_api.places("inductor_write_choices"):
        setattr(owner, name, note_choices)
    for owner, name in torch_api.places("inductor_save_graph"):
        save = getattr(owner, name)

        def save_unless_chosen(*args: Any, save: Any = save, **kwargs: Any) -> None:
            nonlocal has_chosen
            if not has_chosen or _ends_with_job():
                save(*args, **kwargs)
            has_chosen = False

        setattr(owner, name, staticmethod(save_unless_chosen))

    for owner, name in torch_api.places("load_kept_graph"):
        setattr(owner, name, staticmethod(_compiled_if_absent(getattr(owner, name))))
    for owner, name in torch_api.places("tune_by_descent"):
        setattr(owner, name, _first_configuration)


def _compiled_if_absent(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return a load of a kept graph that also compiles it if its code was not kept: with vLLM, torch raises an error then.

    torch has noted the graph's description as a result by then, and vLLM 0.19 expects one from each compilation.
    """

    def load_or_compile(*args: Any, **kwargs: Any) -> Any:
        lenient = torch_api.functorch_config.patch(strict_autograd_cache=False)
        with lenient, torch_api.dynamo_config.patch(strict_precompile=False):
            found = load(*args, **kwargs)
        if found is None and torch_api.has("compiled_artifacts"):
            torch_api.compiled_artifacts.clear()
        return found

    return load_or_compile


def _first_configuration(self: Any, func: Any, baseline_config: Any, baseline_timing: float | None = None) -> Any:
    """Stand in for a search that compiles a kernel with some twenty neighbours of a configuration.

    On a card without time none is faster, and the benchmark of each takes the same memory as the benchmark of the first.
    """
    if baseline_timing is None:
        self.call_func(func, baseline_config)
    return baseline_config


def hide_hooks() -> None:
    """Let torch.compile count only global module hooks registered after this call; it warns its user about each of them."""
    api = torch_api
    hooks = [api.global_forward_hooks, api.global_forward_pre_hooks, api.global_backward_hooks, api.global_backward_pre_hooks]
    ours = sum(map(len, hooks))
    for owner, name in torch_api.places("has_global_hooks"):
        setattr(owner, name, lambda: sum(map(len, hooks)) > ours)
