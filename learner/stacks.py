"""Contexts by stack: memory of a process outside PyTorch's segments, learned from measured runs.

A stack is a card with a driver, CUDA and torch. The parts of cuDNN that a job uses matter too, because each is loaded at
first use: so the jobs of a stack are also split by the libraries that they use. If both peaks were measured, the context is
their difference. If only the process peak was, it is the mode of measured minus simulated: many jobs are simulated exactly,
and those agree on one number, while the others scatter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from vramcast.core.plain import Between
from vramcast.core.units import INT64_MOST
from vramcast.learner.examples import Example

_LEAST_SHARE = 0.25  # arbitrary: share of the context; contexts scatter by some hundredths, which is a tenth of such a job
_LARGEST_BYTES = 2**50  # arbitrary: limit for a context in an artifact
_FEWEST = 5  # arbitrary: runs of a stack that are needed to learn a context


@dataclass(frozen=True, slots=True)
class StackContext:
    """The context of one stack.

    Attributes:
        size_bytes: The point.
        low_bytes, high_bytes: The range of 90 % of the observations; equal to the point if it is a mode.
        n: Number of runs.
        gpu: The card's key.
        by_libraries: The same for jobs that use certain libraries, by `key_of`.
    """

    size_bytes: Annotated[int, Between(0, _LARGEST_BYTES)]
    low_bytes: Annotated[int, Between(-_LARGEST_BYTES, _LARGEST_BYTES)]  # a difference of two measured peaks
    high_bytes: Annotated[int, Between(0, _LARGEST_BYTES)]
    n: Annotated[int, Between(1, INT64_MOST)]
    gpu: str = ""
    by_libraries: Mapping[str, StackContext] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.low_bytes <= self.size_bytes <= self.high_bytes:
            raise ValueError(f"a context is {self.size_bytes}, but its range is {self.low_bytes} to {self.high_bytes}")

    def of(self, libraries: Collection[str]) -> StackContext:
        """Return the context of jobs that use these libraries; the stack's own if there were too few such jobs."""
        return self.by_libraries.get(key_of(libraries), self)


def key_of(libraries: Collection[str]) -> str:
    """Return the name of a set of libraries."""
    return "+".join(sorted(libraries))


def half_sample_mode(values: Iterable[float]) -> float:
    """Return the point where values are densest: the narrowest half of the values, repeatedly.

    Source: Bickel and Fruehwirth, On a fast, robust estimator of the mode, Computational Statistics & Data Analysis 2006.
    """
    rest = np.sort(np.asarray(list(values), np.float64))
    while len(rest) > 3:
        half = -(-len(rest) // 2)
        widths = rest[half - 1 :] - rest[: len(rest) - half + 1]
        start = int(widths.argmin())
        rest = rest[start : start + half]
    if len(rest) == 3:
        rest = rest[:2] if rest[1] - rest[0] < rest[2] - rest[1] else rest[1:]
    return float(rest.mean())


def learn(examples: Iterable[Example]) -> dict[str, StackContext]:
    """Return the context of every stack with enough uncensored runs."""
    of_stack: dict[str, list[Example]] = {}
    for example in examples:
        if not example.censored and example.measured_process is not None:
            of_stack.setdefault(example.stack, []).append(example)
    found = {}
    for stack, members in of_stack.items():
        of_libraries: dict[str, list[Example]] = {}
        for example in members:
            of_libraries.setdefault(key_of(example.libraries), []).append(example)
        apart = {key: one for key, some in of_libraries.items() if (one := _context(some)) is not None}
        if (whole := _context(members, apart)) is not None:
            found[stack] = whole
    return found


def _context(examples: Sequence[Example], apart: Mapping[str, StackContext] | None = None) -> StackContext | None:
    """Return the context of these runs, preferring runs with both peaks measured; None: there are too few."""
    gpu = examples[0].gpu
    differences = [e.measured_process - e.measured_reserved for e in examples if e.measured_process and e.measured_reserved]
    if len(differences) >= _FEWEST:
        low, middle, high = (round(float(value)) for value in np.quantile(differences, (0.05, 0.5, 0.95)))
        found = StackContext(middle, low, high, len(differences), gpu, apart or {})
    else:
        offsets = [e.measured_process - e.reserved for e in examples if e.measured_process and not e.measured_reserved]
        if len(offsets) < _FEWEST:
            return None
        mode = round(half_sample_mode(offsets))
        found = StackContext(mode, mode, mode, len(offsets), gpu, apart or {})
    return found if found.size_bytes >= 0 else None


def known_context(example: Example, contexts: Mapping[str, StackContext]) -> StackContext | None:
    """Return the context of an example's stack and libraries; None: unknown."""
    known = contexts.get(example.stack)
    return known.of(example.libraries) if known is not None else None


def context_of(example: Example, contexts: Mapping[str, StackContext]) -> int | None:
    """Return the context of an example's stack and libraries in bytes; None: unknown."""
    known = known_context(example, contexts)
    return known.size_bytes if known is not None else None


def measured_reserved(example: Example, contexts: Mapping[str, StackContext]) -> int | None:
    """Return the measured reserved peak, or the process peak minus its stack's context; None: unknown.

    The difference is as uncertain as the context, so it is only used for jobs that reserve much more.
    """
    if example.measured_reserved is not None:
        return example.measured_reserved
    context = context_of(example, contexts)
    if example.measured_process is None or context is None or example.reserved < _LEAST_SHARE * context:
        return None
    return max(example.measured_process - context, 1)
