"""Follows the values of small tensors through a job on a card which computes nothing.

Every call of PyTorch's Python functions whose arguments are known is made twice: on the host's copies, and on the card as
ever. What the host's run read in between (a count of ones, an `.item()`) is what the card's C++ code is told when it reads.
So `mask.all()`, `nonzero()` and loops over them go the way which they would go on a GPU, and PyTorch's own code asks for the
memory. What depends on weights or activations is unknown; where a shape depends on it, it is drawn (`draws.py`) and counted.

    attention_mask   known: it came from the host
    mask.all()       known: True                          -> bool() is told True
    scores.topk(2)   drawn scores                         -> one_hot(...).sum(0).nonzero() is told a plausible count

Known limitations: only calls from Python are seen, not C++ operators inside one call on unknown values, vmap, nor compiled
graphs; tensors above `shadows.MAX_ELEMENTS` are not followed; nn.MultiheadAttention leaves its fast path while any
function mode is active (inference only).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from vramcast.tracer.hollow import BIG_BYTES
from vramcast.tracer.result import DRAWN, LedgerEntry
from vramcast.tracer.tensors import tensors_in
from vramcast.tracer.values import draws
from vramcast.tracer.values.reads import ReadLog, count, masks, numbers, raw, repeated, selected
from vramcast.tracer.values.shadows import MAX_ELEMENTS, Shadows, followed

# Calls which tell nothing of values, or are no business of a copy.
_PASSED = frozenset({
    "__get__", "__set__", "__delete__", "__len__", "__repr__", "__format__", "__hash__", "__reduce_ex__", "__deepcopy__",
    "__dlpack__", "data_ptr", "detach_", "dim", "element_size", "empty", "empty_like", "empty_strided", "get_device",
    "is_complex", "is_contiguous", "is_floating_point", "is_pinned", "is_shared", "ndimension", "nelement", "new_empty",
    "numel", "numpy", "pin_memory", "record_stream", "register_hook", "requires_grad_", "retain_grad", "set_",
    "share_memory_", "size", "storage", "storage_offset", "stride", "untyped_storage",
})  # fmt: skip
# Calls whose plain Python result is a value of the card.
_SCALARS = frozenset({
    "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "equal", "allclose",
    "is_nonzero",
})  # fmt: skip
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_MAX_DRAWN_READS = 1000  # arbitrary: a loop until convergence would never end; from here on it reads zeros
_COPIES = frozenset({"cpu", "to", "tolist", "copy_", "type"})


class Card(Protocol):
    """Whoever answers when C++ code reads from the card."""

    def know(self, reads: list[bytes]) -> int:
        """Say what the next reads give; return how many answers of the last call nobody took, which are forgotten."""


class Values(TorchFunctionMode):
    """While active, values are followed.

    Args:
        card: Is told the answers of reads.
        on_card: Whether a tensor lies on the card.
        devices: Types of device which stand for the card.

    Attributes:
        drawn: How often a shape depended on a value which was drawn, by the name of the call.
        reads: How often a single number was read which was drawn, or made of drawn ones.
        call: The name of the call which is made on the card now.
    """

    def __init__(
        self, card: Card, *, on_card: Callable[[torch.Tensor], bool] | None = None, devices: tuple[str, ...] = ("cuda",)
    ) -> None:
        super().__init__()
        self.drawn: Counter[str] = Counter()
        self.reads = 0
        self.call = ""
        self._card = card
        self._on_card = on_card or (lambda tensor: tensor.is_cuda)
        self._devices = devices
        self._shadows = Shadows()
        self._left = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name: str = getattr(func, "__name__", "")
        if func in _BACKWARD:
            return self._backward(func, args, kwargs)
        if name in _PASSED or torch._C._functorch.peek_interpreter_stack() is not None:
            return func(*args, **kwargs)
        if draws.is_computing(name):
            return func(*args, **kwargs)
        tensors = tensors_in(args, kwargs)
        if not (any(map(self._on_card, tensors)) or name == "cuda" or self._names_card(args, kwargs)):
            return func(*args, **kwargs)
        call = _Call(self, func, name, args, kwargs, tensors)
        if not call.known or name == "_grouped_mm":  # a product, but told its offsets
            return self._unknown(call)
        return self._known(call)

    def ledger(self) -> list[LedgerEntry]:
        """Return what was drawn, for the job's account."""
        entries = [LedgerEntry("assumed", f"{DRAWN} {name}", hits, 0) for name, hits in sorted(self.drawn.items())]
        return entries + ([LedgerEntry("drawn", "single numbers", self.reads, 0)] if self.reads else [])

    def leave(self) -> None:
        """Follow nothing from here on; the `with` which entered may still end."""
        if torch.overrides._get_current_function_mode_stack()[-1:] == [self]:
            super().__exit__(None, None, None)
            self._left = True

    def __exit__(self, *error: Any) -> None:
        if not self._left:
            super().__exit__(*error)

    def _backward(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a backward pass with this mode active inside the engine: a checkpointed forward runs again there."""
        autograd: Any = torch.autograd
        run = autograd._engine_run_backward

        def run_followed(*args: Any, **kwargs: Any) -> Any:
            with self:
                return run(*args, **kwargs)

        autograd._engine_run_backward = run_followed
        try:
            return func(*args, **kwargs)
        finally:
            autograd._engine_run_backward = run

    def _names_card(self, args: Any, kwargs: Any) -> bool:
        return any(self._is_card(value) for value in (*args, kwargs.get("device")))

    def _is_card(self, value: Any) -> bool:
        if isinstance(value, str):
            return value.partition(":")[0] in self._devices
        return isinstance(value, torch.device) and value.type in self._devices

    def value(self, tensor: torch.Tensor) -> tuple[torch.Tensor, bool] | None:
        """Return a host tensor with what `tensor` holds, and whether that was drawn; None when it is unknown."""
        if not followed(tensor):
            return None
        if not self._on_card(tensor):
            hollow = tensor.is_floating_point() and tensor.nbytes >= BIG_BYTES
            return None if hollow else (tensor.detach(), False)
        shadow = self._shadows.find(tensor)
        return (self._shadows.view(shadow, tensor), shadow.drawn) if shadow is not None else None

    def guess(self, name: str, args: Any, tensor: torch.Tensor, *, floats: bool) -> torch.Tensor | None:
        """Return values for an unknown tensor, and remember them; None where it stays unknown."""
        if not followed(tensor) or not self._on_card(tensor):
            return None
        drawn = draws.draw(name, args, tensor, floats=floats)
        if drawn is not None:
            self._shadows.keep(tensor, drawn, drawn=True)
        return drawn

    # -------------------------------------------------------------------------------------------- the two runs
    def _known(self, call: _Call) -> Any:
        try:
            with _disable_current_modes(), torch.no_grad(), torch.inference_mode(False):
                mirrored, reads = (None, None) if call.result_elements() > MAX_ELEMENTS else call.on_host()
        except Exception:  # what the host cannot do, the card may: the values are unknown then
            return self._unknown(call)
        if reads is None:
            return self._unknown(call)
        result = self._told(call, reads)
        for tensor in call.on_card:
            self._shadows.changed(tensor)
        return self._settle(call, result, mirrored)

    def _unknown(self, call: _Call) -> Any:
        """Nothing is known of the result, but perhaps how much is selected."""
        return self._told(call, call.selection())

    def _told(self, call: _Call, reads: list[bytes]) -> Any:
        """Make the call on the card, which is told `reads`."""
        outer, self.call = self.call, call.name
        try:
            if not reads or (call.drawn and call.name in _SCALARS and self.reads >= _MAX_DRAWN_READS):
                return call.func(*call.args, **call.kwargs)
            return self._reading(call, reads)
        finally:
            self.call = outer

    def _reading(self, call: _Call, reads: list[bytes]) -> Any:
        self._card.know(reads)
        try:
            result = call.func(*call.args, **call.kwargs)
        finally:
            taken = len(reads) - self._card.know([])
            if call.drawn and call.name in _SCALARS:
                self.reads += taken
            elif call.drawn and taken:
                self.drawn[call.name] += 1
        if taken:
            self._tell_backward(call, result, reads)
        return result

    def _tell_backward(self, call: _Call, result: Any, reads: list[bytes]) -> None:
        """Autograd keeps masks and offsets, and reads them again."""
        if call.name == "_grouped_mm":
            tensor, reads = result, 2 * reads  # for the gradient of each factor
        elif call.name in ("__getitem__", "__setitem__") and masks(call.args[1]):
            tensor, reads = result if call.name == "__getitem__" else call.args[0], reads[-len(masks(call.args[1])) :]
        else:
            return
        if tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(lambda gradients: self._tell(reads))
            tensor.grad_fn.register_hook(lambda inputs, outputs: self._tell([]))

    def _tell(self, reads: list[bytes]) -> None:
        self._card.know(reads)

    def _settle(self, call: _Call, result: Any, mirrored: Any) -> Any:
        if call.name in _SCALARS:
            lasting = not call.drawn or self.reads < _MAX_DRAWN_READS
            return mirrored if lasting and type(mirrored) is type(result) else result
        ours, theirs = tree_flatten(result)[0], tree_flatten(mirrored)[0]
        if len(ours) != len(theirs):
            return result
        with torch.no_grad():
            for tensor, value in zip(ours, theirs, strict=True):
                if not isinstance(tensor, torch.Tensor) or not isinstance(value, torch.Tensor):
                    continue
                if not self._on_card(tensor):
                    if tensor.shape == value.shape and call.name in _COPIES:
                        tensor.copy_(value)
                else:
                    self._shadows.keep(tensor, value, drawn=call.drawn)
        return result


class _Call:
    """One call, with its arguments as the host has them."""

    def __init__(self, values: Values, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> None:
        self.func = func
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.drawn = False
        self._values = values
        self._host: dict[int, torch.Tensor] = {}
        self.on_card = [t for t in tensors if values._on_card(t)]
        floats = draws.is_deciding(name, args)
        unknown = []
        for tensor in tensors:
            found = values.value(tensor)
            if found is None:
                unknown.append(tensor)
            else:
                self._host[id(tensor)] = found[0]
                self.drawn |= found[1]
                floats |= tensor.numel() > 1 and not isinstance(tensor, torch.nn.Parameter)
        for tensor in unknown:
            guess = values.guess(name, args, tensor, floats=floats)
            if guess is not None:
                self._host[id(tensor)] = guess
                self.drawn = True
        self.known = all(id(t) in self._host for t in tensors)

    def result_elements(self) -> int:
        """Return the size of the largest result, as far as shapes tell it."""

        def meta(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            return torch.device("meta") if self._values._is_card(value) else value

        if self.name == "cuda":
            return 0
        try:
            results = self.func(*tree_map(meta, self.args), **tree_map(meta, self.kwargs))
        except Exception:  # its shape depends on values: it is no larger than what it is taken from
            return 0
        return max((t.numel() for t in tree_flatten(results)[0] if isinstance(t, torch.Tensor)), default=0)

    def on_host(self) -> tuple[Any, list[bytes]]:
        """Make the call on the host; return its result, and what the card's C++ code will read."""
        writes = self.name.endswith("_") or self.name == "__setitem__"

        def host(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                known = self._host[id(value)]
                return known.clone() if writes and not self._values._on_card(value) else known
            return "cpu" if self._values._is_card(value) else value

        func = torch.Tensor.clone if self.name == "cuda" else self.func
        args = tree_map(host, self.args[:1] if self.name == "cuda" else self.args)
        kwargs = {k: tree_map(host, v) for k, v in self.kwargs.items() if k not in ("generator", "pin_memory", "non_blocking")}
        if self.name == "cuda":
            kwargs = {}
        elif isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        counts_integers = self.name == "histc" and not args[0].is_floating_point()
        if counts_integers:  # the host's kernel takes floats only
            args = (args[0].double(), *args[1:])
        with ReadLog() as log:
            result = func(*args, **kwargs)
        if counts_integers:
            result = result.to(self.args[0].dtype)
        reads = log.reads
        if self.name == "one_hot":  # the host also looks whether the numbers are in range
            reads = reads[-1:] if self.kwargs.get("num_classes", self.args[1] if len(self.args) > 1 else -1) == -1 else []
        if self.name in _COPIES:
            reads = [*reads, raw(result if isinstance(result, torch.Tensor) else args[0])]
        return result, reads

    def selection(self) -> list[bytes]:
        """Return the counts which are read although what is selected from, or written there, is unknown."""
        if self.name == "masked_select":
            mask = self._host.get(id(self.args[1]))
            shape = torch.broadcast_shapes(self.args[0].shape, self.args[1].shape)
            return [] if mask is None else [count(int(mask.expand(shape).count_nonzero()))]
        if self.name == "repeat_interleave":
            repeats = self._host.get(id(self.args[1])) if len(self.args) > 1 else None
            return [] if repeats is None or "output_size" in self.kwargs else repeated(repeats)
        if self.name == "_grouped_mm":
            offsets = self._host.get(id(self.kwargs.get("offs")))
            return [] if offsets is None else [raw(offsets)]
        if self.name in ("__getitem__", "__setitem__"):
            return self._indexing()
        return []

    def _indexing(self) -> list[bytes]:
        single, chosen = numbers(self.args[1]), masks(self.args[1])
        if all(id(i) in self._host for i in (*single, *chosen)):
            return [*(raw(self._host[id(n)]) for n in single), *selected([self._host[id(m)] for m in chosen])]
        written = self.args[2] if self.name == "__setitem__" else None
        # As many rows are chosen as are written: else the job would not run.
        return [count(written.shape[0])] if isinstance(written, torch.Tensor) and written.dim() and len(chosen) == 1 else []
