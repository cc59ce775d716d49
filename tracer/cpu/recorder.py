"""Watches a training step on the CPU and makes a `Trace` of what the same step would ask of a GPU's allocator.

A dispatch mode sees every ATen operator of the run, forwards and backwards, with its real tensors. One rule separates what a
GPU would hold from the CPU's own scratch: **a block is a storage which leaves its operator**. It is born when an operator
returns a tensor in it, and dies when Python and autograd have let go of it, which a weak reference reports at once. What a
kernel takes and gives back inside (reordered weights, im2col columns) is never seen.

What the CPU run shows otherwise than a GPU would, and what is done about it:
  - parameters never move: `hold` enters them in the order in which `model.to(device)` would;
  - under a dispatch mode autograd adds two gradients of one tensor into a third, instead of into the first: joined again;
  - cuBLAS takes its workspaces from the allocator: entered after the first product of each thread;
  - scalars (step counters) and what is computed of scalars alone stay on the host: left out.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from vramcast.tracer.convolution_workspaces import ConvolutionWorkspaces
from vramcast.tracer.convolutions import convolve, differentiate
from vramcast.tracer.cpu import as_cuda
from vramcast.tracer.cublas import lt_workspace_bytes, workspace_bytes
from vramcast.tracer.ledger import Code
from vramcast.tracer.record import Names, watch
from vramcast.tracer.temporaries import UNKNOWN_TEMPORARIES
from vramcast.tracer.trace import Action, Category, Phase, Trace

_aten = torch.ops.aten
_PRODUCTS = frozenset(
    (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addbmm, _aten.mv, _aten.addmv, _aten.dot, _aten.vdot)
)
_CONVOLUTIONS = frozenset((_aten.convolution, _aten.convolution_backward))
_UNKNOWN = frozenset(UNKNOWN_TEMPORARIES)
_RECURRENT = frozenset((_aten.mkldnn_rnn_layer, _aten.mkldnn_rnn_layer_backward))
# CUDA's kernels make the mask first.
_LAST_FIRST = frozenset((_aten.native_dropout,))
# Losses whose kernel keeps the unreduced loss until it is reduced; their third argument is the reduction (0: none).
_REDUCED_LOSSES = frozenset((_aten.mse_loss, _aten.smooth_l1_loss, _aten.huber_loss))


@dataclass(slots=True, eq=False)
class _Block:
    """A block which lives, or lived: `row` is that of its ALLOC."""

    row: int
    size_bytes: int
    forwards: int  # forward passes which had ended when it was born


def _takes_cudnn_channels_last(args: Any) -> bool:
    """Tell whether cuDNN would take a batch normalisation in its mode for channels last, for which it may want a workspace."""
    tensor, weight, training = args[0], args[1], args[5]
    is_last = suggest_memory_format(tensor) in (torch.channels_last, torch.channels_last_3d)
    return is_last and training and weight is not None and torch.bfloat16 not in (tensor.dtype, weight.dtype)


class _Convolution:
    """The card on which one convolution runs, for `tracer/convolutions.py`."""

    def __init__(self, recorder: Recorder, results: Any, op: int) -> None:
        self._recorder = recorder
        self._results = results
        self._op = op

    def begin(self, *indexes: int) -> None:
        for i in indexes:
            self._recorder._born(self._results[i], None, op=self._op)

    def ask(self, size_bytes: int) -> _Block | None:
        return self._recorder._alloc(size_bytes, None, self._op) if size_bytes else None

    def ask_workspace(self, size_bytes: int) -> _Block | None:
        return self._recorder._alloc(size_bytes, Category.WORKSPACE, self._op) if size_bytes else None

    def free(self, *blocks: _Block | None) -> None:
        for block in blocks:
            if block is not None:
                self._recorder._end(block)

    def empty_cache(self) -> None:
        self._recorder._empty_cache()


class Recorder(TorchDispatchMode):
    """Records one job on the CPU: `with recorder: run the job`, then `trace()`.

    Args:
        capability: The GPU's compute capability.
        training: Whether a step ends with the optimizer's; else with the forward pass.
        convolution_workspaces: Of the GPU's cuDNN.

    Known limitations: temporaries which only CUDA's kernels make are not seen: those of sorting and the like are counted by
    name, the small ones of reductions are not; a factory's scalar is taken for a host tensor; a tensor which a script would
    make on the host and move counts from where it is made.
    """

    def __init__(self, *, capability: tuple[int, int], training: bool, convolution_workspaces: ConvolutionWorkspaces) -> None:
        super().__init__()
        self._convolution_workspaces = convolution_workspaces
        self._cublas_bytes = workspace_bytes(capability)
        self._lt_bytes = lt_workspace_bytes(torch.__version__)
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []  # action, bytes, block, step, phase, op, module
        self._categories: dict[int, Category] = {}  # by row of the ALLOC
        self._dropped: list[int] = []  # rows
        self._blocks: dict[int, _Block | None] = {}  # by storage; None: a host tensor
        self._watched: dict[int, Any] = {}
        self._ops = Names()
        self._modules = Names()
        self._phase = Phase.BUILD
        self._training = training
        self._forwards = 0
        self._stack: list[int] = []
        self._paths: dict[int, str] = {}
        self._module_by_sequence: dict[int, int] = {}
        self._with_workspace: set[bool] = set()
        self._sum: tuple[_Block, int, int] | None = None
        self._handles: list[Any] = []
        self.steps = 0
        self.calls: dict[str, int] = {}

    # -------------------------------------------------------------------------------------------- the job's places
    def __enter__(self) -> Any:
        self._handles = watch(self._enter_module, self._leave_module, self._before_step, self._after_step)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def hold(self, model: torch.nn.Module) -> None:
        """Enter the parameters and buffers of `model` as blocks, in the order in which `model.to(device)` copies them."""
        for path, module in model.named_modules():
            self._paths.setdefault(id(module), path or type(module).__name__)
        for tensor in _in_order_of_moving(model, set()):
            self._born(tensor, Category.PARAMETER, op=self._ops.index("aten::to"), size_bytes=tensor.nbytes)

    def hold_inputs(self, tensors: Iterable[torch.Tensor]) -> None:
        """Enter `tensors` as the step's inputs, on the device from now on."""
        self._phase = Phase.DATA
        for tensor in tensors:
            self._born(tensor, Category.INPUT, op=self._ops.index("aten::to"), size_bytes=tensor.nbytes)

    def _enter_module(self, module: torch.nn.Module, arguments: Any) -> None:
        if not self._stack and not _in_backward():
            self._phase = Phase.FORWARD
        self._stack.append(self._modules.index(self._paths.get(id(module), type(module).__name__)))

    def _leave_module(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        name = self._modules.index(self._paths.get(id(module), type(module).__name__))
        while self._stack and self._stack.pop() != name:  # a forward which raised never comes here
            pass
        if not self._stack and not _in_backward():
            self._forwards += 1
            self.steps += not self._training

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._phase = Phase.OPTIMIZER
        self._tag(Category.GRADIENT, [p.grad for group in optimizer.param_groups for p in group["params"]])

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._tag(Category.OPTIMIZER_STATE, tree_leaves(list(optimizer.state.values())))
        self._phase = Phase.DATA
        self.steps += 1

    def _tag(self, category: Category, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            block = self._block(tensor) if isinstance(tensor, torch.Tensor) else None
            if block is not None and self._categories[block.row] != Category.PARAMETER:
                self._categories[block.row] = category

    # -------------------------------------------------------------------------------------------- operators
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = as_cuda.laid_out(func, func(*args, **(kwargs or {})))
        self._sum = None
        outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.layout == torch.strided]
        packet = func.overloadpacket
        op, in_backward = self._place(packet)
        fresh = [t for t in outputs if _key(t) not in self._blocks and t.untyped_storage().nbytes()]
        if fresh:
            given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
            on_device = any(self._block(t) is not None for t in given) if given else fresh[0].numel() > 1
            if packet in _CONVOLUTIONS and on_device:
                self._convolve(packet, args, result, op, in_backward)
            else:
                self._results(packet, args, fresh, op, on_device)
            if func is _aten.add.Tensor and on_device and (in_backward or as_cuda.in_attention()):
                self._joins(fresh[0], given, not in_backward)
        if packet in _PRODUCTS:
            self._take_workspaces(packet, args, op, in_backward)
        elif packet in _RECURRENT:
            self._count("recurrent layer")
        elif packet is _aten.native_batch_norm and _takes_cudnn_channels_last(args):
            self._count(Code.CHANNELS_LAST_NORM)
        elif packet is _aten._scaled_dot_product_flash_attention_for_cpu_backward:
            self._attention_temporaries(args[1], args[0], op)
        elif packet in _UNKNOWN and fresh and on_device:
            self._count(f"temporaries of {packet}")
        return result

    def _results(self, packet: Any, args: Any, fresh: list[torch.Tensor], op: int, on_device: bool) -> None:
        """Enter an operator's new storages, and what the kernel takes inside."""
        sizes = _inner_bytes(packet, args) if on_device else []
        inner = [self._alloc(size_bytes, None, op) for size_bytes in sizes]
        for tensor in reversed(fresh) if packet in _LAST_FIRST else fresh:
            if on_device:
                self._born(tensor, None, op=op)
            else:
                self._watch(tensor, None)
        for block in inner:
            self._end(block)

    def _convolve(self, packet: Any, args: Any, result: Any, op: int, in_backward: bool) -> None:
        """Enter a convolution's results, copies and workspaces in the order of CUDA's."""
        if packet is _aten.convolution:
            results = (result,)
            convolve(_Convolution(self, results, op), self._convolution_workspaces, args, results, thread=in_backward)
        else:
            differentiate(_Convolution(self, result, op), self._convolution_workspaces, args, thread=in_backward)

    def _place(self, packet: Any) -> tuple[int, bool]:
        """Return the operator's name and whether autograd's engine runs it; notes which module a forward node belongs to."""
        if not _in_backward():
            if self._phase == Phase.OPTIMIZER:
                return self._ops.index("Optimizer.step"), False
            if self._stack:
                # Autograd has made the operator's node by now, and given it the number before the next one.
                self._module_by_sequence[torch._C._autograd._get_sequence_nr() - 1] = self._stack[-1]
            return self._ops.index(f"aten::{packet.__name__}"), False
        self._phase = Phase.BACKWARD
        node = torch._C._current_autograd_node()
        return self._ops.index(node.name() if node is not None else f"aten::{packet.__name__}"), True

    def _module(self) -> int:
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node() if _in_backward() else None
        return self._module_by_sequence.get(node._sequence_nr(), -1) if node is not None else -1

    def _take_workspaces(self, packet: Any, args: Any, op: int, in_backward: bool) -> None:
        self._count("product")
        if in_backward not in self._with_workspace:  # autograd's thread has a handle of its own
            self._with_workspace.add(in_backward)
            self._alloc(self._cublas_bytes, Category.WORKSPACE, op)
        if packet is _aten.addmm and args[0].dim() == 1 and not in_backward and self._lt_bytes:
            self._alloc(self._lt_bytes, Category.WORKSPACE, op)
            self._lt_bytes = 0  # taken once

    def _attention_temporaries(self, query: torch.Tensor, gradient: torch.Tensor, op: int) -> None:
        """Enter what CUDA's backward kernel takes besides its results.

        measured: null GPU, torch 2.11. Memory-efficient kernel (float32): gradient x output, their sum over the last dimension
        twice, then an accumulator in float32 with 32 B for each head of each sample. Flash kernel (half precision): a sum and
        an accumulator in float32, rows in steps of 128 and columns in steps of 32.
        """
        heads = query.shape[0] * query.shape[1]
        if query.dtype == torch.float32:
            rows_bytes = heads * query.shape[2] * 4
            product, *sums = (self._alloc(n, None, op) for n in (gradient.nbytes, rows_bytes))
            self._end(product)
            sums.append(self._alloc(rows_bytes, None, op))
            self._end(sums[0])
            accumulator = self._alloc(rows_bytes * query.shape[3] + 32 * heads, None, op)
            self._end(accumulator)
            self._end(sums[1])
            return
        rows_bytes = heads * -(-query.shape[2] // 128) * 128 * 4
        blocks = [self._alloc(n, None, op) for n in (rows_bytes, rows_bytes * -(-query.shape[3] // 32) * 32)]
        for block in blocks:
            self._end(block)

    def _count(self, what: str) -> None:
        self.calls[what] = self.calls.get(what, 0) + 1

    # -------------------------------------------------------------------------------------------- blocks
    def _block(self, tensor: torch.Tensor) -> _Block | None:
        return self._blocks.get(_key(tensor)) if tensor.layout == torch.strided else None

    def _born(self, tensor: torch.Tensor, category: Category | None, *, op: int, size_bytes: int | None = None) -> None:
        size_bytes = tensor.untyped_storage().nbytes() if size_bytes is None else size_bytes
        if size_bytes:
            self._watch(tensor, self._alloc(size_bytes, category, op))

    def _alloc(self, size_bytes: int, category: Category | None, op: int) -> _Block:
        block = _Block(len(self._rows), size_bytes, self._forwards)
        self._row(Action.ALLOC, block, op)
        self._categories[block.row] = Category.TEMPORARY if category is None else category
        return block

    def _row(self, action: Action, block: _Block, op: int) -> None:
        module = self._module() if action == Action.ALLOC else -1
        self._rows.append((action, block.size_bytes, block.row, self.steps, self._phase, op, module))

    def _empty_cache(self) -> None:
        self._rows.append((Action.EMPTY_CACHE, 0, -1, self.steps, self._phase, -1, -1))

    def _watch(self, tensor: torch.Tensor, block: _Block | None) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        self._blocks[key] = block
        self._watched[key] = weakref.ref(storage, lambda _: self._died(key))

    def _died(self, key: int) -> None:
        del self._watched[key]
        block = self._blocks.pop(key)
        if block is None:
            return
        if self._sum is not None and key == self._sum[1]:
            total, _, of = self._sum
            self._sum = None
            # The engine would have added into this block: the sum's own never was.
            self._dropped.append(total.row)
            self._blocks[of] = block
            return
        self._end(block)

    def _end(self, block: _Block) -> None:
        self._settle(block)
        for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            self._row(action, block, -1)

    def _settle(self, block: _Block) -> None:
        """Call a block of the forward pass which outlived that pass an activation."""
        born_forward = self._rows[block.row][4] == Phase.FORWARD and self._forwards > block.forwards
        if born_forward and self._categories[block.row] == Category.TEMPORARY:
            self._categories[block.row] = Category.ACTIVATION

    def _joins(self, total: torch.Tensor, given: list[torch.Tensor], of_attention: bool) -> None:
        """Remember a sum which the engine made of two gradients: if the first dies with it, the sum lies in its block.

        A view never takes the sum: its base holds the storage too.
        """
        block, first = self._block(total), self._block(given[0])
        assert block is not None
        if first is not None and first.size_bytes == block.size_bytes and (of_attention or not given[0]._is_view()):
            self._sum = (block, _key(given[0]), _key(total))

    # -------------------------------------------------------------------------------------------- the trace
    def trace(self, header: dict[str, Any]) -> Trace:
        """Return what was recorded."""
        for block in self._blocks.values():
            if block is not None:
                self._settle(block)
        n = len(self._rows)
        names = ("action", "size_bytes", "block", "step", "phase", "op", "module")
        table = np.array(self._rows, np.int64).reshape(-1, len(names))
        category = np.full(n, Category.UNKNOWN)
        category[list(self._categories)] = list(self._categories.values())
        kept = np.ones(n, bool)
        kept[self._dropped] = False
        columns: dict[str, Any] = dict(zip(names, table[kept].T, strict=True))
        columns["category"] = category[kept]
        columns["block"] = np.where(columns["block"] < 0, -1, (np.cumsum(kept) - 1)[columns["block"]])
        # What comes after the last step still belongs to it.
        columns["step"] = np.where(columns["phase"] == Phase.BUILD, -1, np.minimum(columns["step"], max(self.steps - 1, 0)))
        return Trace.build(columns, ops=self._ops.names, modules=self._modules.names, header=header)


def _inner_bytes(packet: Any, args: Any) -> list[int]:
    """Return the sizes of what CUDA's kernel of an operator takes inside, where it is as large as a tensor.

    Normalization copies what is not contiguous; losses are reduced from all their terms.
    """
    if packet in _REDUCED_LOSSES:
        return [args[0].nbytes] if len(args) < 3 or args[2] != 0 else []
    if packet is _aten.native_layer_norm or packet is _aten.native_layer_norm_backward:
        tensors = args[:1] if packet is _aten.native_layer_norm else args[:2]
        return [t.nbytes for t in tensors if not t.is_contiguous()]
    return []


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _in_order_of_moving(module: torch.nn.Module, seen: set[int]) -> Iterable[torch.Tensor]:
    """Yield parameters and buffers once each: those of the children first, as `Module._apply` goes."""
    for child in module.children():
        yield from _in_order_of_moving(child, seen)
    for tensor in [*module._parameters.values(), *module._buffers.values()]:
        if tensor is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
