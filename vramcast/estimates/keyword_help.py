"""Suggestions for the names that other libraries have for our arguments."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Final, ParamSpec, TypeVar

Params = ParamSpec("Params")
Result = TypeVar("Result")
# What to write, and other names for it.
_MEANT: Final = {
    "loss=": "criterion loss_fn loss_func loss_function objective",
    "level=": "quantile confidence confidence_level probability q",
    "steps=": "step n_steps num_steps max_steps iterations",
    "device=": "gpu card gpu_name gpu_type accelerator",
    "batch_size=": "bs batchsize micro_batch_size per_device_train_batch_size",
    "seq=": "seq_len seq_length sequence_length max_length max_seq_length",
    "image_size=": "img_size imgsz input_size",
    "batch=": "inputs input x data dataloader train_dataloader loader dataset example example_inputs",
    "precision=": "dtype amp autocast torch_dtype mixed_precision fp16 bf16",
    "optimizer=": "opt optim optimiser optimizer_class",
    "lr=": "learning_rate",
    "labels=": "label target targets y",
    "mode=": "train training inference eval",
    "checkpointing=": "gradient_checkpointing activation_checkpointing grad_checkpointing",
    "channels_last=": "memory_format",
    "cudnn_benchmark=": "benchmark",
    "memory=": "vram gpu_memory total_memory memory_bytes",
    "world_size=": "n_gpus num_gpus gpus n_cards cards",
    "parallel=": "strategy ddp fsdp",
    "alloc_conf=": "allocator_conf pytorch_cuda_alloc_conf alloc_settings",
    "timeout_s=": "timeout",
    "no argument: a learning-rate schedule takes no memory of the card": "lr_scheduler scheduler",
}
_BY_NAME: Final = {name: meant for meant, names in _MEANT.items() for name in names.split()}


def refuse_unknown(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise if a keyword argument is unknown.

    Raises:
        TypeError: The message names the argument that is meant.
    """
    for name in given:
        if name in known:
            continue
        meant = _BY_NAME.get(name.lower(), "")
        if meant.endswith("=") and meant[:-1] not in known:
            meant = ""
        close = difflib.get_close_matches(name, known, n=1)
        meant = meant or (f"{close[0]}=" if close else "")
        advice = f"did you mean {meant}?" if meant else f"its arguments are {', '.join(known)}."
        raise TypeError(f"{function}() got an unexpected keyword argument '{name}': {advice}")


def suggests(*more: str) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Return a decorator that adds suggestions to a function's own error about unknown arguments.

    Args:
        more: Names that the function takes as `**options`.
    """

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        own = inspect.signature(function).parameters.values()
        known = [one.name for one in own if one.name != "self" and one.kind is not one.VAR_KEYWORD] + list(more)

        @functools.wraps(function)
        def checked(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            refuse_unknown(function.__name__, kwargs, known)
            return function(*args, **kwargs)

        return checked

    return decorate
