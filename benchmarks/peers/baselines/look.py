"""A job's network for the baselines: one forward and backward pass on torch's fake tensors.

vramcast does not estimate like this: the pass has no kernel temporaries, no allocator, and no optimizer. The tensors are on
the host: if a GPU has a kernel of its own (attention), the live tensors may differ. Attention masks are left out, because a
fake one cannot be read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.peers.authors.architectures import Layer
from benchmarks.peers.baselines.network import Network, Tensor
from vramcast.core.errors import JobError, VramcastError
from vramcast.jobs.job import Job, TensorSpec, map_batch
from vramcast.tracer.program import model_program

_MASKS: Final = ("attention_mask", "decoder_attention_mask")
_BLOCK_NAMES: Final = ("DecoderLayer", "Block")  # spec: LLMem's repository, size_estimator.py


def look(job: Job) -> Network:
    """Return the network of a job that trains a model (not a script).

    Raises:
        UsageError, JobError: the model cannot be built, or cannot run on fake tensors.
    """
    model = model_program.build_model(job)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    _fake(model, fake)
    layers: list[Layer] = []
    blocks: list[int] = []
    try:
        with fake:
            inputs, labels = _batch(job.batch), _batch(job.labels)
            if isinstance(inputs, dict):
                inputs = {name: value for name, value in inputs.items() if name not in _MASKS}
            leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
            batch_size = max(int(leaves[0].shape[0]), 1) if leaves and leaves[0].dim() else 1
            _watch_modules(model, batch_size, layers, blocks)
            weights = list(model.parameters())
            with _Recorder(weights, [*model.buffers(), *leaves]) as recorder:
                output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
                loss = model_program.default_loss(output, labels)
                recorder.is_forward = False
                loss.backward()  # type: ignore[no-untyped-call]
    except VramcastError:
        raise
    except Exception as error:  # the model's own code may raise anything: this job is not for the baselines
        raise JobError(f"The model does not run on fake tensors: {type(error).__name__}: {str(error)[:200]}") from error
    scores = model_program.first_float(output)
    is_decoder = not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return Network(
        batch_size,
        tuple(layers),
        sum(weight.numel() for weight in weights),
        input_bytes=sum(leaf.nbytes for leaf in leaves),
        weight_bytes=tuple(weight.nbytes for weight in weights),
        buffer_bytes=sum(buffer.nbytes for buffer in model.buffers()),
        tensors=tuple(recorder.tensors),
        fake_peak_bytes=recorder.peak_bytes,
        blocks_bytes=tuple(blocks) if is_decoder else (),
        logits_bytes=scores.nbytes if scores is not None else None,
    )


def _fake(model: nn.Module, fake: FakeTensorMode) -> None:
    """Make the model's parameters and buffers fake; shared tensors stay shared."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    if id(tensor) not in made:
                        made[id(tensor)] = fake.from_tensor(tensor)
                    tensors[name] = made[id(tensor)]


def _batch(batch: Any) -> Any:
    def make(leaf: Any) -> Any:
        if not isinstance(leaf, TensorSpec):
            return leaf
        return torch.empty(leaf.shape, dtype=getattr(torch, leaf.dtype))

    return map_batch(batch, make)


def _watch_modules(model: nn.Module, batch_size: int, layers: list[Layer], blocks: list[int]) -> None:
    """Make every module without children add its line to `layers`, every block of a transformer its input to `blocks`."""
    counted: set[int] = set()

    def layer(module: nn.Module, _: Any, output: Any) -> None:
        elements = sum(leaf.numel() for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) not in counted]
        counted.update(map(id, own))
        layers.append(Layer(type(module).__name__, elements // batch_size, sum(parameter.numel() for parameter in own)))

    def block(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        blocks.append(next((leaf.nbytes for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)), 0))

    for module in model.modules():
        if not any(module.children()):
            module.register_forward_hook(layer)
        elif any(name in type(module).__name__ for name in _BLOCK_NAMES):
            module.register_forward_pre_hook(block)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of the bytes of all live storages; it also lists the results of the forward pass."""

    def __init__(self, weights: list[nn.Parameter], others: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[Tensor] = []
        self.is_forward = True
        self.live_bytes = self.peak_bytes = 0
        self._number: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._weight = {weight.untyped_storage()._cdata: number for number, weight in enumerate(weights)}
        for tensor in [*weights, *others]:
            self._born(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        read = [leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        inputs = tuple(dict.fromkeys(self._number[key] for key in read if key in self._number))
        weights = tuple(dict.fromkeys(self._weight[key] for key in read if key in self._weight))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and self._born(leaf) and self.is_forward:
                self._number[leaf.untyped_storage()._cdata] = len(self.tensors)
                self.tensors.append(Tensor(leaf.untyped_storage().nbytes(), inputs, weights))
        return output

    def _born(self, tensor: torch.Tensor) -> bool:
        """Count a new storage; return whether it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return False
        self._alive[key] = weakref.ref(storage, self._death(key, storage.nbytes()))
        self.live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return True

    def _death(self, key: int, size_bytes: int) -> Callable[[object], None]:
        def die(_: object) -> None:
            self.live_bytes -= size_bytes
            del self._alive[key]
            self._number.pop(key, None)

        return die
