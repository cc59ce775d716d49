"""The first or the largest batch of a data loader or a data set, made as a loop would make it, without a trace in the caller.

No worker process is started and no random state changes. If the loader's own `collate_fn` may pad, its second batch is
compared: a loader of varying shapes is rejected, because its first batch says nothing about its largest.
"""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from vramcast.core.errors import UsageError

_STATEFUL: Final = ("sampler", "batch_sampler", "dataset")
_MOST_SAMPLES: Final = 2048  # arbitrary: a second for texts, some twenty for images


def is_loader(batch: Any) -> bool:
    """Return whether a batch is a data loader of torch."""
    return _is("DataLoader", batch)


def is_dataset(batch: Any) -> bool:
    """Return whether a batch is a data set of torch."""
    return _is("Dataset", batch)


def _is(kind: str, batch: Any) -> bool:
    """Return whether a batch is an instance of a class in torch.utils.data, without importing torch."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(batch, getattr(data, kind))


def of_dataset(dataset: Any, batch_size: int) -> Any:
    """Return the first samples of a data set as a batch.

    Raises:
        UsageError: It has fewer samples, raised, or its samples do not make a batch.
    """
    from torch.utils.data import DataLoader

    return first_batch(DataLoader(dataset, batch_size=batch_size, drop_last=True))


def first_batch(loader: Any) -> Any:
    """Return the first batch of a data loader.

    Raises:
        UsageError: The loader cannot be started again, has no batch, raised, or its batches vary in shape.
    """
    with _unchanged_random_state(loader):
        try:
            batches = list(islice(_fresh(loader), 1 if _never_pads(loader) else 2))
        except UsageError:
            raise
        except Exception as error:  # the user's own data set may raise anything
            raise UsageError(
                f"The data loader raised {type(error).__name__} ({error}): check next(iter(loader)), or pass one batch."
            ) from error
    if not batches:
        raise UsageError("The data loader has no full batch: pass one with more data, or describe a batch with TensorSpec.")
    shapes = [_shapes(batch) for batch in batches]
    if shapes[0] != shapes[-1]:
        raise UsageError(
            f"The batches of the data loader vary in shape (rows of {shapes[0]}, then of {shapes[-1]}): pass the largest of "
            "them, or describe it with TensorSpec((8, 512), 'int64', least=(8, 16))."
        )
    return batches[0]


def largest_batch(loader: Any, batch_size: int) -> Any:
    """Return the batch that the loader's collator makes of the largest samples, among 2048 spread over its data set.

    Raises:
        UsageError: The loader makes its batches by other means, or cannot be started again.
    """
    from torch.utils.data import IterableDataset

    source, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if source is None or collate is None or getattr(loader, "batch_sampler", None) is None:
        raise UsageError(f"{type(loader).__name__} makes its own batches: give a DataLoader with a batch_size.")
    with _unchanged_random_state(loader):
        if isinstance(source, IterableDataset):
            if isinstance(source, Iterator):
                raise UsageError(f"The data loader reads a {type(source).__name__} that cannot be started again.")
            samples: Iterator[Any] = islice(iter(source), _MOST_SAMPLES)
        else:
            samples = (source[place] for place in range(0, len(source), math.ceil(len(source) / _MOST_SAMPLES) or 1))
        return collate(heapq.nlargest(batch_size, samples, key=_n_values))


def _n_values(part: Any) -> int:
    """Return the number of values in a sample."""
    if isinstance(shape := getattr(part, "shape", None), tuple):
        return math.prod(shape)
    if hasattr(part, "values"):
        return sum(map(_n_values, part.values()))
    is_plain = isinstance(part, str | bytes) or (
        isinstance(part, tuple | list) and isinstance(next(iter(part), 0), int | float)
    )
    if is_plain:
        return len(part)
    return sum(map(_n_values, part)) if isinstance(part, tuple | list) else 1


def _fresh(loader: Any) -> Iterator[Any]:
    """Return an iterator over the loader's batches, in this process."""
    from torch.utils.data import DataLoader, IterableDataset

    if type(loader).__iter__ is not DataLoader.__iter__:  # a subclass with a loop of its own
        return iter(loader)
    source, how = loader.dataset, {"collate_fn": loader.collate_fn, "generator": loader.generator}
    if isinstance(source, IterableDataset):
        if isinstance(source, Iterator) or iter(source) is iter(source):
            raise UsageError(
                f"The data loader reads a {type(source).__name__} that cannot be started again, so its first batch would be "
                "missing from your loop: pass one batch, for example next(iter(loader))."
            )
        return iter(DataLoader(source, batch_size=loader.batch_size, drop_last=loader.drop_last, **how))
    if loader.batch_sampler is None:
        return iter(DataLoader(source, batch_size=None, sampler=loader.sampler, **how))
    return iter(DataLoader(source, batch_sampler=loader.batch_sampler, **how))


def _never_pads(loader: Any) -> bool:
    from torch.utils.data import default_collate, default_convert

    return loader.collate_fn in (default_collate, default_convert)


def _shapes(part: Any) -> Any:
    """Return the shapes of a batch's tensors without their first dimensions."""
    if isinstance(getattr(part, "shape", None), tuple):
        return "x".join(map(str, part.shape[1:])) or "one value"
    if hasattr(part, "items"):
        return {key: _shapes(value) for key, value in part.items()}
    return [_shapes(one) for one in part] if isinstance(part, tuple | list) else None


@contextmanager
def _unchanged_random_state(loader: Any) -> Iterator[None]:
    """Restore the random state of torch, NumPy, `random`, and the loader's own generators."""
    import numpy as np
    import torch

    owners = [loader, *(getattr(loader, name, None) for name in _STATEFUL)]
    owners.append(getattr(loader.batch_sampler, "sampler", None))
    generators = [found for one in owners if isinstance(found := getattr(one, "generator", None), torch.Generator)]
    states = [one.get_state() for one in generators]
    of_torch, of_python, of_numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)
