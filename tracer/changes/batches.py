"""The batch of a training command: its size where the program sets it, and another size in its place.

The batch of TrainingArguments (transformers, TRL) or of Ultralytics counts, or else the size of the data loaders that the
training loop reads. Loaders of another size, as for validation, stay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from vramcast.tracer.changes.change import Change, Facts, set_argument
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute, replace_when_imported
from vramcast.tracer.protocol.source_places import stack_of, users_place

# Libraries that make loaders from a setting of their own, which is changed instead.
_OWNERS: Final = ("transformers.", "trl.", "ultralytics.")
# spec: functions that search for a batch themselves; the batch is the argument of the function that they call, or their result
_SEARCHES: Final = (
    ("accelerate's find_executable_batch_size", "accelerate.utils.memory", "find_executable_batch_size"),
    ("Lightning's scale_batch_size", "pytorch_lightning.tuner.tuning", "Tuner.scale_batch_size"),
    ("Lightning's scale_batch_size", "lightning.pytorch.tuner.tuning", "Tuner.scale_batch_size"),
    ("Ultralytics' batch=-1", "ultralytics.utils.autobatch", "check_train_batch_size"),
)
_ULTRALYTICS: Final = 16  # spec: Ultralytics' default.yaml, `batch`


@contextmanager
def installed(sizes: tuple[int, int] | None, facts: Facts) -> Iterator[None]:
    """Note the batch size of the program inside, and replace it.

    Args:
        sizes: The program's own size, and the one in its place; None: only note.
        facts: Gets `value`, `now`, `way`, `most`, `limit`, `owner` (the library with the setting), and
            `search` if the program searches for its batch itself.
    """
    made: dict[int, Facts] = {}  # by batch size: the data loaders

    def setting_of(owner: str) -> Callable[[Any], int | None]:
        def new(own: Any) -> int | None:
            own = _ULTRALYTICS if own is None else own  # transformers always has a number
            facts.update(value=own, owner=owner)
            if sizes is None or own != sizes[0]:
                return None
            facts["now"] = sizes[1]
            return sizes[1]

        return new

    with ExitStack() as stack:
        set_argument(stack, "transformers", "per_device_train_batch_size", setting_of("Trainer"), facts)
        set_argument(stack, "ultralytics", "batch", setting_of("Ultralytics"), facts)
        for search, module, name in _SEARCHES:
            replace_when_imported(stack, module, name, _noted(search, facts), if_there=True)
        import torch.utils.data as data

        for owner in (data.DataLoader, data.BatchSampler):
            stack.callback(ReplacedAttribute(owner, "__init__", _sized(sizes, made)).remove)
        trains = False

        def giving(run: Callable[..., Any]) -> Callable[..., Any]:
            def give(iterator: Any) -> Any:
                if "search" in facts or (not trains and "owner" not in facts):
                    size = getattr(getattr(iterator, torch_api.LOADER_INDICES, None), "batch_size", None)
                    facts.update({"value": size, **made.get(size, {})} if isinstance(size, int) else {})
                return run(iterator)

            return give

        def training(run: Callable[..., Any]) -> Callable[..., Any]:
            def backward(*args: Any, **kwargs: Any) -> Any:
                nonlocal trains
                trains = True
                return run(*args, **kwargs)

            return backward

        for place, wrap in (("next_batch", giving), ("run_backward", training)):
            for owner, name in torch_api.places(place):
                stack.callback(ReplacedAttribute(owner, name, wrap).remove)
        yield


def _sized(sizes: tuple[int, int] | None, made: dict[int, Facts]) -> Callable[..., Callable[..., Any]]:
    """Return a wrapper of `DataLoader.__init__` and `BatchSampler.__init__`: after the source comes the batch size."""

    def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            own = kwargs.get("batch_size", args[1] if len(args) > 1 else None)
            is_library = str(caller.f_globals.get("__name__", "")).startswith(_OWNERS)
            if not isinstance(own, int) or is_library or kwargs.get("batch_sampler") is not None:
                return run(owner, *args, **kwargs)
            now = sizes[1] if sizes is not None and own == sizes[0] else own
            by_loader = caller.f_globals.get("__name__", "").startswith("torch.utils.data")  # it makes its own sampler
            if not by_loader and (now != own or now not in made):  # a library may make a changed loader again
                place = users_place(stack_of(caller))
                said = {"way": f"batch_size={now} of the data loader" + f" in {place}" * (place is not None)}
                source = kwargs.get("sampler") or (args[0] if args else kwargs.get("dataset"))
                made[now] = {"value": own, **({"now": now} if now != own else {}), **said, **_limit(source)}
            if now != own:
                args, kwargs = ((args[0], now, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "batch_size": now})
            return run(owner, *args, **kwargs)

        return initialize

    return wrap


def _limit(source: Any) -> Facts:
    """Return the largest batch that a data set, or a sampler, allows."""
    try:
        samples = len(source)
    except TypeError:  # a stream
        return {}
    return {"most": samples, "limit": f"the data set's {samples:,} samples"}


def _noted(search: str, facts: Facts) -> Callable[..., Callable[..., Any]]:
    def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
        def searching(*args: Any, **kwargs: Any) -> Any:
            facts["search"] = search
            return run(*args, **kwargs)

        return searching

    return wrap


CHANGE: Final = Change("batch", installed, is_observed=True)
