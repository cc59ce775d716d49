"""`largest`: the largest value of an axis of a job that fits its card, and the traces that show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.brief import brief
from vramcast.core.checks import whole
from vramcast.core.errors import CannotEstimate, DoesNotFit, UsageError
from vramcast.core.progress import part
from vramcast.estimates.axes.axis import JobAxis
from vramcast.estimates.axes.from_outside import axis_from_outside
from vramcast.estimates.axes.in_run import AXES_OF_COMMAND, FROM_OUTSIDE, axis_in_run
from vramcast.estimates.axes.of_cards import CARDS, axis_of_cards
from vramcast.estimates.axes.of_model import AXES_OF_MODEL, axis_of_model
from vramcast.estimates.axes.search import MOST, Ladder, Steps, edge, fewest, fewest_edge, search, searched
from vramcast.estimates.result import Estimate
from vramcast.jobs.job import Job
from vramcast.tracer.format.applied_change import applied_change
from vramcast.tracer.protocol.run_options import RunOptions

TRACES: Final = 5  # spec: two sizes to predict from, both sides of the edge, and one to correct
# Other names of axes.
ALIASES: Final = {"accumulation": "accumulate", "image": "image-size", "rank": "lora-rank", "length": "seq"}


@brief
@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value of an axis that fits, as `vramcast.largest` returns it.

    Attributes:
        axis: The axis.
        value: The largest value that fits, below which each traced value fits; of `cards`, the smallest; 0: none does.
        next: The smallest traced value that does not fit (of `cards`, the largest); None: none.
        limit: What allows no larger value, if it is not the card; otherwise "".
        ways: By other value than the job's own, the setting or line with which a user sets it.
        search: The function with which the program searched for the value itself; "": none.
        is_edge: Whether no untraced value of the ladder lies between `value` and `next`.
        is_monotone: Whether no traced value above `next` fits.
        traced: By value, the estimate, or the error if no number can be given.

    Example:
        >>> found = vramcast.largest(vramcast.estimate(model, batch, device="t4"))
        >>> found.value > 0, len(found.traced) <= 5
        (True, True)
    """

    axis: str
    value: int
    next: int | None
    limit: str
    ways: Mapping[int, str]
    search: str
    is_edge: bool
    is_monotone: bool
    traced: Mapping[int, Estimate | CannotEstimate]

    @property
    def way(self) -> str:
        """The setting or line with which a user sets the value; "": it is the job's own."""
        return self.ways.get(self.value, "")

    @property
    def words(self) -> str:
        """The answer as a sentence."""
        if self.search:
            return f"{self.axis} {self.value:,}: the choice of {self.search}, which the program calls itself"
        unsure = f"; uncertain: {'; '.join(self.doubts)}" if self.doubts else ""
        setting = f"; set it with {self.way}" if self.way else ""
        if self.axis == CARDS:
            too_few = f" ({self.next:,} are not enough)" if self.next else ""
            return f"fewest cards that fit: {self.value or 'none'}{too_few}{setting}{unsure}"
        if not self.value:
            return f"no {self.axis} fits: {min(self.traced):,} does not"
        end = f"limited by {self.limit}" if self.limit else "none larger was traced"
        if self.next is not None:
            end = f"{self.next:,} {_word(self.traced[self.next])}" + "; more --traces narrow it" * (not self.is_edge)
        safe = "" if self.is_monotone else "; a larger one fits again (cuDNN changes its engine), but do not rely on it"
        part = "whose observed part fits" if unsure else "that fits"
        return f"largest {self.axis} {part}: {self.value:,} ({end}){safe}{setting}{unsure}"

    @property
    def doubts(self) -> tuple[str, ...]:
        """The unknowns that make even the value that fits uncertain: no bound covers the whole job."""
        found = self.traced.get(self.value)
        return found.doubts if isinstance(found, Estimate) else ()

    @property
    def exit_code(self) -> int:
        """Exit code of `vramcast largest`: 0 if a value fits, otherwise that of its verdict, or of the smallest need's."""
        least = self.traced[self.value or (max(self.traced) if self.axis == CARDS else min(self.traced))]
        return least.exit_code if isinstance(least, CannotEstimate) else least.verdict.exit_code

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values, with sizes in bytes.

        Returns:
            A dict of the attributes, with `way` for `ways` and `traced` as a list by value.

        Example:
            >>> found.to_dict()["axis"]
            'batch'
        """
        names = ("axis", "value", "next", "doubts", "limit", "way", "search", "is_edge", "is_monotone")
        said = {
            name: getattr(self, name) or None if name in ("limit", "way", "search") else getattr(self, name) for name in names
        }
        return {**said, "traced": [{"value": value, **_as_json(one)} for value, one in sorted(self.traced.items())]}


def require_axis(job: Job, axis: str) -> None:
    """Check an axis as far as that is possible before the job is traced.

    Raises:
        UsageError: The job has no such axis, or nothing sets it where the axis says.
    """
    name, _, place = axis.partition("=")
    known = AXES_OF_MODEL if job.command is None else AXES_OF_COMMAND
    if place:
        axis_from_outside(job, name, place)
    elif ALIASES.get(name, name) not in (*known, CARDS):
        raise UsageError(
            f"--axis {name}: expected {', '.join(known)}, {CARDS}"
            + ", or what sets it: batch=--bs." * (job.command is not None)
        )


def largest(
    estimate: Estimate, axis: str = "batch", *, steps: Steps = "1", traces: int = TRACES,
    note: Callable[[int, Estimate | CannotEstimate], None] = lambda value, one: None,
    trace: Callable[[Job, RunOptions], Estimate] | None = None,
) -> Largest:  # fmt: skip
    """Find the largest value of an axis of a job that fits its card.

    Args:
        estimate: An estimate of the job on its card: of a model, or of a command.
        axis: `batch` (of a command that has none, `prompt`); `accumulate`, the largest batch at the present global batch;
            `lora-rank`; `cards`, the fewest over which FSDP2 must shard it; of a model also `seq` and `image-size`; of a
            command `prompt`, or what sets a number: `batch=--bs`, `batch=env:BS`, `batch=config.yaml:key`.
        steps: The values tried: each number, multiples of 8, or powers of two (`pow2`).
        traces: The most traces, with that of `estimate`.
        note: Called with each value and its estimate, or the error.
        trace: Estimates a job with options; default: the estimate's own estimator.

    Returns:
        The largest value that fits at the estimate's level, with all values traced.

    Raises:
        UsageError: The job has no such axis, or an argument is wrong.
        CannotEstimate: No value is possible, or the command ends early.

    Example:
        >>> vramcast.largest(vramcast.estimate(model, batch, device="t4"), steps="pow2").axis
        'batch'
    """
    require_axis(estimate.job, axis)
    name, _, place = axis.partition("=")
    name = ALIASES.get(name, name)
    found = _axis(estimate, name, place)
    name = found.name
    traced: dict[int, Estimate | CannotEstimate] = {}
    if found.search:
        return Largest(
            name, found.value, None, "", {}, found.search, is_edge=True, is_monotone=True, traced={found.value: estimate}
        )
    if estimate.course.ended and estimate.verdict.value == "uncertain":
        raise CannotEstimate(f"Each {name} is uncertain: the command ended early ({estimate.course.ended}).")
    run = trace or estimate.estimator.changed(level=estimate.level).estimate_job
    ways: dict[int, str] = {}

    def tried(value: int) -> Estimate | CannotEstimate:
        traced[value] = estimate if value == found.value else traced_at(value)
        note(value, traced[value])
        return traced[value]

    def traced_at(value: int) -> Estimate | CannotEstimate:
        try:
            with part(f"{name} {value}", len(traced) + 1):
                one = run(found.job_at(value), found.options_at(value))
        except CannotEstimate as error:
            return error
        ways[value] = found.way(value, one)
        if not ways[value]:
            raise UsageError(
                f"The {name} of {value} had no effect on the command, which sets it elsewhere: " + FROM_OUTSIDE.format(name)
            )
        return one

    most = min(MOST, MOST if found.most is None else found.most)
    ladder = Ladder(steps, most, found.values)
    spent = whole("traces (--traces)", traces, least=2)
    card_bytes = estimate.card.total_bytes
    if name == CARDS:
        fits, fails = fewest_edge(searched(fewest(found.value, most, card_bytes, spent), tried, is_observed=True))
        is_edge = fits == 2 * (fails or 0) or fits == 1
        return Largest(name, fits, fails, "", ways, "", is_edge=is_edge, is_monotone=True, traced=traced)
    seen = searched(search(found.value, ladder, card_bytes, spent), tried, is_observed=True)
    fits, fails = edge(seen)
    after = ladder.after(fits)
    limit = found.limit if fits and after is None else ""
    is_monotone = not any(one.fits for at, one in seen.items() if at > fits)
    is_edge = after is None or after == fails
    return Largest(name, fits, fails, limit, ways, "", is_edge=is_edge, is_monotone=is_monotone, traced=traced)


def _axis(estimate: Estimate, name: str, place: str) -> JobAxis:
    if place:
        return axis_from_outside(estimate.job, name, place)
    if name == CARDS:
        return axis_of_cards(estimate)
    if estimate.job.command is None:
        return axis_of_model(estimate.job, name)
    if name == "batch" and applied_change(estimate.trace, "batch").value is None:
        name = "prompt" if applied_change(estimate.trace, "prompt").value is not None else name
    return axis_in_run(estimate, name)


def _word(one: Estimate | CannotEstimate) -> str:
    if isinstance(one, CannotEstimate) and not isinstance(one, DoesNotFit):
        return f"has no estimate: {str(one).splitlines()[0]}"
    return "is uncertain" if isinstance(one, Estimate) and one.verdict.value == "uncertain" else "does not fit"


def _as_json(one: Estimate | CannotEstimate) -> dict[str, Any]:
    if isinstance(one, CannotEstimate):
        return {"error": type(one).__name__, "message": str(one)}
    return {"verdict": one.verdict.value, "process_bytes": one.process, "upper_bound_bytes": one.upper_bound}
