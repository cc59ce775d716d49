"""The names that other tools give to our options, on the command line and in Python."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from vramcast.core.errors import UnknownArgument, UsageError
from vramcast.core.text import shown

Params = ParamSpec("Params")
Result = TypeVar("Result")
# Options by the names that other tools give them; the right side may have a value.
OTHER_NAMES: Final = {
    "-b": "--batch-size",
    "-d": "--on",
    "-v": "--verbose",
    "--accelerator": "--on",
    "--amp": "--precision amp-bf16",
    "--autocast": "--precision amp-bf16",
    "--batchsize": "--batch-size",
    "--bf16": "--precision bf16",
    "--bs": "--batch-size",
    "--card": "--on",
    "--confidence": "--level",
    "--context": "--seq",
    "--context-length": "--seq",
    "--dtype": "--precision",
    "--epochs": "--steps",
    "--eval": "--mode infer",
    "--fp16": "--precision fp16",
    "--fsdp": "--parallel fsdp",
    "--gpu": "--on",
    "--gpus": "--world-size",
    "--grad-checkpointing": "--checkpointing",
    "--gradient-checkpointing": "--checkpointing",
    "--html": "--report",
    "--image-resolution": "--image-size",
    "--img-size": "--image-size",
    "--imgsz": "--image-size",
    "--inference": "--mode infer",
    "--input-shape": "--batch",
    "--learning-rate": "--lr",
    "--length": "--seq",
    "--mixed-precision": "--precision amp-bf16",
    "--max-length": "--seq",
    "--max-seq-len": "--seq",
    "--max-seq-length": "--seq",
    "--micro-batch-size": "--batch-size",
    "--n-gpu": "--world-size",
    "--n-gpus": "--world-size",
    "--ngpus": "--world-size",
    "--nproc": "--world-size",
    "--num-gpus": "--world-size",
    "--opt": "--optimizer",
    "--optim": "--optimizer",
    "--per-device-train-batch-size": "--batch-size",
    "--quantile": "--level",
    "--resolution": "--image-size",
    "--seq-len": "--seq",
    "--seq-length": "--seq",
    "--seqlen": "--seq",
    "--sequence-length": "--seq",
    "--shape": "--batch",
    "--strategy": "--parallel",
    "--target": "TARGET, without an option's name",
    "--vram": "--memory",
}
# Arguments of Python functions by other names; the options above count too.
_OF_PYTHON: Final = {
    other: meant
    for meant, others in {
        "loss": "criterion loss_fn loss_func loss_function objective",
        "labels": "label target targets y",
        "batch": "inputs input x data dataloader train_dataloader loader dataset example example_inputs",
        "model": "net network module",
        "optimizer": "optimiser optimizer_class",
        "precision": "torch_dtype",
        "on": "gpu_name gpu_type",
        "timeout_s": "timeout",
        "channels_last": "memory_format",
        "cudnn_benchmark": "benchmark",
        "alloc_conf": "pytorch_cuda_alloc_conf pytorch_alloc_conf",
        "steps": "step n_steps num_steps max_steps",
    }.items()
    for other in others.split()
}


def suggests(*more: str) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Return a decorator by which a function answers an unknown keyword argument with the one that was meant.

    Args:
        more: Names that the function takes as `**options`.
    """

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        own = inspect.signature(function).parameters.values()
        known = [one.name for one in own if one.name != "self" and one.kind is not one.VAR_KEYWORD] + list(more)
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            _refuse_wrong(name, kwargs, known)
            try:
                return function(*args, **kwargs)
            except UsageError as error:
                if function.__name__ != "__init__":  # the command line makes estimators too
                    error.args = (_of_python(str(error), known), *error.args[1:])
                raise

        return checked

    return decorate


def _of_python(message: str, known: Collection[str]) -> str:
    """Return a message with the arguments of a function in place of the options of the command line."""

    def argument(option: re.Match[str]) -> str:
        name = "device" if option[1] == "on" else option[1].replace("-", "_")
        return name if name in known else option[0]

    return re.sub(r"--([a-z]+(?:-[a-z]+)*)", argument, re.sub(r" \(--[a-z-]+\)", "", message))


def _refuse_wrong(function: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    # Checked here, because the function cannot tell its default from the same card as an argument.
    if "device" in given and given.get("on") is not None:
        device, on = shown(given["device"]), shown(given["on"])
        raise UsageError(f"device is {device} and on is {on}, but both name the card: give one of them.")
    for name in given:
        if name not in known:
            meant = _meant(name, known)
            advice = f"did you mean {meant}?" if meant else f"use one of {', '.join(known)}."
            raise UnknownArgument(f"{function}() got an unexpected keyword argument '{name}': {advice}")


def _meant(wrong: str, known: Collection[str]) -> str:
    """Return the argument that is meant by an unknown one; "" if none is close."""
    spelt = wrong.lower()
    option, _, value = OTHER_NAMES.get(f"--{spelt.replace('_', '-')}", "").removeprefix("--").partition(" ")
    name = _OF_PYTHON.get(spelt) or option.replace("-", "_") or spelt
    name = "device" if name == "on" and name not in known else name
    if name in known:
        return f'{name}="{value}"' if value else f"{name}="
    return next((f"{close}=" for close in difflib.get_close_matches(spelt, known, 1)), "")
