"""The state that a job carries from pass to pass: integers that grow by a constant, and containers that gain some items.

They are found from the job's own modules and its running functions: variables, attributes, items, closures. Each is known by
its way from there (`trainer.state.global_step`), so that no object lives longer than the job lets it. A loop that jumps over
passes advances the integers, and gives the containers what the passes would have kept: tensors of the same sizes.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import os
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from copy import deepcopy
from types import CellType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final

from vramcast.tracer.program.turns import forget
from vramcast.tracer.protocol.source_places import is_installed, is_library, is_ours

_MAPPINGS: Final = frozenset((dict, defaultdict, OrderedDict, Counter))
_SEQUENCES: Final = frozenset((list, deque))
_CONTAINERS: Final = _MAPPINGS | _SEQUENCES
# Packages whose integers belong to a protocol or to the machine; the parts of torch below are the job's, but for the iterators
# of data loaders, which count what they have asked their workers for.
_CLOSED: Final = frozenset(sys.stdlib_module_names) | {"vramcast", "torch", "numpy", "tqdm"}
_OF_TORCH: Final = ("torch.optim", "torch.nn", "torch.amp", "torch.cuda.amp", "torch.utils.data")
_ROUNDED_BYTES: Final = 512  # spec: PyTorch's allocator, kMinBlockSize
_SHORT: Final = 256  # arbitrary: items of a container that may lead further; more are data
_FEW: Final = 16  # arbitrary: integers of a sequence; more are data
_MOST_WAYS: Final = 20_000  # arbitrary: about 20 ms a look; the nearest are found first
_MOST_COPIES: Final = 1_000  # arbitrary: blocks that are made one by one, 20 us each
_OPEN: Final = (SimpleNamespace, argparse.Namespace)
_GONE: Final = object()
Gains = dict[int, int]


class CarriedState:
    """The growing integers and containers of a job, from look to look.

    Args:
        passes: Number of items of a list that a comprehension is making; None: none is.

    Attributes:
        gained: Number of items that each container gained between the last two looks, by its number.
        steady: The same of those that gained as many before.
    """

    def __init__(self, passes: int | None = None) -> None:
        self.gained: Gains = {}
        self.steady: Gains = {}
        self._moving: dict[int, int] = {}  # the same for integers
        self._changes: dict[int, int] = {}  # between the last two looks
        self._turns: dict[int, tuple[int, int]] = {}  # where a number or a length started again, and where it had come to
        self._is_first = True
        self._ways: list[tuple[int, str, Any]] = []  # from the object with that number, how, and its name there
        self._roots: list[Any] = [vars(module) for module in _own_modules()]
        if passes is not None:
            self._roots += [one for one in gc.get_objects() if type(one) is list and len(one) == passes]
        self._find()
        self.rebase()

    def _find(self) -> None:
        """Find the ways to all integers and containers."""
        ways, objects = self._ways, []
        known = {id(self), id(ways), id(self._roots), *map(id, self._roots)}
        for depth, frame in enumerate(_running()):  # a frame that is kept keeps its variables
            ways.append((-1, "frame", (depth, frame.f_code)))
            objects.append(frame)
        for number, root in enumerate(self._roots):
            ways.append((-1, "root", number))
            objects.append(root)
        for number, one in enumerate(objects):  # it grows meanwhile
            for how, key, value in _parts(one):
                kind = type(value)
                if kind is int or (id(value) not in known and _leads_on(value, kind)):
                    if kind is not int:
                        known.add(id(value))
                    ways.append((number, how, key))
                    objects.append(value)
            if len(ways) > _MOST_WAYS:
                break

    def _objects(self) -> list[Any]:
        """Return the objects at the ends of all ways, now."""
        found: list[Any] = []
        frames = _running()
        for number, how, key in self._ways:
            if how == "root":
                found.append(self._roots[key])
            elif how == "frame":
                depth, code = key
                is_same = depth < len(frames) and frames[depth].f_code is code
                found.append(frames[depth] if is_same else _GONE)
            else:
                found.append(_at(found[number], how, key))
        return found

    def rebase(self) -> None:
        """Take everything as it is now for the last look, after a jump."""
        objects = self._objects()
        self._counts = {
            at: (0, one) if type(one) is int else (id(one), len(one))
            for at, one in enumerate(objects)
            if type(one) is int or (type(one) in _CONTAINERS and self._ways[at][1] != "variables")
        }
        self._forget(objects)

    def _forget(self, objects: list[Any]) -> None:
        for at, (number, how, _) in enumerate(self._ways):
            if how == "variables" and objects[at] is not _GONE:
                names, objects[at], frame = objects[at], None, objects[number]
                forget(frame if isinstance(frame, FrameType) else frame.gi_frame, names)

    def look(self) -> None:
        """Compare with the last look."""
        before, last = self._counts, self._changes
        self.rebase()
        new = {at: (one, now - before[at][1]) for at, (one, now) in self._counts.items() if at in before}
        self._changes = {at: move for at, (_, move) in new.items() if move}
        for at, move in self._changes.items():
            now, then = self._counts[at][1], before[at][1]
            is_emptied = move < 0 and 2 * now <= then
            is_reset = move * last.get(at, 0) < 0 and abs(move) > abs(last[at])
            if is_emptied if new[at][0] else is_reset:
                self._turns[at] = now, then
        steady = {at for at, move in self._changes.items() if self._is_first or move == last.get(at)}
        self._is_first = False
        self._moving = {at: move for at, (one, move) in new.items() if not one and at in steady}
        self.gained = {at: move for at, (one, move) in new.items() if move > 0 and one and one == before[at][0]}
        self.steady = {at: count for at, count in self.gained.items() if at in steady}

    # -------------------------------------------------------------------------------------------- a jump
    def advance(self, passes: int) -> None:
        """Advance the integers that grew by a constant."""
        objects = self._objects()
        for at, step in self._moving.items():
            if type(objects[at]) is int:  # still there
                number, how, key = self._ways[at]
                _set(objects[number], how, key, self._after(at, self._counts[at][1], step, passes))
        for (number, how, _), names in zip(self._ways, objects, strict=True):
            if how == "variables" and type(names) is dict and names:
                # spec: CPython before 3.13 takes the variables of a running function from this dictionary by this call only.
                frame = objects[number] if isinstance(objects[number], FrameType) else objects[number].gi_frame
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        self._forget(objects)

    def held_bytes(self, gained: Gains) -> int:
        """Return the bytes of the card's storages in the last items that containers have gained."""
        storages = [one.untyped_storage() for *_, items in self._last(gained) for one in _tensors(items)]
        return sum({one.data_ptr(): one.nbytes() for one in storages}.values())

    def fill(self, gained: Gains, times: int, *, is_new: bool) -> None:
        """Let containers gain their last items again, once for each of some passes.

        Args:
            gained: Number of items that each gains in a pass.
            times: Number of passes.
            is_new: Whether each pass makes new tensors; otherwise the items are the same objects.
        """
        for at, owner, items in self._last(gained):
            now, most = len(owner), getattr(owner, "maxlen", None)
            later = self._after(at, now, len(items), times)
            wanted = max(later - now, 0) // len(items)
            if most is not None:  # of more, it would drop the first
                wanted, later = min(wanted, -(-most // len(items))), min(later, most)
            _drop(owner, now + wanted * len(items) - later)
            copies = _copies(items, wanted, one_by_one=most is not None) if is_new else items * wanted
            if type(owner) in _SEQUENCES:
                owner.extend(copies)
            elif (keys := _keys([*owner], len(copies))) is not None:
                owner.update(zip(keys, copies, strict=True))

    def _after(self, at: int, now: int, step: int, passes: int) -> int:
        """Return a number or a length as it is some passes later, if it starts again where it did before."""
        later = now + passes * step
        if at not in self._turns:
            return later
        first, last = self._turns[at]
        return first + (later - first) % (last - first + step or 1)

    def _last(self, gained: Gains) -> Iterator[tuple[int, Any, list[Any]]]:
        if not gained:
            return
        objects = self._objects()
        for at, count in gained.items():
            owner = objects[at]
            if type(owner) in _SEQUENCES:
                yield at, owner, [owner[number - count] for number in range(count)]
            elif type(owner) in _MAPPINGS:
                yield at, owner, [owner[key] for key in [*owner][-count:]]
        self._forget(objects)


# ------------------------------------------------------------------------------------------------ ways
def _parts(one: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts of an object: how each is reached, its name there, and the part."""
    kind: Any = type(one)
    if kind in _MAPPINGS:
        if len(one) <= _SHORT or "__name__" in one:
            yield from (("item", key, value) for key, value in [*one.items()] if type(key) is not str or key[:2] != "__")
    elif kind in _SEQUENCES or kind is tuple:
        found = enumerate([*one][:_SHORT])
        yield from (("item", at, value) for at, value in found if type(value) is not int or len(one) <= _FEW)
    elif kind is FrameType:
        yield "variables", None, one.f_locals
    elif kind is GeneratorType:
        if one.gi_frame is not None and not is_ours(one.gi_frame.f_code.co_filename):
            yield "variables", None, one.gi_frame.f_locals
    elif kind is FunctionType:
        for at, cell in enumerate(one.__closure__ or ()):
            yield "cell", at, cell
    elif kind is CellType:
        yield "attribute", "cell_contents", _at(one, "attribute", "cell_contents")
    elif kind is MethodType:
        yield "attribute", "__self__", one.__self__
    elif kind is functools.partial:
        yield from (("attribute", name, getattr(one, name)) for name in ("func", "args", "keywords"))
    elif issubclass(kind, type):
        yield from (("attribute", name, value) for name, value in vars(one).items() if type(value) is int)
    else:
        names = _at(one, "attributes", None)
        if type(names) is dict:
            yield "attributes", None, names
        for name in _slots(kind):
            yield "attribute", name, getattr(one, name, None)


def _at(one: Any, how: str, key: Any) -> Any:
    """Return a part of an object; `_GONE` if it is no longer there."""
    if one is _GONE:
        return one
    try:
        if how == "item":
            return one[key]
        if how == "variables":
            return (one if type(one) is FrameType else one.gi_frame).f_locals
        if how == "attributes":
            return object.__getattribute__(one, "__dict__")
        if how == "cell":
            return one.__closure__[key]
        return getattr(one, key)
    except Exception:  # it has changed, or it is empty
        return _GONE


def _set(one: Any, how: str, key: Any, value: int) -> None:
    if how == "item":
        one[key] = value
    else:
        setattr(one, key, value)


def _leads_on(value: Any, kind: Any) -> bool:
    """Return whether an object may have integers or containers that belong to the job."""
    if kind in _CONTAINERS or kind in (tuple, CellType, GeneratorType, MethodType, functools.partial):
        return True
    if kind is FunctionType:
        return value.__closure__ is not None and not is_ours(value.__code__.co_filename)
    if issubclass(kind, ModuleType):
        return False
    if issubclass(kind, type):
        return not is_library(getattr(sys.modules.get(value.__module__), "__file__", None) or "<")
    return _is_jobs(kind)


@functools.cache
def _is_jobs(kind: Any) -> bool:
    """Return whether the integers and containers of a class's objects belong to the job."""
    module: Any = kind.__module__
    is_iterator = module == "torch.utils.data.dataloader" and kind.__name__.startswith("_")
    if kind in _OPEN or is_iterator or hasattr(kind, "__torch_function__"):
        return kind in _OPEN
    is_open = isinstance(module, str) and (module.partition(".")[0] not in _CLOSED or module.startswith(_OF_TORCH))
    return bool(is_open or module == "__main__")


@functools.cache
def _slots(kind: Any) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        found += [names] if isinstance(names, str) else names
    return tuple(name for name in found if not name.startswith("__"))


def _own_modules() -> list[ModuleType]:
    """Return the modules of the job's own files."""
    named = [(one, getattr(one, "__file__", None)) for one in [*sys.modules.values()] if type(one) is ModuleType]
    main = [sys.modules["__main__"]] if "__main__" in sys.modules else []
    return main + [one for one, file in named if file and one not in main and not is_library(file) and not is_ours(file)]


def _running() -> list[FrameType]:
    """Return the running functions of the job, outermost first."""
    return [*job_frames(sys._getframe())][::-1]


def job_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers that are neither ours nor torch's nor Python's own."""
    torchs_own = os.path.join(os.path.dirname(sys.modules["torch"].__file__ or ""), "")
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_ours(file) and not file.startswith(torchs_own) and (not is_library(file) or is_installed(file)):
            yield frame
        frame = frame.f_back


# ------------------------------------------------------------------------------------------------ copies
def _tensors(items: Any) -> Iterator[Any]:
    """Yield the tensors on the card in some items."""
    import torch

    from vramcast.tracer.hooks.torch_api import tree_leaves

    for leaf in tree_leaves(items):
        if isinstance(leaf, torch.nn.Module):
            yield from (one for one in (*leaf.parameters(), *leaf.buffers()) if one.is_cuda)
        elif isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            yield leaf


def _copies(items: list[Any], times: int, *, one_by_one: bool) -> list[Any]:
    """Return items like these for some passes, in blocks of their own or, if they are many, in few large ones."""
    import torch

    from vramcast.tracer.hooks.torch_api import tree_map

    def again(leaf: Any, blocks: int = 1) -> Any:
        if isinstance(leaf, torch.nn.Module):
            return deepcopy(leaf)
        if not isinstance(leaf, torch.Tensor) or not leaf.is_cuda:
            return leaf
        size_bytes = -(-leaf.untyped_storage().nbytes() // _ROUNDED_BYTES) * _ROUNDED_BYTES * blocks
        made = torch.empty(size_bytes, dtype=torch.uint8, device=leaf.device).view(leaf.dtype)
        return made.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())

    if one_by_one or len(items) * times <= _MOST_COPIES:
        return [tree_map(again, item) for _ in range(times) for item in items]
    return [tree_map(lambda leaf: again(leaf, times), item) for item in items] * times


def _drop(owner: Any, count: int) -> None:
    """Remove the first items of a container."""
    for key in [*owner][:count] if type(owner) in _MAPPINGS else [0] * count:
        del owner[key]


def _keys(keys: list[Any], count: int) -> list[int] | None:
    """Return the next integers if the keys of a mapping are some that go on by a constant."""
    if len(keys) < 2 or any(type(key) is not int for key in keys[-2:]):
        return None
    return [keys[-1] + (at + 1) * (keys[-1] - keys[-2]) for at in range(count)]
