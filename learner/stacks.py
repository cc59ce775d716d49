"""The context by stack: what a process takes beside PyTorch's segments, learned from measured runs.

A stack is a card with a driver, CUDA and torch. Where both peaks were measured the context is their difference. Where only the
process peak was, it is the mode of measured minus simulated: many jobs are simulated exactly, and those agree on one number,
while the others scatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from vramcast.learner.examples import Example

_FEWEST = 5  # arbitrary: runs of a stack from which a context is learned


@dataclass(frozen=True, slots=True)
class StackContext:
    """The context of one stack.

    Attributes:
        size_bytes: The point.
        low_bytes, high_bytes: Between which 90 % of what was seen lies; equal to the point where it is a mode.
        n: Runs behind it.
    """

    size_bytes: int
    low_bytes: int
    high_bytes: int
    n: int


def half_sample_mode(values: Iterable[float]) -> float:
    """Return where values are densest: the half with the least width, again and again.

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
    differences: dict[str, list[int]] = {}
    offsets: dict[str, list[int]] = {}
    for example in examples:
        if example.censored or example.measured_process is None:
            continue
        if example.measured_reserved is not None:
            differences.setdefault(example.stack, []).append(example.measured_process - example.measured_reserved)
        else:
            offsets.setdefault(example.stack, []).append(example.measured_process - example.reserved)
    found: dict[str, StackContext] = {}
    for stack, values in offsets.items():
        if len(values) >= _FEWEST:
            mode = round(half_sample_mode(values))
            found[stack] = StackContext(mode, mode, mode, len(values))
    for stack, values in differences.items():
        if len(values) >= _FEWEST:
            low, middle, high = (round(float(value)) for value in np.quantile(values, (0.05, 0.5, 0.95)))
            found[stack] = StackContext(middle, low, high, len(values))
    return {stack: context for stack, context in found.items() if context.size_bytes >= 0}


def measured_reserved(example: Example, contexts: Mapping[str, StackContext]) -> int | None:
    """Return the measured reserved peak, or what is left of the process peak without its stack's context; None: unknown."""
    if example.measured_reserved is not None:
        return example.measured_reserved
    context = contexts.get(example.stack)
    if example.measured_process is None or context is None:
        return None
    return max(example.measured_process - context.size_bytes, 1)
