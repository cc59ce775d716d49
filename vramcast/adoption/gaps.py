"""Systematic gaps between the first-principles estimates and a site's measured runs, as the new artifact corrects them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from vramcast.core.units import MIB, gib
from vramcast.learner import gains
from vramcast.learner.examples import Example
from vramcast.learner.model import LearnedModel, family_name

_LEAST_BYTES: Final = 64 * MIB  # arbitrary: contexts of one stack scatter by some tens of MiB
_SHOWN: Final = 3  # arbitrary: features named for a class


def gaps(learned: LearnedModel, examples: Sequence[Example]) -> list[str]:
    """Return the gaps that an artifact corrects, one sentence each; none if the estimates need no correction.

    Args:
        learned: The artifact.
        examples: The runs that it was learned from.
    """
    return [*_of_contexts(learned, examples), *_of_trees(learned)]


def _of_contexts(learned: LearnedModel, examples: Iterable[Example]) -> Iterable[str]:
    assumed: dict[str, list[int]] = {}
    for example in examples:
        assumed.setdefault(example.stack, []).append(example.context)
    for stack, context in learned.contexts.items():
        expected = round(statistics.median(assumed[stack])) if stack in assumed else 0
        apart = context.size_bytes - expected
        if expected and abs(apart) >= _LEAST_BYTES:
            more = "larger" if apart > 0 else "smaller"
            yield (
                f"context on {stack}: {gib(context.size_bytes)} by {context.n} runs, {gib(abs(apart))} {more} than assumed "
                f"({gib(expected)})"
            )


def _of_trees(learned: LearnedModel) -> Iterable[str]:
    for peak, of in gains.of_card(learned.card).items():
        for what, by, verb in (("bounds", of.bounds, "set"), ("estimates", of.points, "correct")):
            for family, gain in by.items():
                if gain.is_used:
                    yield (
                        f"{peak} peak of jobs with {family_name(family)}: trees {verb} {what}, and lower their loss on unseen "
                        f"models by {-100 * gain.change:.0f} % ({-100 * gain.high:.0f} to {-100 * gain.low:.0f} % in "
                        f"bootstraps of {gain.models} models){_features(of, family)}"
                    )


def _features(of: gains.Gains, family: str) -> str:
    costs = of.importances.get(family, {})
    names = sorted(costs, key=lambda name: -costs[name])[:_SHOWN]
    return f"; they read above all {', '.join(names)}" if names else ""
