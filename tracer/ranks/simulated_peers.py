"""This process is one rank of many, and the others are absent.

PyTorch's own process groups run, over the null NCCL, whose collectives do nothing. What absent ranks would say is told by
one rule: each of them does what this one does, but where a rank which ran before wrote down what it said (`Tape`).

    the store              waits end at once; keys of absent ranks: `AbsentStore`
    collectives of objects every rank's object is this rank's; what was broadcast, scattered or sent is on the tape, said by
                           that rank or, where it did not run, by the one at its place of another group of as many
    small tensors          what one rank broadcasts or sends is on the tape likewise, where it is known there
    distributed checkpoint each rank writes and reads its own shards
    ranks which a script   of the processes which it starts that goes on which joins as the traced rank; the others end there
    starts itself
    Gloo                   PyTorch's own group of one process which stands for all (tensors of the host)

Where the rule does not hold it is an error by name: an object which is received from a rank that did not run before.
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
from typing import Any, Final

import torch

from vramcast.core.errors import MissingPeerValue
from vramcast.jobs.ranks import Rank
from vramcast.tracer.hooks import shared_memory, torch_api
from vramcast.tracer.hooks.replacement import Replaced, when_imported
from vramcast.tracer.protocol.run_options import Tape

_SCHEMES: Final = ("env", "tcp", "file")
_SAID_ELEMENTS: Final = 1 << 16  # arbitrary: largest tensor which is told to others: shapes, flags, token ids
_SENT: Final = "recv_object_list"
_CHECKPOINTS: Final = "torch.distributed.checkpoint.utils"
_STORES: Final = ("TCPStore", "FileStore", "HashStore")
_ID_BYTES: Final = 128  # spec: nccl.h, NCCL_UNIQUE_ID_BYTES
_TIMEOUT: Final = timedelta(seconds=300)  # arbitrary: nobody ever waits
# spec: torch 2.6 to 2.11, ProcessGroupNCCL: ids stand behind the backend's name.
_OF_NCCL: Final = re.compile(r"cuda|nccl", re.IGNORECASE)
# spec: the same: under a number, or under the ranks of a point-to-point pair. A script's own keys may look so.
_NUMBERED: Final = re.compile(r"/\d+(:\d+)?$")

_distributed: Any = torch.distributed
_Store: Any = _distributed.Store if _distributed.is_available() else object


class AbsentStore(_Store):  # type: ignore[misc]
    """Stands for every store of a process: waits end at once, and what an absent rank would have set is told.

    A key of an absent rank has what the tape says, or what this rank set under its own number; the id of a communicator is
    zeros, as the null NCCL's are.

    Args:
        rank: Of this process.
        tape: What ranks said which ran before.
        answers: Counts what was answered for absent ranks.

    Attributes:
        said: What this rank set.
    """

    def __init__(self, rank: int, tape: Tape, answers: Counter[str]) -> None:
        super().__init__()
        self._rank, self._tape, self._answers = rank, tape, answers
        self._held: dict[str, bytes] = {}
        self.said: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """See `Store`."""
        self._held[key] = self.said[key] = _bytes(value)

    def get(self, key: str) -> bytes:
        """See `Store`.

        Raises:
            MissingPeerValue: an absent rank would have set the key, and nobody knows to what.
        """
        if key in self._held:
            return self._held[key]
        if key in self._tape.store:
            return self._tape.store[key]
        for number in re.finditer(r"\d+", key):  # what an absent rank sets under its number, we set under ours
            ours = f"{key[: number.start()]}{self._rank}{key[number.end() :]}"
            if ours in self._held:
                self._answers["keys of a store"] += 1
                return self._held[ours]
        if _OF_NCCL.search(key):
            return bytes(_ID_BYTES)
        if _NUMBERED.search(key):
            self._answers["keys of a store"] += 1
            return bytes(_ID_BYTES)
        raise MissingPeerValue(f"The key '{key}' of the store is set by a rank which is not traced: add it to --ranks.")

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """See `Store`."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """See `Store`."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """See `Store`."""
        return True

    def add(self, key: str, value: int) -> int:
        """See `Store`."""
        number = int(self._held.get(key, b"0")) + value
        self._held[key] = str(number).encode()
        return number

    def append(self, key: str, value: Any) -> None:
        """See `Store`."""
        self._held[key] = self._held.get(key, b"") + _bytes(value)

    def check(self, keys: list[str]) -> bool:
        """See `Store`."""
        return all(key in self._held for key in keys)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """See `Store`."""
        now = self._held.get(key)
        if now == _bytes(expected) or (now is None and not _bytes(expected)):
            self._held[key] = _bytes(desired)
        return self._held.get(key, _bytes(expected))

    def delete_key(self, key: str) -> bool:
        """See `Store`."""
        return self._held.pop(key, None) is not None

    def num_keys(self) -> int:
        """See `Store`."""
        return len(self._held)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return at once: who is absent has done its part."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Take note of nothing."""

    @property
    def timeout(self) -> timedelta:
        """See `Store`."""
        return _TIMEOUT

    def clone(self) -> AbsentStore:
        """Return itself."""
        return self


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class Absent:
    """Answers for the ranks which are not there.

    Args:
        rank: This process.
        tape: What ranks said which ran before.
        is_started: Whether it is a process which the job's own has started, and may be another rank.

    Attributes:
        answers: How often it is not known what they would say, by what was asked: then it is what this rank says.
        group_sizes: How many ranks there are of each color by which PyTorch splits a communicator.
    """

    def __init__(self, rank: Rank, tape: Tape, *, is_started: bool = False) -> None:
        self._rank, self._tape, self._is_started = rank, tape, is_started
        self.answers: Counter[str] = Counter()
        self._said = Tape()
        self._calls: Counter[Any] = Counter()
        self.group_sizes: dict[int, int] = {}
        self._store = AbsentStore(rank.number, tape, self.answers)

    def said(self) -> Tape:
        """Return what this rank said."""
        return Tape(dict(self._store.said), dict(self._said.said), dict(self._said.alike), set(self._said.pairs))

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Answer for them inside; before the program imports a name of torch.distributed."""
        distributed: Any = torch.distributed
        with contextlib.ExitStack() as stack:
            handlers = torch_api.rendezvous_handlers
            before = dict(handlers)
            stack.callback(lambda: (handlers.clear(), handlers.update(before)))
            handlers.update(dict.fromkeys(_SCHEMES, self._meet))
            for owner in (distributed, torch_api.c10d, torch_api.rendezvous):
                for name in _STORES:
                    if hasattr(owner, name):
                        stack.callback(Replaced(owner, name, lambda _: lambda *args, **kwargs: self._store).remove)
            stack.callback(Replaced(torch_api.c10d, "ProcessGroupGloo", lambda _: _gloo(self.answers)).remove)
            for owner, name in torch_api.places("color_of_ranks"):
                stack.callback(Replaced(owner, name, self._with_size).remove)
            for name, ours in self._objects().items():
                for module in _who_has(name):
                    stack.callback(Replaced(module, name, functools.partial(_instead, ours)).remove)
            _replace_when_imported(stack, _CHECKPOINTS, lambda: [(torch_api.DistWrapper, "__init__")], _alone)
            for module, what, wrap in _WRAPPED:
                _replace_when_imported(stack, module, functools.partial(torch_api.places, what), wrap)
            for name in ("send", "recv"):
                owner = torch_api.c10d.ProcessGroup
                stack.callback(Replaced(owner, name, self._paired).remove)
            yield

    def _paired(self, original: Any) -> Callable[..., Any]:
        """Return a point-to-point call which notes between whom it is."""

        def call(group: Any, tensors: Any, place: int, *args: Any, **kwargs: Any) -> Any:
            if ranks := self._group(group):
                self._said.pairs.add((self._rank.number, ranks[place]))
            return original(group, tensors, place, *args, **kwargs)

        return call

    def _meet(self, url: str, rank: int = -1, world_size: int = -1, **_: Any) -> Iterator[tuple[AbsentStore, int, int]]:
        """Let this process join.

        Raises:
            SystemExit: it is a rank which is not traced; who started it sees that it has ended well.
        """
        if self._is_started and rank not in (-1, self._rank.number):
            raise SystemExit(0)
        yield self._store, self._rank.number, self._rank.world.size

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
        """Return the ranks of a group; none: this one does not belong to it."""
        ranks = tuple(torch.distributed.get_process_group_ranks(group if group is not None else torch.distributed.group.WORLD))
        return ranks if self._rank.number in ranks else ()

    def _count(self, kind: str, ranks: tuple[int, ...]) -> int:
        self._calls[kind, ranks] += 1
        return self._calls[kind, ranks]

    def _told(self, kind: str, ranks: tuple[int, ...], pair: tuple[int, ...], number: int) -> Any:
        """Return an object which a rank said that ran before, or one at its place of another group.

        Args:
            kind: What says it.
            ranks: Of the group.
            pair: Who said it; to whom, if to one.
            number: Of the call.
        Raises:
            MissingPeerValue: neither did.
        """
        told = self._tape.said.get((kind, ranks, number, pair))
        if told is None:
            told = self._tape.alike.get((kind, len(ranks), number, _places(ranks, pair)))
            self.answers["objects"] += 1
        if told is None:
            raise MissingPeerValue(f"{kind} from a rank which did not run before this one: add {pair[0]} to --ranks.")
        return pickle.loads(told)

    def _say(self, kind: str, ranks: tuple[int, ...], pair: tuple[int, ...], number: int, what: Any) -> None:
        data = pickle.dumps(what)
        self._said.said[kind, ranks, number, pair] = data
        self._said.alike[kind, len(ranks), number, _places(ranks, pair)] = data

    # -------------------------------------------------------------------------------------------- small tensors
    def say_tensor(self, kind: str, group: Any, pair: Sequence[int], value: torch.Tensor | None) -> None:
        """Write down what a small tensor holds that this rank gives to one or to all; None: that is not known."""
        ranks, pair = self._group(group), tuple(pair)
        number = self._count(kind, (*ranks, *pair))
        if value is not None and value.numel() <= _SAID_ELEMENTS:
            self._say(kind, ranks, pair, number, value)

    def told_tensor(self, kind: str, group: Any, pair: Sequence[int]) -> torch.Tensor | None:
        """Return what a small tensor holds that the first of `pair` gave, or the one at its place of another group.

        None: neither said it. Nobody counts it here: who reads a value that nobody knows is counted.
        """
        ranks, pair = self._group(group), tuple(pair)
        number = self._count(kind, (*ranks, *pair))
        told = self._tape.said.get((kind, ranks, number, pair))
        if told is None:
            told = self._tape.alike.get((kind, len(ranks), number, _places(ranks, pair)))
        return None if told is None else pickle.loads(told)

    def _all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        if ranks := self._group(group):
            self._gather("all_gather_object", object_list, obj, ranks)

    def _gather_object(
        self, obj: Any, object_gather_list: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None
    ) -> None:
        if ranks := self._group(group):
            self._gather("gather_object", object_gather_list or [None] * len(ranks), obj, ranks)

    def _gather(self, kind: str, objects: list[Any], own: Any, ranks: tuple[int, ...]) -> None:
        """Put the objects of all ranks into a list: what each said that ran before, else this rank's."""
        number = self._count(kind, ranks)
        data = pickle.dumps(own)
        self._said.said[kind, ranks, number, (self._rank.number,)] = data
        for place, rank in enumerate(ranks):
            if rank == self._rank.number:
                objects[place] = own
                continue
            told = self._tape.said.get((kind, ranks, number, (rank,)))
            if told is None:
                self.answers["objects"] += 1
            objects[place] = pickle.loads(data if told is None else told)

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
        """Return the objects which one rank gives to all of a group."""
        number = self._count(kind, ranks)
        if source != self._rank.number:
            told: list[Any] = self._told(kind, ranks, (source,), number)
            return told
        self._say(kind, ranks, (source,), number, list(own))
        return list(own)

    def _send_object_list(
        self, object_list: Any, dst: Any = None, group: Any = None, device: Any = None, group_dst: Any = None, **_: Any
    ) -> None:
        ranks = self._group(group)
        pair = self._rank.number, _member(ranks, dst, group_dst)
        self._said.pairs.add(pair)
        self._say(_SENT, ranks, pair, self._count(_SENT, pair), list(object_list))

    def _recv_object_list(
        self, object_list: Any, src: Any = None, group: Any = None, device: Any = None, group_src: Any = None, **_: Any
    ) -> int:
        ranks = self._group(group)
        pair = _member(ranks, src, group_src), self._rank.number
        self._said.pairs.add(pair)
        object_list[:] = self._told(_SENT, ranks, pair, self._count(_SENT, pair))
        return pair[0]

    def _monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        """Return at once: who is absent has done its part."""


def _member(ranks: tuple[int, ...], number: Any, place: Any) -> int:
    """Return a rank which is given by its number, or by its place in the group."""
    return ranks[place] if place is not None else int(number or 0)


def _places(ranks: tuple[int, ...], members: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ranks.index(one) for one in members)


def _who_has(name: str) -> list[Any]:
    """Return torch's modules which have a function of torch.distributed under its own name."""
    original = getattr(torch_api.c10d, name)
    modules = [module for key, module in list(sys.modules.items()) if key.startswith("torch") and module is not None]
    return [module for module in modules if vars(module).get(name) is original]


def _replace_when_imported(
    stack: contextlib.ExitStack, module: str, places: Callable[[], Iterable[tuple[Any, str]]], wrap: Callable[[Any], Any]
) -> None:
    """Replace what a module has once it is there, until the stack ends."""

    def replace() -> None:
        for place in places():
            stack.callback(Replaced(*place, wrap).remove)

    stack.enter_context(when_imported(module, replace))


def unprofiled(cut: Callable[..., Any]) -> Callable[..., Any]:
    """Return what cuts a parameter into a view for every rank of the world, of which FSDP2 keeps one.

    The profiler would write three events for each view, of some 2.5 KB: 2.2 GiB for Llama-3 8B over 1,024 ranks. Views ask for
    no memory, so nothing is lost when these are left out.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        torch_api.enable_record_function(False)
        try:
            return cut(*args, **kwargs)
        finally:
            torch_api.enable_record_function(True)

    return call


_WRAPPED: Final = (  # module, which of its places, and what takes it
    (torch_api.FSDP2_SHARDS, "cut_into_shards", unprofiled),
    (torch_api.SYMMETRIC_MEMORY, "share_among_ranks", shared_memory.refusing),
)


def _alone(original: Any) -> Callable[..., Any]:
    """Return how a distributed checkpoint begins: each rank plans, writes and reads its own shards, as if there were no others.

    What they would plan is not known, copies of our plan would overlap, and nothing of the card depends on it.
    """

    def begin(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        original(self, group, False, coordinator_rank)

    return begin


def _gloo(answers: Counter[str]) -> Any:
    """Return what stands for Gloo's group: PyTorch's own which takes all ranks for equal."""
    fake = torch_api.FakeProcessGroup

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, fake)

    class Gloo(metaclass=Kind):
        def __new__(cls, store: Any, rank: int, size: int, timeout: Any = None) -> Any:
            answers["groups of Gloo"] += 1
            make = getattr(fake, torch_api.FAKE_GROUP_MAKER, None)
            return fake(rank, size) if make is None else make(rank, size, fake.Options())

        create_device = staticmethod(lambda *args, **kwargs: None)

    fake._set_sequence_number_for_group = fake._set_default_timeout = staticmethod(lambda *args: None)
    return Gloo


def _instead(ours: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return a function of ours which `Replaced` may give the original's name."""
    return lambda *args, **kwargs: ours(*args, **kwargs)
