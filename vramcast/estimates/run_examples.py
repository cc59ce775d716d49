"""Examples from measured runs: each job is estimated once, as by `vramcast estimate`, and its features are stored.

The cache folder stores examples under a key of their inputs: the job, the text of its target's file, torch, the cuDNN that
answers, the packages of models, and our own code. Training again on a longer history therefore traces only new jobs. A change
in a module that a target's file imports is not detected: in that case, delete `examples.jsonl` in the cache folder.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

import joblib

from vramcast.core.brief import every_field
from vramcast.core.cache import writable_record
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.core.files import digest, sha256_of
from vramcast.core.location import FOLDER
from vramcast.core.plain import to_plain
from vramcast.datasets.journal import Journal, read_lines
from vramcast.datasets.run import DRY_RUN, Run
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.learner_input import observed
from vramcast.estimates.runs.on_card import cudnn_asked
from vramcast.hardware.cards import device as find_device
from vramcast.hardware.cards import site_file
from vramcast.jobs.caller_variables import VariableRule, decision
from vramcast.jobs.job import Job
from vramcast.jobs.targets import refusal
from vramcast.learner import examples as store
from vramcast.learner.examples import Example
from vramcast.learner.intervals import between

_OVER = 1.05  # arbitrary: share of a card's memory; a larger peak has a wrong unit, not a nominal size
_PORTION = 20  # arbitrary: jobs that a process estimates before they are written
_KEPT = "nullgpu"  # answers of a fallback are not stored: the null GPU may work here later
_CANNOT = "cannot be estimated: "
_NO_PEAK = "no peak was measured"
# Errors of the machine, not of the job, which may succeed later.
_OF_THE_MACHINE = ("CompilerError", "CacheError", "NullGpuError", "WorkerError")
_SUFFIXES = (".py", ".c", ".cpp", ".h", ".json", ".toml", ".txt")


@dataclass(slots=True)
class ExampleSet:
    """The examples of some runs.

    Attributes:
        examples: One example per usable run.
        left_out: Number of unused runs by reason.
    """

    examples: list[Example] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, reason: str) -> None:
        """Count an unused run."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def stack_of(run: Run) -> str:
    """Return the name of a run's stack, which determines its context."""
    passport = run.passport
    parts = (passport.gpu, passport.driver, passport.cuda, passport.torch)
    known = [part for part in parts if part]
    return (
        ", ".join(known) if len(known) > 1 else f"{', '.join(known)} of {passport.measured_by} {passport.source or ''}".strip()
    )


def job_of(run: Run, *, trust: bool = False) -> Job | str:
    """Return the job of a run, to be estimated for its card, or the reason why the run is unusable.

    Args:
        run: A measured run.
        trust: Whether its target may be code.
    """
    return _why_unused(run) or _job(run, trust=trust)


def _why_unused(run: Run) -> str:
    """Return the reason why a run is unusable whatever its job; "" if there is none."""
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
        return _NO_PEAK
    total_bytes = run.passport.gpu_total_bytes
    if total_bytes is not None and max(measured.reserved_bytes or 0, measured.process_bytes or 0) > _OVER * total_bytes:
        return "its peak is above what its card has"
    return ""


def _job(run: Run, *, trust: bool) -> Job | str:
    """Return the job of a run, to be estimated for its card, or the reason why there is none."""
    if not trust and run.workload.target is not None and (reason := refusal(run.workload.target)):
        return reason
    if run.workload.target is not None and not run.workload.has_inputs:
        return "its inputs are unknown: a batch is needed, or a batch_size (and for hf: models seq or image_size)"
    try:
        card = find_device(run.passport.gpu or "")
        if run.passport.gpu_total_bytes is not None:
            card = card.with_memory(run.passport.gpu_total_bytes)
        return run.workload.job(card, trust=trust, stack=run.passport.stack)
    except UsageError as error:
        return "no job to estimate" if run.workload.target is None else f"wrong job: {error}"[:200]


def simulated(job: Job, *, timeout_s: float = 600.0) -> Example | str:
    """Return the example of a job by `vramcast estimate`, or the reason why there is none."""
    try:
        return observed(Estimator(timeout_s=timeout_s).uncorrected(job))
    except UsageError as error:
        return f"wrong job: {error}"[:200]
    except CannotEstimate as error:
        return f"{_CANNOT}{type(error).__name__}"


def measured(run: Run, seen: Example) -> Example:
    """Return an example with the measurements of a run."""
    return replace(
        seen,
        id=run.id,
        group=run.workload.model_sha256 or run.workload.target or run.workload.name,
        family=run.workload.family or "",
        stack=stack_of(run),
        measured_reserved=run.measurement.reserved_bytes,
        measured_process=run.measurement.process_bytes,
        censored=run.measurement.censored,
        optimizer=run.workload.optimizer or "",
    )


def second_rounds(runs: Iterable[Run]) -> dict[str, tuple[int | None, int | None]]:
    """Return, for each job also measured with caps, the smallest cap at which it ran and the largest at which it failed.

    Args:
        runs: Runs with and without caps.
    Returns:
        Bytes of reserved memory by `job_key`; None if there was no such run.
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
    """Return a key for the job of a run on its machine, independent of its cap."""
    passport = run.passport
    workload = to_plain(replace(run.workload, cap_bytes=None))
    return json.dumps([workload, passport.gpu, passport.driver, passport.torch], sort_keys=True)


def examples_of_runs(
    runs: Sequence[Run],
    *,
    n_jobs: int = 1,
    trust: bool = False,
    store_path: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, wanted: None,
) -> ExampleSet:
    """Return the examples of some runs; a job estimated before in the same way is not estimated again.

    Args:
        runs: Runs of any machines.
        n_jobs: Number of processes.
        trust: Whether the runs' targets may be code; if not, such runs are left out.
        store_path: A file that stores examples in addition to the cache folder; jobs without an example are stored next to it,
            and are not tried again.
        progress: A callback for the number of estimated jobs and their total; it starts with 0.
    Returns:
        Examples in the order of the runs. Capped runs have no example; they are the second round of those without a cap. A run
        out of memory needs no peak if the same job ran with a smaller batch: the card lies between the two.
    """
    jobs = _jobs_of(runs, trust=trust)
    wanted = {key: job for _, key, job in jobs if isinstance(job, Job)}
    cached = writable_record("examples.jsonl")
    written = store_path or cached
    known: dict[str, Example | str] = {one.id: one for one in store.read(cached)[0] if one.id in wanted}
    if store_path is not None:
        known |= _refused(store_path)
        known |= {one.id: one for one in (store.read(store_path)[0] if store_path.exists() else ()) if one.id in wanted}
    missing = [(key, job) for key, job in wanted.items() if key not in known]
    done = 0
    if missing:
        progress(done, len(missing))
    for fresh in _simulated(missing, n_jobs):
        known |= fresh
        store.append([one for one in fresh.values() if isinstance(one, Example) and one.tracer == _KEPT], written)
        if store_path is not None:
            _refuse({key: one for key, one in fresh.items() if isinstance(one, str) and not _may_pass(one)}, store_path)
        done += len(fresh)
        progress(done, len(missing))
    capped = second_rounds(runs)
    answers = [(run, known[key] if isinstance(job, Job) else job) for run, key, job in jobs]
    largest = _largest_that_ran(answers, _targets_that_failed(runs))
    found_examples = ExampleSet()
    for run, found in answers:
        example = _with_ends(run, found, largest) if isinstance(found, Example) else None
        if example is None:
            found_examples.leave_out(found if isinstance(found, str) else _NO_PEAK)
        else:
            rounds = capped.get(job_key(run)) if capped else None
            found_examples.examples.append(_with_second_round(example, rounds))
    return found_examples


def _targets_that_failed(runs: Sequence[Run]) -> set[str | None]:
    """Return the targets of runs out of memory; only their runs are compared at several batches, which takes time."""
    return {run.workload.target for run in runs if run.measurement.status == "oom"}


def _largest_that_ran(answers: Iterable[tuple[Run, Example | str]], targets: set[str | None]) -> dict[str, Example]:
    """Return, for each job with one of these targets, at any batch, the largest that ran."""
    found: dict[str, Example] = {}
    for run, seen in answers:
        if isinstance(seen, Example) and run.measurement.status == "ok" and run.workload.target in targets:
            key = _at_any_batch(run)
            found[key] = max(found.get(key, seen), seen, key=lambda one: one.reserved)
    return found


def _with_ends(run: Run, seen: Example, largest: dict[str, Example]) -> Example | None:
    """Return the example of a run; None: nothing was measured, and no two runs of its job show where its peak lies."""
    found = measured(run, seen)
    if run.measurement.status == "oom" and run.measurement.workers in (None, 1):
        ran = largest.get(_at_any_batch(run))
        if ran is not None and ran.reserved < seen.reserved:
            return between(ran, found, seen.card_bytes - seen.context)
    return found if found.measured_reserved or found.measured_process else None


def _jobs_of(runs: Sequence[Run], *, trust: bool) -> list[tuple[Run, str, Job | str]]:
    """Return each run with its job and the job's key; both are made once for many runs of one job."""
    made: dict[str, tuple[str, Job | str]] = {}
    found: list[tuple[Run, str, Job | str]] = []
    targets, statuses = _targets_that_failed(runs), dict[str, set[str]]()
    for run in runs:
        if run.workload.target in targets:
            statuses.setdefault(_at_any_batch(run), set()).add(run.measurement.status)
    for run in runs:
        reason = _why_unused(run)
        has_ends = reason == _NO_PEAK and run.workload.target in targets and statuses[_at_any_batch(run)] >= {"ok", "oom"}
        if reason and not has_ends:
            found.append((run, "", reason))
            continue
        asked = _asked(run)
        if asked not in made:
            job = _job(run, trust=trust)
            made[asked] = (_key(job) if isinstance(job, Job) else "", job)
        found.append((run, *made[asked]))
    return found


def _asked(run: Run) -> str:
    """Return the part of a run that determines its job."""
    passport, stack = run.passport, run.passport.stack
    workload = replace(run.workload, name="", family=None, user=None, script=None, script_sha256=None, features={})
    return every_field((workload, passport.gpu, passport.gpu_total_bytes, stack))


def _at_any_batch(run: Run) -> str:
    """Return the part of a run that determines its job, but for the batch."""
    return _asked(replace(run, workload=replace(run.workload, batch=(), labels=None, batch_size=None)))


def _refusals(store_path: Path) -> Path:
    return store_path.with_name("refusals.jsonl")


def _refused(store_path: Path) -> dict[str, str]:
    path = _refusals(store_path)
    rows = [row for _, row in read_lines(path) if isinstance(row, dict)] if path.exists() else []
    return {str(row["id"]): row["reason"] for row in rows if isinstance(row.get("reason"), str) and "id" in row}


def _refuse(reasons: dict[str, str], store_path: Path) -> None:
    if reasons:
        with Journal(_refusals(store_path)) as lines:
            lines.append_all({"id": key, "reason": reason} for key, reason in reasons.items())


def _may_pass(reason: str) -> bool:
    """Return whether a job may be estimated later, because this machine failed and not the job."""
    return reason.removeprefix(_CANNOT) in _OF_THE_MACHINE


def _with_second_round(example: Example, measured: tuple[int | None, int | None] | None) -> Example:
    """Return the example with the results of capped runs, which replace those of the simulator."""
    return example if measured is None else replace(example, ran_at=measured[0], died_at=measured[1], is_emulated=False)


def _simulated(jobs: Sequence[tuple[str, Job]], n_jobs: int) -> Iterator[dict[str, Example | str]]:
    """Yield the examples of jobs by key, one portion at a time."""
    portions = [jobs[start : start + _PORTION] for start in range(0, len(jobs), _PORTION)]
    if n_jobs == 1:
        yield from (_portion(portion) for portion in portions)
        return
    with joblib.Parallel(n_jobs=n_jobs, return_as="generator") as parallel:
        yield from parallel(joblib.delayed(_portion)(portion) for portion in portions)


def _portion(jobs: Sequence[tuple[str, Job]]) -> dict[str, Example | str]:
    found = ((key, simulated(job)) for key, job in jobs)
    return {key: replace(one, id=key) if isinstance(one, Example) else one for key, one in found}


# ------------------------------------------------------------------------------------------------ keys
def _key(job: Job) -> str:
    """Return the key of an example, from its job and everything else that determines it."""
    somewhere = replace(job, working_folder=".")  # an example does not depend on its folder
    return digest(every_field(somewhere), _target_text(job), cudnn_asked(job.stack), *decides_all(), digits=64)


def decides_all() -> list[str]:
    """Return the inputs of every example besides its job: settings, the site's file, versions, our own code."""
    site = site_file()
    site_text = site.sha256 if site is not None else ""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if decision(name) is VariableRule.OBEYED)
    return [*settings, site_text, *_versions(), _own_code()]


def _target_text(job: Job) -> str:
    """Return the text of a target's own file (a factory, or the config of a model); "" if it names none."""
    kind, _, place = (job.target or "").partition(":")
    named = Path(kind if kind.endswith(".py") else place.partition("?")[0])
    file = named / "config.json" if named.is_dir() else named
    try:
        return file.read_text(errors="replace") if file.is_file() else ""
    except OSError:
        return ""


@functools.cache
def _versions() -> tuple[str, ...]:
    """Return the versions of all distributions on the import path: which ones a job imports is known only after it ran."""
    return tuple(sorted(f"{one.name} {one.version}" for one in metadata.distributions()))


@functools.cache
def _own_code() -> str:
    return digest(*map(sha256_of, _own_files()), digits=64)


def _own_files() -> list[Path]:
    found = (Path(folder, name) for folder, _, names in os.walk(FOLDER, followlinks=True) for name in names)
    return sorted(path for path in found if path.suffix in _SUFFIXES)
