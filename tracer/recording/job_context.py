"""Job facts that the trace lacks (precision, batch size), observed while the job runs.

A script does not declare its batch or its precision, and a caller's description may differ from the job (a model may be
built in half precision by its own configuration). So all tracers observe the job, and the results travel in the trace's
header.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from vramcast.tracer.hooks.torch_api import current_graph_task_id, tree_leaves

_HALF: Final = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class Observer:
    """An observer of the job that runs inside the `with` block; `seen()` is plain JSON.

    The inputs and the precision are those of the first completed call of a module with parameters: transforms of a script's
    data loader have none, and a first attempt may find the card full and leave nothing of its model.
    """

    def __init__(self) -> None:
        self._model: Callable[[], torch.nn.Module | None] = lambda: None
        self._inputs: dict[str, Any] = {}
        self._checkpoints = False
        self._handles: list[Any] = []

    def __enter__(self) -> Observer:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, with_kwargs=True),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def seen(self) -> dict[str, Any]:
        """Return `batch_size` and `input_elements` (0: no tensor), `precision` as in `Job`, and the switches."""
        return {
            "batch_size": 0,
            "input_elements": 0,
            "precision": "fp32",
            "channels_last": False,
            **self._inputs,
            "checkpointing": self._checkpoints,
            "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        }

    def _enter(self, module: torch.nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling():  # as in the recorder: hooks are compiled with the model
            return
        if not self._inputs and self._model() is None:
            if next(module.parameters(), None) is not None:
                self._model = weakref.ref(module)
        elif current_graph_task_id() != -1:  # a module inside a backward pass runs for a second time
            self._checkpoints = True

    def _leave(self, module: torch.nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self._inputs or module is not self._model():
            return
        tensors = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, torch.Tensor)]
        self._inputs = {
            "batch_size": int(tensors[0].shape[0]) if tensors and tensors[0].dim() else 0,
            "input_elements": sum(int(tensor.numel()) for tensor in tensors),
            "precision": _precision(module),
            "channels_last": any(_is_channels_last(tensor) for tensor in tensors),
        }


def _precision(model: torch.nn.Module) -> str:
    """Return a model's precision, as in `Job`: from autocast if that is on, otherwise the type of its first parameter."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return f"amp-{_HALF.get(torch.get_autocast_dtype(device), 'bf16')}"
    return _HALF.get(next(model.parameters()).dtype, "fp32")


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )
