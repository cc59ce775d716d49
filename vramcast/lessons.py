"""Measured runs become examples: each job is estimated once, as `vramcast estimate` would, and its features are kept.

What was estimated is remembered in the cache folder under everything that decides it, so that training again on a longer
history traces only what is new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import joblib

from vramcast import __version__
from vramcast.cache import writable_record
from vramcast.datasets.plain import to_plain
from vramcast.datasets.run import DRY_RUN, Run
from vramcast.devices import device as find_device
from vramcast.errors import CannotEstimate, NullGpuError, UsageError
from vramcast.estimator import first_principles
from vramcast.learner import examples as store
from vramcast.learner.examples import Example
from vramcast.learner.features import Circumstances, features, parts_of
from vramcast.result import Estimate
from vramcast.tracer.nullgpu.cudnn_libraries import choose
from vramcast.tracer.targets import refusal

_PORTION = 20  # arbitrary: runs which a process estimates before they are written


@dataclass(slots=True)
class Lessons:
    """What runs teach.

    Attributes:
        examples: One a usable run.
        left_out: Why the others are not used -> how many.
    """

    examples: list[Example] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, reason: str) -> None:
        """Count a run which is not used."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def stack_of(run: Run) -> str:
    """Return the name of a run's stack: what decides its context."""
    passport = run.passport
    parts = (passport.gpu, passport.driver, passport.cuda, passport.torch)
    known = [part for part in parts if part]
    return (
        ", ".join(known) if len(known) > 1 else f"{', '.join(known)} of {passport.measured_by} {passport.source or ''}".strip()
    )


def example_of(run: Run, *, trust: bool = False, timeout_s: float = 600.0) -> Example | str:
    """Return the example of one run, or why there is none; `trust`: its target may be code."""
    measured = run.measurement
    if run.passport.measured_by == DRY_RUN:
        return "a dry run is no measurement"
    if measured.status not in ("ok", "oom"):
        return f"status {measured.status}"
    if run.workload.cap_bytes is not None:
        return "the allocator was capped"
    if run.workload.gpus not in (None, 1):
        return "several cards"
    if measured.reserved_bytes is None and measured.process_bytes is None:
        return "no peak was measured"
    try:
        card = find_device(run.passport.gpu or "")
        if run.passport.gpu_total_bytes is not None:
            card = card.with_memory(run.passport.gpu_total_bytes)
        job = run.workload.job(card, trust=trust, stack=run.passport.stack)
        # On a card without an end: what the job needs is what is corrected.
        estimate = first_principles(replace(job, limited=False), timeout_s=timeout_s)
    except UsageError as error:
        return "no job to estimate" if run.workload.target is None else f"wrong job: {error}"[:200]
    except CannotEstimate as error:
        return f"cannot be estimated: {type(error).__name__}"
    return Example(
        run.id,
        group=run.workload.model_sha256 or run.workload.target or run.workload.name,
        family=run.workload.family or "",
        gpu=card.key,
        stack=stack_of(run),
        features=features(
            estimate.trace,
            Circumstances.of(job, len(estimate.unknown), estimate.context.bytes),
            allocated=estimate.allocated,
            reserved=estimate.reserved,
        ),
        allocated=estimate.allocated,
        reserved=estimate.reserved,
        measured_reserved=measured.reserved_bytes,
        measured_process=measured.process_bytes,
        censored=measured.censored,
        optimizer=run.workload.optimizer or "",
        context=estimate.context.bytes,
        libraries=parts_of(estimate.trace, estimate.libraries),
        **_emulated(estimate),
    )


def _emulated(estimate: Estimate) -> dict[str, Any]:
    """Return in which reserved memory the job would run, as the simulator plays it."""
    if estimate.min_feasible is None:
        return {}
    smallest = max(estimate.min_feasible - estimate.context.bytes, 1)
    return {"ran_at": smallest, "died_at": smallest - 1, "is_emulated": True}


def second_rounds(runs: Iterable[Run]) -> dict[str, tuple[int | None, int | None]]:
    """Return of each job that was measured with caps too the smallest in which it ran and the largest in which it died.

    Args:
        runs: With and without caps.
    Returns:
        What `job_key` says of a run -> bytes of reserved memory; None: there was no such run.
    """
    ran: dict[str, int] = {}
    died: dict[str, int] = {}
    for run in runs:
        cap = run.workload.cap_bytes
        if cap is not None and run.measurement.status == "ok":
            ran[job_key(run)] = min(cap, ran.get(job_key(run), cap))
        elif cap is not None and run.measurement.status == "oom":
            died[job_key(run)] = max(cap, died.get(job_key(run), cap))
    return {key: (ran.get(key), died.get(key)) for key in {*ran, *died}}


def job_key(run: Run) -> str:
    """Return what names the job of a run on its machine, whatever cap it had."""
    passport = run.passport
    workload = to_plain(replace(run.workload, cap_bytes=None))
    return json.dumps([workload, passport.gpu, passport.driver, passport.torch], sort_keys=True)


def lessons_of(runs: Sequence[Run], *, n_jobs: int = 1, trust: bool = False) -> Lessons:
    """Return the examples of these runs; those estimated before, by the same vramcast, are not estimated again.

    Args:
        runs: Of any machines.
        n_jobs: Processes.
        trust: Whether the runs' targets may be code; without, such runs are left out.
    Returns:
        Examples in the order of the runs; capped runs are none, they are the second round of those without a cap.
    """
    path = writable_record("examples.jsonl")
    known = {example.id: example for example in store.read(path)[0]}
    lessons = Lessons()
    missing = []
    keys = {run.id: _key(run) for run in runs}
    for run in runs:
        if not trust and run.workload.target is not None and (reason := refusal(run.workload.target)):
            lessons.leave_out(reason)
        elif (before := known.get(keys[run.id])) is not None:
            lessons.examples.append(replace(before, id=run.id))
        else:
            missing.append(run)
    for portion in _estimated(missing, n_jobs, trust):
        fresh = [found for found in portion if isinstance(found, Example)]
        store.append([replace(example, id=keys[example.id]) for example in fresh], path)
        lessons.examples += fresh
        for found in portion:
            if isinstance(found, str):
                lessons.leave_out(found)
    capped = second_rounds(runs)
    of_run = {run.id: (place, capped.get(job_key(run))) for place, run in enumerate(runs)}
    lessons.examples = [_with_second_round(example, of_run[example.id][1]) for example in lessons.examples]
    lessons.examples.sort(key=lambda example: of_run[example.id][0])
    return lessons


def _with_second_round(example: Example, measured: tuple[int | None, int | None] | None) -> Example:
    """Return the example with what capped runs showed, which stands above what the simulator says."""
    return example if measured is None else replace(example, ran_at=measured[0], died_at=measured[1], is_emulated=False)


def _estimated(runs: Sequence[Run], n_jobs: int, trust: bool) -> Iterator[list[Example | str]]:
    portions = [runs[start : start + _PORTION] for start in range(0, len(runs), _PORTION)]
    if n_jobs == 1:
        yield from (_portion(portion, trust) for portion in portions)
        return
    with joblib.Parallel(n_jobs=n_jobs, return_as="generator") as parallel:
        yield from parallel(joblib.delayed(_portion)(portion, trust) for portion in portions)


def _portion(runs: Iterable[Run], trust: bool) -> list[Example | str]:
    return [example_of(run, trust=trust) for run in runs]


def _key(run: Run) -> str:
    """Return what names an example: the run, and who estimates it."""
    from importlib.metadata import version

    facts = json.dumps([to_plain(run), __version__, version("torch"), _cudnn_of(run)], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()


def _cudnn_of(run: Run) -> str:
    """Return which cuDNN answers for a run: a better one may have come to this machine since."""
    try:
        library = choose(run.passport.stack).library
    except NullGpuError:
        return ""
    return library.version or str(library.folder)
