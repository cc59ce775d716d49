"""Saved tensors on the host between the forward and the backward pass, by a plan: hooks on autograd's saved tensors.

    pack     a tensor is saved: if its storage is planned, it is copied to the host on a stream of its own
    leave    at a planned call, the main stream waits for that copy, and the block is dropped
    return   at a planned unpack, a block is requested, and the copy back begins on a second stream
    unpack   the main stream waits for the copy back

The order of requests and frees depends only on the order of the calls, never on the speed of the copies. So a job that is
traced with its hooks makes the same requests on the card. Storages are numbered as they are first saved in a round, which ends
with the backward pass. Nothing is moved in a round of other sizes than planned.

Left alone: tensors on streams other than the default one, inside CUDA graphs and compiled code, of other devices, and of
tensor subclasses.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from vramcast.tracer.protocol.swap_rounds import SavedEvent, SavedMove, SavedRound

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


class SwapHooks:
    """The hooks of one process.

    Args:
        rounds: The plan; without rounds, the hooks only note.
        device: Type of the device; on `cpu`, copies are made at once.
        note: Called for each event.

    Example:
        >>> hooks = SwapHooks([SavedRound(size_bytes=(4096,))], device="cpu")
        >>> with hooks.installed():
        ...     loss = torch.ones(1024, requires_grad=True).exp().sum()
        >>> loss.backward()
    """

    def __init__(
        self, rounds: Sequence[SavedRound], *, device: str = "cuda", note: Callable[[SavedEvent], None] | None = None
    ) -> None:
        self._rounds, self._device, self._note = tuple(rounds), device, note
        self._round = _Round(0, self._rounds)
        self._copier: _Copier | None = None

    def installed(self) -> AbstractContextManager[object]:
        """Return a context in which this thread's saved tensors pass through the hooks; its graphs may outlive it."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: torch.Tensor) -> object:
        """Return what autograd keeps instead of `tensor`."""
        if torch.compiler.is_compiling():
            return tensor
        if self._round.n_unpacked:
            self._round = _Round(self._round.number + 1, self._rounds)
        # Autograd would not free a graph in which a node holds its own output with its history.
        packed = _Packed(self._round, tensor.detach(), tensor._version)
        if self._is_movable(tensor):
            self._save(packed)
        return packed

    def _is_movable(self, tensor: torch.Tensor) -> bool:
        if type(tensor) not in _PLAIN or tensor.device.type != self._device or tensor.layout != torch.strided:
            return False
        if tensor.is_conj() or tensor.is_neg() or not tensor.untyped_storage().nbytes():
            return False
        if self._copier is None:
            self._copier = _Copier(tensor.device)
        return self._copier.serves(tensor.device)

    def _save(self, packed: _Packed) -> None:
        this, tensor = packed.round, packed.tensor
        assert tensor is not None
        assert self._copier is not None
        this.leave()
        this.n_packed += 1
        storage = tensor.untyped_storage()
        ref = StorageWeakRef(storage)
        entry = this.entries.get(ref)
        if entry is None:
            entry = this.entries[ref] = _Entry(len(this.entries), packed.version)
            move = this.move(entry.number, storage.nbytes())
            if move is not None:
                swapped = _Swapped(self._copier, storage)
                packed.swapped = swapped  # the graph alone holds it
                entry.swapped = weakref.ref(swapped)
                this.leaving.append((move.leaves, entry))
                this.returning.setdefault(move.returns, []).append(entry)
        elif entry.version == packed.version and entry.swapped is not None:
            packed.swapped = entry.swapped()
        packed.number = entry.number
        if self._note is not None:
            self._note(SavedEvent("pack", this.number, entry.number, storage.nbytes(), storage.data_ptr()))
        if packed.swapped is not None:
            packed.shape = tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()
            packed.tensor = None

    def unpack(self, packed: Any) -> torch.Tensor:
        """Return the tensor that autograd saved.

        Raises:
            RuntimeError: It was changed in place since then.
        """
        if not isinstance(packed, _Packed):
            return cast("torch.Tensor", packed)
        if packed.number >= 0:
            self._back(packed.round, packed.number)
        if packed.swapped is not None:
            return packed.swapped.view(*packed.shape)
        assert packed.tensor is not None
        if packed.tensor._version != packed.version:
            raise RuntimeError(
                "A tensor that the backward pass needs was changed by an in-place operation after it was saved: "
                f"shape {tuple(packed.tensor.shape)}, version {packed.tensor._version}, saved at version {packed.version}."
            )
        return packed.tensor

    def _back(self, this: _Round, number: int) -> None:
        if not this.n_unpacked and self._note is not None:
            for kept in this.kept():
                self._note(SavedEvent("kept", this.number, kept, 0, 0))
        this.leave()
        for entry in this.returning.pop(this.n_unpacked, ()):
            if (swapped := entry.alive()) is not None:
                swapped.fetch()
        this.n_unpacked += 1
        if self._note is not None:
            self._note(SavedEvent("unpack", this.number, number, 0, 0))


@dataclass(slots=True)
class _Packed:
    """One saved tensor as autograd keeps it: the tensor, or its place in a swapped storage."""

    round: _Round
    tensor: torch.Tensor | None
    version: int
    swapped: _Swapped | None = None
    number: int = -1
    shape: tuple[Any, ...] = ()


@dataclass(slots=True)
class _Entry:
    """A storage saved in a round, with the version that was saved first."""

    number: int
    version: int
    swapped: weakref.ref[_Swapped] | None = None

    def alive(self) -> _Swapped | None:
        return None if self.swapped is None else self.swapped()


@dataclass(slots=True)
class _Round:
    """The state of a forward and backward pass."""

    number: int
    plans: Sequence[SavedRound]  # those that agree with the storages so far
    n_packed: int = 0
    n_unpacked: int = 0
    entries: dict[StorageWeakRef, _Entry] = field(default_factory=dict)
    leaving: list[tuple[int, _Entry]] = field(default_factory=list)
    returning: dict[int, list[_Entry]] = field(default_factory=dict)

    def move(self, number: int, size_bytes: int) -> SavedMove | None:
        """Return the planned move of a new storage."""
        self.plans = [plan for plan in self.plans if plan.size_bytes[number : number + 1] == (size_bytes,)]
        moves = self.plans[0].moves if self.plans else ()
        return next((move for move in moves if move.saved == number), None)

    def leave(self) -> None:
        """Drop the blocks that leave at this call."""
        at, staying = self.n_packed + self.n_unpacked, []
        for leaves, entry in self.leaving:
            if leaves > at:
                staying.append((leaves, entry))
            elif (swapped := entry.alive()) is not None:
                swapped.leave()
        self.leaving = staying

    def kept(self) -> list[int]:
        """Return the storages that have left, but that others than autograd hold."""
        left = [
            (ref, entry) for ref, entry in self.entries.items() if (swapped := entry.alive()) is not None and swapped.has_left
        ]
        return [entry.number for ref, entry in left if not ref.expired()]


class _Swapped:
    """A storage that is copied to the host; when autograd's last reference goes, so do its block and its buffer."""

    def __init__(self, copier: _Copier, storage: torch.UntypedStorage) -> None:
        self._copier = copier
        self._size_bytes = storage.nbytes()
        self._flat: torch.Tensor | None = copier.bytes_of(storage)
        self._host, free = copier.buffer(self._size_bytes)
        self._copied = copier.copy(self._host, self._flat, out=True, after=free)
        self._is_back = False

    @property
    def has_left(self) -> bool:
        return self._flat is None

    def leave(self) -> None:
        """Let the main stream wait for the copy, and drop the block."""
        self._copier.wait(self._copied)
        self._flat = None

    def fetch(self) -> None:
        """Begin the copy back, unless the block is here."""
        if self._flat is None:
            self._flat, self._is_back = self._copier.block(self._size_bytes), True
            self._copied = self._copier.copy(self._flat, self._host, out=False)

    def view(self, dtype: torch.dtype, offset: int, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """Return a tensor in the block; the main stream waits until it is back."""
        self.fetch()
        assert self._flat is not None
        if self._is_back:
            self._copier.wait(self._copied)
        empty = torch.empty(0, dtype=dtype, device=self._flat.device)
        return empty.set_(self._flat.untyped_storage(), offset, tuple(shape), tuple(stride))

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        self._copier.wait(self._copied)  # the graph may be dropped during a copy
        self._copier.give_back(self._host, self._copied)


class _Copier:
    """Copies between a device and the host: a stream in each direction, and pinned buffers that are used again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._buffers: dict[int, list[tuple[torch.Tensor, Any]]] = {}
        if self._is_cuda:
            self._main = torch.cuda.default_stream(device)
            self._streams = {out: torch.cuda.Stream(device) for out in (True, False)}

    def serves(self, device: torch.device) -> bool:
        """Return whether storages of `device` can be copied now."""
        if not self._is_cuda:
            return True
        is_main = device == self._device and torch.cuda.current_stream(device) == self._main
        return is_main and not torch.cuda.is_current_stream_capturing()

    def bytes_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a tensor of all bytes of a storage."""
        return torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)

    def block(self, size_bytes: int) -> torch.Tensor:
        """Return a new block of the main stream."""
        if not self._is_cuda:
            return torch.empty(size_bytes, dtype=torch.uint8)
        with torch.cuda.stream(self._main):
            return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def buffer(self, size_bytes: int) -> tuple[torch.Tensor, Any]:
        """Return a host buffer, and the event after which it may be written."""
        if free := self._buffers.get(size_bytes):
            return free.pop()
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=self._is_cuda), None

    def give_back(self, buffer: torch.Tensor, event: Any) -> None:
        """Keep a buffer for the next copy of its size."""
        self._buffers.setdefault(buffer.numel(), []).append((buffer, event))

    def copy(self, target: torch.Tensor, source: torch.Tensor, *, out: bool, after: Any = None) -> Any:
        """Copy behind the work of the main stream so far, and behind the event `after`; return the event of its end."""
        if not self._is_cuda:
            target.copy_(source)
            return None
        stream = self._streams[out]
        stream.wait_stream(self._main)
        if after is not None:
            stream.wait_event(after)
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return stream.record_event()

    def wait(self, event: Any) -> None:
        """Let the main stream wait for a copy."""
        if event is not None:
            self._main.wait_event(event)
