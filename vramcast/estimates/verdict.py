"""The verdict: whether an estimated job fits on a card. Every verb, page, hook and file uses this module.

*Fits* has one meaning: the upper bound is at most the size of the card, and nothing that matters is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias

from vramcast.core.brief import brief
from vramcast.core.units import gib
from vramcast.estimates.growth import Growth
from vramcast.estimates.phases import TrainingCourse
from vramcast.hardware.device import Device
from vramcast.hardware.engine_memory import engine_memory, runs_alike
from vramcast.tracer.format.serving import EngineAccounts

Value: TypeAlias = Literal["fits", "does not fit", "uncertain"]
ANOTHER_RUN: Final = "another run, "  # the beginning of an unknown that is no call, but a further run of the job
# spec: the exit codes of the contract
EXIT_CODES: Final[dict[Value, int]] = {"fits": 0, "does not fit": 1, "uncertain": 4}


@brief
@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision whether a job fits on a card, with its reason.

    Attributes:
        value: `fits`, `does not fit` or `uncertain`.
        reason: The deciding fact, as text; never empty.
    """

    value: Value
    reason: str

    @property
    def exit_code(self) -> int:
        """Exit code of `vramcast check`: 0 fits, 1 does not fit, 4 uncertain."""
        return EXIT_CODES[self.value]

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values, the same in every JSON answer."""
        return {"value": self.value, "exit_code": self.exit_code, "reason": self.reason}

    def __str__(self) -> str:
        return f"{self.value}: {self.reason}"


@brief
@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a job needs on a card.

    Attributes:
        card: The card, with the memory available to the job.
        point_bytes: The point estimate of the process peak there, without trial workspaces of cudnn.benchmark.
        bound_bytes: Its upper bound, at least the point estimate.
        runs_out_of_memory: Whether the card is smaller than the point estimate, or the job ran out of memory when traced on it.
        least_bytes: The smallest card on which the job runs, if it is known and larger than this one; otherwise the point
            estimate. On a larger card the allocator keeps more.
    """

    card: Device
    point_bytes: int
    bound_bytes: int
    runs_out_of_memory: bool
    least_bytes: int


class VerdictInput(Protocol):
    """The part of an `Estimate` that the verdict uses."""

    @property
    def unbounded_calls(self) -> tuple[str, ...]:
        """Calls without a largest shape."""

    @property
    def course(self) -> TrainingCourse:
        """The observed part of a training command."""

    @property
    def growth(self) -> Growth | None:
        """Memory that a loop keeps from step to step."""

    @property
    def serving(self) -> EngineAccounts | None:
        """The accounts of a serving engine."""

    @property
    def card(self) -> Device:
        """The card on which the job was traced, with the memory available to the job."""


def verdict_of(estimate: VerdictInput, need: Need) -> Verdict:
    """Return the verdict on a card.

    Args:
        estimate: The job's estimate.
        need: Memory that the job needs on the card.
    """
    card = f"{need.card.name} has {gib(need.card.total_bytes)}"
    serving = estimate.serving
    is_other = (need.card.key, need.card.total_bytes) != (estimate.card.key, estimate.card.total_bytes)
    if serving is not None and serving.starts is not None and is_other:
        return _of_engine_elsewhere(serving, estimate.card, need)
    growth = estimate.growth
    if growth is not None and growth.fills(need.card.total_bytes):
        return Verdict("does not fit", f"{growth}; {card}")
    if need.runs_out_of_memory:
        return Verdict("does not fit", f"the job needs {gib(need.least_bytes)}; {card}")
    if serving is not None and serving.starts is not None:
        return _of_engine(serving, need)
    found = [*doubts(estimate)]
    if found:
        return Verdict("uncertain", f"{'; '.join(found)}. The observed part needs {gib(need.point_bytes)}; {card}")
    sizes = f"the job needs {gib(need.point_bytes)}, at most {gib(need.bound_bytes)}; {card}"
    return Verdict("fits" if need.bound_bytes <= need.card.total_bytes else "uncertain", sizes)


def _of_engine_elsewhere(serving: EngineAccounts, traced: Device, need: Need) -> Verdict:
    """Return the verdict on another card: if all else is equal there, the KV cache grows with the engine's share."""
    card = f"{need.card.name} has {gib(need.card.total_bytes)}"
    there = serving.on_larger_card(need.card.total_bytes - traced.total_bytes) if runs_alike(traced, need.card) else None
    if there is None:
        return Verdict("uncertain", f"{serving.engine} divides each card anew: ask for this one; {card}")
    if there.starts and not serving.starts:  # it captured no graphs
        return Verdict("uncertain", f"{there}, but {serving.engine} was not seen to start: ask for this one; {card}")
    if serving.tensor_parallel is None or serving.pipeline_parallel is None:
        there = replace(there, outside_less_bytes=None, outside_more_bytes=None)
    else:
        ranks = {"tensor": serving.tensor_parallel, "pipeline": serving.pipeline_parallel}
        outside = engine_memory(serving.version, need.card.name, **ranks)
        there = replace(there, outside_less_bytes=outside.less_bytes, outside_more_bytes=outside.more_bytes)
    more_cache_bytes = (there.kv_cache_bytes or 0) - (serving.kv_cache_bytes or 0)
    return _of_engine(there, replace(need, point_bytes=need.point_bytes + more_cache_bytes))


def _of_engine(serving: EngineAccounts, need: Need) -> Verdict:
    """Return the verdict of an engine's own check: it takes what is left of its share of the card for its KV cache."""
    card = f"{need.card.name} has {gib(need.card.total_bytes)}"
    outside = "memory outside PyTorch that others logged"
    if not serving.starts:
        less_bytes = serving.outside_less_bytes or 0
        may_start = serving.missing_bytes is not None and serving.missing_bytes <= less_bytes
        but = f", but may take {gib(less_bytes)} less ({outside})" if may_start else ""
        return Verdict("uncertain" if may_start else "does not fit", f"{serving.engine} does not start{but}: {serving.reason}")
    free_bytes = need.card.total_bytes - need.point_bytes
    spare_bytes = int((serving.kv_cache_bytes or 0) * (1 - 1 / max(serving.max_concurrency or 1, 1)))
    more_bytes = serving.outside_more_bytes
    if more_bytes is None or min(free_bytes, spare_bytes) < more_bytes:
        room = f"{gib(spare_bytes)} of its KV cache and {gib(free_bytes)} of the card to spare"
        more = "an unknown size" if more_bytes is None else f"{gib(more_bytes)}"
        return Verdict("uncertain", f"{serving.engine} starts with {room}, and may take {more} more ({outside}); {card}")
    return Verdict("fits", f"{serving.engine} starts; {serving}; {card}")


def doubts(estimate: VerdictInput) -> Iterator[str]:
    """Yield the unknowns that matter, as text; with any of them, no bound holds for the whole job."""
    if estimate.serving is not None and estimate.serving.starts is not None:
        return  # requests come after the engine has divided the card
    if estimate.course.ended:
        yield f"the command ended early ({estimate.course.ended})"
    if estimate.course.not_reached:
        yield f"not observed: {', '.join(estimate.course.not_reached)}"
    runs = [name for name in estimate.unbounded_calls if name.startswith(ANOTHER_RUN)]
    if runs:
        yield f"no bound holds without {', '.join(runs)}"
    if calls := [name for name in estimate.unbounded_calls if name not in runs]:
        yield f"no bound holds, because no largest size is known for {', '.join(calls)}"
    if estimate.growth is not None and estimate.growth.reserved_at_end is None:
        yield str(estimate.growth)
