"""Simulated peers: this process is one rank of many, and the others are absent.

PyTorch's own process groups run, over the null NCCL, where collectives do nothing. Absent ranks follow one rule: each of them
does the same as this rank, unless a rank that ran earlier recorded its messages (`Tape`).

    the store              waits end at once; keys of absent ranks: `AbsentStore`
    collectives of objects every rank's object is this rank's. Broadcast, scattered or sent objects come from the tape, recorded
                           by that rank or, if it did not run, by the one at its place in another group of equal size
    small tensors          broadcast or sent data comes from the tape in the same way, if it is known there
    distributed checkpoint each rank writes and reads its own shards
    ranks started by the   among the processes that a script starts, the one that joins as the traced rank continues; the others
    script itself          end there
    Gloo                   PyTorch's own group of one process that stands for all (tensors on the host)

An object received from a rank that did not run earlier breaks the rule, and raises `MissingPeerValue`.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import torch

from vramcast.core.errors import MissingPeerValue
from vramcast.jobs.ranks import Rank
from vramcast.tracer.hooks import shared_memory, torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute, when_imported
from vramcast.tracer.protocol.run_options import Tape

_SCHEMES: Final = ("env", "tcp", "file")
_SAID_ELEMENTS: Final = 1 << 16  # arbitrary: largest tensor passed on to others: shapes, flags, token ids
_SENT: Final = "recv_object_list"
_CHECKPOINTS: Final = "torch.distributed.checkpoint.utils"
_STORES: Final = ("TCPStore", "FileStore", "HashStore")
_ID_BYTES: Final = 128  # spec: nccl.h, NCCL_UNIQUE_ID_BYTES
_TIMEOUT: Final = timedelta(seconds=300)  # arbitrary: no wait ever happens
# spec: torch 2.6 to 2.11, ProcessGroupNCCL: the id follows the backend's name.
_OF_NCCL: Final = re.compile(r"cuda|nccl", re.IGNORECASE)
# spec: the same: under a number, or under the ranks of a point-to-point pair. A script's own keys may look like this.
_NUMBERED: Final = re.compile(r"/\d+(:\d+)?$")

_distributed: Any = torch.distributed
_Store: Any = _distributed.Store if _distributed.is_available() else object


class AbsentStore(_Store):  # type: ignore[misc]
    """Stands for every store of a process: waits end at once, and absent ranks' keys have values.

    The key of an absent rank has its value on the tape, or the value that this rank set under its own number. The id of a
    communicator is zeros, as in the null NCCL.

    Args:
        rank: Number of this process.
        tape: Messages of ranks that ran earlier.
        answers: Counts the answers given for absent ranks.
    Attributes:
        said: Keys that this rank set.
    """

    def __init__(self, rank: int, tape: Tape, answers: Counter[str]) -> None:
        super().__init__()
        self._rank, self._tape, self._answers = rank, tape, answers
        self._held: dict[str, bytes] = {}
        self.said: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Set a key; see `Store`."""
        self._held[key] = self.said[key] = _bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value; see `Store`.

        Raises:
            MissingPeerValue: An absent rank would have set the key to an unknown value.
        """
        if key in self._held:
            return self._held[key]
        if key in self._tape.store:
            return self._tape.store[key]
        for number in re.finditer(r"\d+", key):  # this rank's key stands for the same key of an absent rank
            ours = f"{key[: number.start()]}{self._rank}{key[number.end() :]}"
            if ours in self._held:
                self._answers["keys of a store"] += 1
                return self._held[ours]
        if _OF_NCCL.search(key):
            return bytes(_ID_BYTES)
        if _NUMBERED.search(key):
            self._answers["keys of a store"] += 1
            return bytes(_ID_BYTES)
        raise MissingPeerValue(f"The key '{key}' of the store is set by a rank that is not traced: add that rank to --ranks.")

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return several values; see `Store`."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Set several keys; see `Store`."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Return true; see `Store`."""
        return True

    def add(self, key: str, value: int) -> int:
        """Add to a number; see `Store`."""
        number = int(self._held.get(key, b"0")) + value
        self._held[key] = str(number).encode()
        return number

    def append(self, key: str, value: Any) -> None:
        """Append to a value; see `Store`."""
        self._held[key] = self._held.get(key, b"") + _bytes(value)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set; see `Store`."""
        return all(key in self._held for key in keys)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a key if it has the expected value, and return its value; see `Store`."""
        now = self._held.get(key)
        if now == _bytes(expected) or (now is None and not _bytes(expected)):
            self._held[key] = _bytes(desired)
        return self._held.get(key, _bytes(expected))

    def delete_key(self, key: str) -> bool:
        """Delete a key; see `Store`."""
        return self._held.pop(key, None) is not None

    def num_keys(self) -> int:
        """Return the number of keys; see `Store`."""
        return len(self._held)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return at once: absent ranks count as done."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Ignore the timeout."""

    @property
    def timeout(self) -> timedelta:
        """The constant timeout; see `Store`."""
        return _TIMEOUT

    def clone(self) -> AbsentStore:
        """Return itself."""
        return self


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class AbsentRanks:
    """Answers for the absent ranks.

    Args:
        rank: This process.
        tape: Messages of ranks that ran earlier.
        is_started: Whether the job itself started this process, so that it may be another rank.
        split_into: Called with the number of ranks of each group before torch splits a communicator for it.
    Attributes:
        answers: Number of unknown answers, replaced by this rank's own, by kind of request.
        group_sizes: Number of ranks for each color by which PyTorch splits a communicator.
    """

    def __init__(
        self, rank: Rank, tape: Tape, *, is_started: bool = False, split_into: Callable[[int], None] = lambda ranks: None
    ) -> None:  # fmt: skip
        self._rank, self._tape, self._is_started, self._split_into = rank, tape, is_started, split_into
        self.answers: Counter[str] = Counter()
        self._said = Tape()
        self._calls: Counter[Any] = Counter()
        self.group_sizes: dict[int, int] = {}
        self._store = AbsentStore(rank.number, tape, self.answers)

    def said(self) -> Tape:
        """Return this rank's messages."""
        return Tape(dict(self._store.said), dict(self._said.said), dict(self._said.alike), set(self._said.pairs))

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Answer for absent ranks inside; enter it before the program imports a name from torch.distributed."""
        distributed: Any = torch.distributed
        with contextlib.ExitStack() as stack:
            handlers = torch_api.rendezvous_handlers
            before = dict(handlers)
            stack.callback(lambda: (handlers.clear(), handlers.update(before)))
            handlers.update(dict.fromkeys(_SCHEMES, self._meet))
            for owner in (distributed, torch_api.c10d, torch_api.rendezvous):
                for name in _STORES:
                    if hasattr(owner, name):
                        stack.callback(ReplacedAttribute(owner, name, lambda _: lambda *args, **kwargs: self._store).remove)
            stack.callback(ReplacedAttribute(torch_api.c10d, "ProcessGroupGloo", lambda _: _gloo(self.answers)).remove)
            for owner, name in torch_api.places("color_of_ranks"):
                stack.callback(ReplacedAttribute(owner, name, self._with_size).remove)
            for owner, name in torch_api.places("split_communicator"):
                stack.callback(ReplacedAttribute(owner, name, self._split).remove)
            for name, ours in self._objects().items():
                for module in _modules_with(name):
                    stack.callback(ReplacedAttribute(module, name, functools.partial(_instead, ours)).remove)
            _replace_when_imported(stack, _CHECKPOINTS, lambda: [(torch_api.DistWrapper, "__init__")], _alone)
            for module, what, wrap in _WRAPPED:
                _replace_when_imported(stack, module, functools.partial(torch_api.places, what), wrap)
            for name in ("send", "recv"):
                owner = torch_api.c10d.ProcessGroup
                stack.callback(ReplacedAttribute(owner, name, self._paired).remove)
            yield

    def _paired(self, original: Any) -> Callable[..., Any]:
        """Return a point-to-point call that records its two ends."""

        def call(group: Any, tensors: Any, place: int, *args: Any, **kwargs: Any) -> Any:
            if ranks := self._group(group):
                self._said.pairs.add((self._rank.number, ranks[place]))
            return original(group, tensors, place, *args, **kwargs)

        return call

    def _meet(self, url: str, **_: Any) -> Iterator[tuple[AbsentStore, int, int]]:
        """Let this process join. PyTorch writes the rank that a script names into the URL.

        Raises:
            SystemExit: It is a rank that is not traced; its parent sees a normal exit.
        """
        named = parse_qs(urlsplit(url).query).get("rank", [])
        if self._is_started and named not in ([], [str(self._rank.number)]):
            raise SystemExit(0)
        yield self._store, self._rank.number, self._rank.world.size

    def _split(self, original: Any) -> Callable[..., Any]:
        def split(*args: Any, **kwargs: Any) -> Any:
            ranks = next((one for one in (*args, *kwargs.values()) if isinstance(one, list)), ())
            self._split_into(len(ranks))
            try:
                return original(*args, **kwargs)
            finally:
                self._split_into(0)

        return split

    def _with_size(self, color_of: Callable[..., int]) -> Callable[..., int]:
        def noted(ranks: Any, *args: Any, **kwargs: Any) -> int:
            color = color_of(ranks, *args, **kwargs)
            self.group_sizes[color] = len(ranks)
            return color

        return noted

    # -------------------------------------------------------------------------------------------- objects
    def _objects(self) -> dict[str, Callable[..., Any]]:
        return {
            "all_gather_object": self._all_gather_object, "gather_object": self._gather_object,
            "broadcast_object_list": self._broadcast_object_list, "scatter_object_list": self._scatter_object_list,
            "send_object_list": self._send_object_list, "recv_object_list": self._recv_object_list,
            "monitored_barrier": self._monitored_barrier,
        }  # fmt: skip

    def _group(self, group: Any) -> tuple[int, ...]:
        """Return the ranks of a group; empty if this one does not belong to it."""
        ranks = tuple(torch.distributed.get_process_group_ranks(group if group is not None else torch.distributed.group.WORLD))
        return ranks if self._rank.number in ranks else ()

    def _count(self, kind: str, ranks: tuple[int, ...]) -> int:
        self._calls[kind, ranks] += 1
        return self._calls[kind, ranks]

    def _received(self, kind: str, ranks: tuple[int, ...], pair: tuple[int, ...], number: int) -> Any:
        """Return an object from a rank that ran earlier, or from the one at its place in another group.

        Args:
            kind: Kind of call that sent it.
            ranks: Ranks of the group.
            pair: Sender; receiver, if there is only one.
            number: Number of the call.
        Raises:
            MissingPeerValue: Neither sent it.
        """
        found = self._tape.said.get((kind, ranks, number, pair))
        if found is None:
            found = self._tape.alike.get((kind, len(ranks), number, _places(ranks, pair)))
            self.answers["objects"] += 1
        if found is None:
            raise MissingPeerValue(f"{kind} from rank {pair[0]}, which did not run before this one: add {pair[0]} to --ranks.")
        return pickle.loads(found)

    def _record(self, kind: str, ranks: tuple[int, ...], pair: tuple[int, ...], number: int, what: Any) -> None:
        data = pickle.dumps(what)
        self._said.said[kind, ranks, number, pair] = data
        self._said.alike[kind, len(ranks), number, _places(ranks, pair)] = data

    # -------------------------------------------------------------------------------------------- small tensors
    def record_tensor(self, kind: str, group: Any, pair: Sequence[int], value: torch.Tensor | None) -> None:
        """Record the contents of a small tensor that this rank gives to one or all others; None: unknown."""
        ranks, pair = self._group(group), tuple(pair)
        number = self._count(kind, (*ranks, *pair))
        if value is not None and value.numel() <= _SAID_ELEMENTS:
            self._record(kind, ranks, pair, number, value)

    def received_tensor(self, kind: str, group: Any, pair: Sequence[int]) -> torch.Tensor | None:
        """Return the contents of a small tensor given by the first of `pair`, or by the rank at its place in another group.

        None: neither gave it. It is not counted here: the later read of an unknown value is.
        """
        ranks, pair = self._group(group), tuple(pair)
        number = self._count(kind, (*ranks, *pair))
        found = self._tape.said.get((kind, ranks, number, pair))
        if found is None:
            found = self._tape.alike.get((kind, len(ranks), number, _places(ranks, pair)))
        return None if found is None else pickle.loads(found)

    def _all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        if ranks := self._group(group):
            self._gather("all_gather_object", object_list, obj, ranks)

    def _gather_object(
        self, obj: Any, object_gather_list: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None
    ) -> None:
        if ranks := self._group(group):
            self._gather("gather_object", object_gather_list or [None] * len(ranks), obj, ranks)

    def _gather(self, kind: str, objects: list[Any], own: Any, ranks: tuple[int, ...]) -> None:
        """Fill a list with the objects of all ranks: recorded ones of ranks that ran earlier, else this rank's."""
        number = self._count(kind, ranks)
        data = pickle.dumps(own)
        self._said.said[kind, ranks, number, (self._rank.number,)] = data
        for place, rank in enumerate(ranks):
            if rank == self._rank.number:
                objects[place] = own
                continue
            found = self._tape.said.get((kind, ranks, number, (rank,)))
            if found is None:
                self.answers["objects"] += 1
            objects[place] = pickle.loads(data if found is None else found)

    def _broadcast_object_list(
        self, object_list: list[Any], src: Any = None, group: Any = None, device: Any = None, group_src: Any = None
    ) -> None:
        if ranks := self._group(group):
            object_list[:] = self._from_one("broadcast_object_list", ranks, _member(ranks, src, group_src), object_list)

    def _scatter_object_list(
        self, scatter_object_output_list: list[Any], scatter_object_input_list: Any = None, src: Any = None,
        group: Any = None, group_src: Any = None,
    ) -> None:  # fmt: skip
        if ranks := self._group(group):
            objects = self._from_one("scatter_object_list", ranks, _member(ranks, src, group_src), scatter_object_input_list)
            scatter_object_output_list[0] = objects[ranks.index(self._rank.number)]

    def _from_one(self, kind: str, ranks: tuple[int, ...], source: int, own: Any) -> list[Any]:
        """Return the objects that one rank gives to all others of a group."""
        number = self._count(kind, ranks)
        if source != self._rank.number:
            found: list[Any] = self._received(kind, ranks, (source,), number)
            return found
        self._record(kind, ranks, (source,), number, list(own))
        return list(own)

    def _send_object_list(
        self, object_list: Any, dst: Any = None, group: Any = None, device: Any = None, group_dst: Any = None, **_: Any
    ) -> None:
        ranks = self._group(group)
        pair = self._rank.number, _member(ranks, dst, group_dst)
        self._said.pairs.add(pair)
        self._record(_SENT, ranks, pair, self._count(_SENT, pair), list(object_list))

    def _recv_object_list(
        self, object_list: Any, src: Any = None, group: Any = None, device: Any = None, group_src: Any = None, **_: Any
    ) -> int:
        ranks = self._group(group)
        pair = _member(ranks, src, group_src), self._rank.number
        self._said.pairs.add(pair)
        object_list[:] = self._received(_SENT, ranks, pair, self._count(_SENT, pair))
        return pair[0]

    def _monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        """Return at once: absent ranks count as done."""


def _member(ranks: tuple[int, ...], number: Any, place: Any) -> int:
    """Return a rank given by its number, or by its place in the group."""
    return ranks[place] if place is not None else int(number or 0)


def _places(ranks: tuple[int, ...], members: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ranks.index(one) for one in members)


def _modules_with(name: str) -> list[Any]:
    """Return the modules of torch that have a function of torch.distributed under its own name."""
    original = getattr(torch_api.c10d, name)
    modules = [module for key, module in list(sys.modules.items()) if key.startswith("torch") and module is not None]
    return [module for module in modules if vars(module).get(name) is original]


def _replace_when_imported(
    stack: contextlib.ExitStack, module: str, places: Callable[[], Iterable[tuple[Any, str]]], wrap: Callable[[Any], Any]
) -> None:
    """Replace attributes of a module once it is imported, until the stack ends."""

    def replace() -> None:
        for place in places():
            stack.callback(ReplacedAttribute(*place, wrap).remove)

    stack.enter_context(when_imported(module, replace))


def unprofiled(cut: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that cuts a parameter into views for all ranks, unseen by the profiler; FSDP2 keeps one of the views.

    The profiler would write three events for each view, of some 2.5 KB: 2.2 GiB for Llama-3 8B over 1,024 ranks. Views request
    no memory, so leaving them out loses nothing.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        torch_api.enable_record_function(False)
        try:
            return cut(*args, **kwargs)
        finally:
            torch_api.enable_record_function(True)

    return call


_WRAPPED: Final = (  # module, name of its places, and the wrapper
    (torch_api.FSDP2_SHARDS, "cut_into_shards", unprofiled),
    (torch_api.SYMMETRIC_MEMORY, "share_among_ranks", shared_memory.refusing),
)


def _alone(original: Any) -> Callable[..., Any]:
    """Return the start of a distributed checkpoint in which each rank plans, writes and reads only its own shards.

    The plans of other ranks are unknown, copies of this rank's plan would overlap, and nothing on the card depends on them.
    """

    def begin(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        original(self, group, False, coordinator_rank)

    return begin


def _gloo(answers: Counter[str]) -> Any:
    """Return a stand-in for Gloo's group: PyTorch's own group that treats all ranks as equal."""
    fake = torch_api.FakeProcessGroup

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, fake)

    class Gloo(metaclass=Kind):
        def __new__(cls, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
            answers["groups of Gloo"] += 1
            make = getattr(fake, torch_api.FAKE_GROUP_MAKER, None)
            return fake(rank, size) if make is None else make(rank, size, fake.Options())

        create_device = staticmethod(lambda *args, **kwargs: None)

    if not hasattr(fake, "options"):  # torch 2.8 writes the group's name and ranks there
        fake.options = SimpleNamespace()
    fake._set_sequence_number_for_group = fake._set_default_timeout = staticmethod(lambda *args: None)
    return Gloo


def _instead(ours: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return a function of ours that `ReplacedAttribute` may give the original's name."""
    return lambda *args, **kwargs: ours(*args, **kwargs)
