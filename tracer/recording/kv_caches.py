"""KV caches: the keys and values that `generate` of transformers keeps from token to token."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from vramcast.tracer.hooks.replacement import replace_when_imported
from vramcast.tracer.hooks.tensors import tensors_in

# spec: transformers 4.56 to 5
_CACHES: Final = "transformers.cache_utils"
_GENERATION: Final = "transformers.generation.utils"


@contextmanager
def noted(note: Callable[[list[Any]], None]) -> Iterator[None]:
    """Note the tensors of KV caches inside.

    A model of transformers also returns a cache when it is called alone or trained: those are outputs and saved tensors.

    Args:
        note: Receives a cache's tensors when it has them.
    """
    generating = 0

    def generated(run: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            nonlocal generating
            generating += 1
            try:
                return run(*args, **kwargs)
            finally:
                generating -= 1

        return generate

    def kept(update: Callable[..., Any]) -> Callable[..., Any]:
        def update_and_note(cache: Any, keys: Any, values: Any, layer: int, *args: Any, **kwargs: Any) -> Any:
            result = update(cache, keys, values, layer, *args, **kwargs)
            if generating:
                note(tensors_in(cache.layers[layer].keys, cache.layers[layer].values))
            return result

        return update_and_note

    with contextlib.ExitStack() as stack:
        replace_when_imported(stack, _GENERATION, "GenerationMixin.generate", generated)
        replace_when_imported(stack, _CACHES, "Cache.update", kept)
        yield
