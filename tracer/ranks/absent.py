"""This process is one rank of many, and the others are absent.

PyTorch's own process groups run, over the null NCCL, whose collectives do nothing. What absent ranks would say is told by
one rule: each of them does what this one does, but where a rank which ran before wrote down what it said (`Tape`).

    the store              waits end at once; keys of absent ranks: `store.py`
    collectives of objects every rank's object is this rank's; what was broadcast, scattered or sent is on the tape
    Gloo                   PyTorch's own group of one process which stands for all (tensors of the host)

Where the rule does not hold it is an error by name: an object which is received from a rank that did not run before.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from vramcast.errors import CannotEstimate
from vramcast.ranks import Rank
from vramcast.tracer import torch_api
from vramcast.tracer.ranks.store import AbsentStore
from vramcast.tracer.ranks.tape import Account, Tape
from vramcast.tracer.replaced import Replaced

_SCHEMES: Final = ("env", "tcp", "file")
_STORES: Final = ("TCPStore", "FileStore", "HashStore")


class Absent:
    """Answers for the ranks which are not there.

    Args:
        rank: This process.
        tape: What ranks said which ran before.

    Attributes:
        account: How often, and how.
    """

    def __init__(self, rank: Rank, tape: Tape) -> None:
        self._rank, self._tape = rank, tape
        self.account = Account()
        self._said = Tape()
        self._calls: Counter[Any] = Counter()
        self._store = AbsentStore(rank.number, tape, self.account)

    def said(self) -> Tape:
        """Return what this rank said."""
        return Tape(dict(self._store.said), dict(self._said.said))

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
            stack.callback(Replaced(torch_api.c10d, "ProcessGroupGloo", lambda _: _gloo(self.account)).remove)
            for name, ours in self._objects().items():
                for module in _who_has(name):
                    stack.callback(Replaced(module, name, functools.partial(_instead, ours)).remove)
            yield

    def _meet(self, url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[AbsentStore, int, int]]:
        yield self._store, self._rank.number, self._rank.world.size

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

    def _key(self, kind: str, ranks: tuple[int, ...]) -> tuple[str, tuple[int, ...], int]:
        self._calls[kind, ranks] += 1
        return kind, ranks, self._calls[kind, ranks]

    def _told(self, key: Any, what: str) -> Any:
        """Return an object which a rank said that ran before.

        Raises:
            CannotEstimate: none did.
        """
        if key not in self._tape.said:
            raise CannotEstimate(f"{what} from a rank which did not run before this one: add it to --ranks.")
        return pickle.loads(self._tape.said[key])

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
        key = self._key(kind, ranks)
        data = self._said.said[*key, self._rank.number] = pickle.dumps(own)
        for place, rank in enumerate(ranks):
            if rank == self._rank.number:
                objects[place] = own
                continue
            told = self._tape.said.get((*key, rank))
            if told is None:
                self.account.note("objects")
            objects[place] = pickle.loads(data if told is None else told)

    def _broadcast_object_list(
        self, object_list: list[Any], src: Any = None, group: Any = None, device: Any = None, group_src: Any = None
    ) -> None:
        if not (ranks := self._group(group)):
            return
        source = _member(ranks, src, group_src)
        key = (*self._key("broadcast_object_list", ranks), source)
        if source == self._rank.number:
            self._said.said[key] = pickle.dumps(list(object_list))
        else:
            object_list[:] = self._told(key, "broadcast_object_list")

    def _scatter_object_list(
        self, scatter_object_output_list: list[Any], scatter_object_input_list: Any = None, src: Any = None,
        group: Any = None, group_src: Any = None,
    ) -> None:  # fmt: skip
        if not (ranks := self._group(group)):
            return
        source = _member(ranks, src, group_src)
        key = (*self._key("scatter_object_list", ranks), source)
        if source == self._rank.number:
            self._said.said[key] = pickle.dumps(list(scatter_object_input_list))
            objects = scatter_object_input_list
        else:
            objects = self._told(key, "scatter_object_list")
        scatter_object_output_list[0] = objects[ranks.index(self._rank.number)]

    def _send_object_list(
        self, object_list: Any, dst: Any = None, group: Any = None, device: Any = None, group_dst: Any = None, **_: Any
    ) -> None:
        receiver = _member(self._group(group), dst, group_dst)
        self._calls["sent", receiver] += 1
        self._said.said["sent", self._rank.number, receiver, self._calls["sent", receiver]] = pickle.dumps(list(object_list))

    def _recv_object_list(
        self, object_list: Any, src: Any = None, group: Any = None, device: Any = None, group_src: Any = None, **_: Any
    ) -> int:
        sender = _member(self._group(group), src, group_src)
        self._calls["received", sender] += 1
        key = ("sent", sender, self._rank.number, self._calls["received", sender])
        object_list[:] = self._told(key, "recv_object_list")
        return sender

    def _monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        """Return at once: who is absent has done its part."""


def _member(ranks: tuple[int, ...], number: Any, place: Any) -> int:
    """Return a rank which is given by its number, or by its place in the group."""
    return ranks[place] if place is not None else int(number or 0)


def _who_has(name: str) -> list[Any]:
    """Return torch's modules which have a function of torch.distributed under its own name."""
    original = getattr(torch_api.c10d, name)
    modules = [module for key, module in list(sys.modules.items()) if key.startswith("torch") and module is not None]
    return [module for module in modules if vars(module).get(name) is original]


def _gloo(account: Account) -> Any:
    """Return what stands for Gloo's group: PyTorch's own which takes all ranks for equal."""
    fake = torch_api.FakeProcessGroup

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, fake)

    class Gloo(metaclass=Kind):
        def __new__(cls, store: Any, rank: int, size: int, timeout: Any = None) -> Any:
            account.note("groups of Gloo")
            make = getattr(fake, "_create_internal", None)
            return fake(rank, size) if make is None else make(rank, size, fake.Options())

        create_device = staticmethod(lambda *args, **kwargs: None)

    fake._set_sequence_number_for_group = functools.partial(_nothing)
    fake._set_default_timeout = functools.partial(_nothing)
    return Gloo


def _nothing(*args: Any) -> None:
    pass


def _instead(ours: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return a function of ours which `Replaced` may give the original's name."""
    return lambda *args, **kwargs: ours(*args, **kwargs)
