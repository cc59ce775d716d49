"""Serving engines: vLLM loads no weights here, and a job that only serves ends when its engine is ready.

By then the engine has measured its own peak and taken the rest of its share of the card for the KV cache; requests change
neither. Weights are made on the card by vLLM's own dummy loading, so a model's configuration is enough.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from vramcast.core.errors import UsageError
from vramcast.tracer.engines.vllm import models
from vramcast.tracer.hooks.replacement import replace_when_imported
from vramcast.tracer.program.training_loop import Course

# spec: vLLM 0.11 to 0.33.
_ARGUMENTS: Final = "vllm.engine.arg_utils"
_ENGINES: Final = {"vllm.entrypoints.llm": "LLM.__init__", "vllm.v1.engine.async_llm": "AsyncLLM.__init__"}
_MODELS: Final = "vllm.entrypoints.openai.models.serving"  # of the server, which then loads adapters; vLLM 0.16 and later
_FORMATS: Final = frozenset({
    "auto", "fastsafetensors", "hf", "instanttensor", "mistral", "modelexpress", "npcache", "pt", "runai_streamer",
    "safetensors",
})  # fmt: skip
_TOKENIZERS: Final = ("tokenizer", "vocab", "tekken", "spiece", "sentencepiece")  # how the names of a tokenizer's files begin
_TRAINER: Final = "transformers.trainer"  # a job that trains may generate with an engine between its steps


@contextmanager
def until_ready(course: Course, before_stop: Callable[[], None]) -> Iterator[None]:
    """Serve without weights inside, and end a job that only serves when its engine is ready.

    Args:
        course: The job's course.
        before_stop: Called before the job ends.
    """

    def end() -> None:
        before_stop()
        course.end_here()

    def end_when_made(make: Callable[..., None]) -> Callable[..., None]:
        def make_and_end(engine: Any, *args: Any, **kwargs: Any) -> None:
            serves_only = not torch.cuda.memory_allocated() and _TRAINER not in sys.modules
            make(engine, *args, **kwargs)
            has_adapters = getattr(getattr(engine, "vllm_config", None), "lora_config", None) is not None
            if serves_only and course.is_limited and not (has_adapters and _MODELS in sys.modules):
                end()

        return make_and_end

    def end_when_loaded(load: Callable[..., Any]) -> Callable[..., Any]:
        async def init_static_loras(models: Any) -> None:
            try:
                await load(models)
            except Exception as error:
                raise UsageError(
                    f"vLLM cannot load an adapter: {_first_sentence(error)}: give a folder with its weights, or omit "
                    "--lora-modules; --enable-lora alone takes as much memory."
                ) from error
            if course.is_limited:
                end()

        return init_static_loras

    with contextlib.ExitStack() as stack:
        replace_when_imported(stack, _ARGUMENTS, "EngineArgs.create_engine_config", _without_weights)
        replace_when_imported(stack, _ARGUMENTS, "EngineArgs.__post_init__", _with_known_model)
        for module, make in _ENGINES.items():
            replace_when_imported(stack, module, make, end_when_made)
        replace_when_imported(stack, _MODELS, "OpenAIServingModels.init_static_loras", end_when_loaded)
        yield


def _without_weights(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that configures an engine without weights, and without a tokenizer if the model's folder has none."""

    def create_engine_config(arguments: Any, *args: Any, **kwargs: Any) -> Any:
        if str(arguments.load_format) in _FORMATS:
            arguments.load_format = "dummy"
        folder = arguments.tokenizer or arguments.model
        if os.path.isdir(folder) and not any(name.startswith(_TOKENIZERS) for name in os.listdir(folder)):
            arguments.skip_tokenizer_init = True
        return create(arguments, *args, **kwargs)

    return _rejecting_in_a_sentence(create_engine_config)


def _with_known_model(check: Callable[..., None]) -> Callable[..., None]:
    """Return a check of an engine's arguments that replaces a model's name by a folder if only vramcast knows its sizes."""

    def __post_init__(arguments: Any) -> None:
        if (folder := models.folder(arguments.model)) is not None:
            arguments.served_model_name = arguments.served_model_name or arguments.model
            arguments.model = folder
        check(arguments)

    return _rejecting_in_a_sentence(__post_init__)


def _rejecting_in_a_sentence(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of vLLM's arguments that says in one sentence what is wrong with them."""

    def checked(arguments: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(arguments, *args, **kwargs)
        except UsageError:
            raise
        except OSError as error:  # also of huggingface_hub: nothing is fetched here
            raise UsageError(
                f"The model '{arguments.model}' has no configuration on this machine: give a folder with its config.json "
                "instead; weights are not needed."
            ) from error
        except ValueError as error:  # pydantic's, for each check of vLLM's own
            raise UsageError(f"vLLM rejects its options: {_first_sentence(error)}: change them.") from error

    return checked


def _first_sentence(error: Exception) -> str:
    """Return the first sentence of an error, which names the value."""
    found = error.errors()[0]["msg"] if hasattr(error, "errors") else str(error)
    return " ".join(str(found).removeprefix("Value error, ").split()).partition(". ")[0].rstrip(".")
