"""A campaign: the seeded list of jobs, measured one after another until the list or the time is used up.

    OUT/passport.json     the machine; device properties, cuDNN's device record, context by library
    OUT/runs.jsonl        one `Run` per line
    OUT/histories.jsonl   {"id", "first", "last"}: the request sizes of a run's first and last step, see `child.packed`

A campaign that was stopped for any reason resumes if it is started again with the same OUT: jobs with a line are not run
again.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import CannotEstimate, DatasetError, TimeLimit, WorkerError
from vramcast.core.files import atomic_write
from vramcast.core.plain import to_plain
from vramcast.core.units import gib
from vramcast.datasets.collector.machine import Machine, MakeMachine
from vramcast.datasets.collector.measured_job import MeasuredFacts, MeasureRequest
from vramcast.datasets.collector.nvml import Sampler, observed, sampling
from vramcast.datasets.journal import Journal, read_runs
from vramcast.datasets.run import DRY_RUN, Measurement, Passport, Run, Workload
from vramcast.datasets.workloads import workload_list

CHILD: Final = "vramcast.datasets.collector.measured_job"
PASSPORT: Final = "vramcast.datasets.collector.machine_info"
_CAP_RUNS: Final = 6  # arbitrary: bisects from the smallest card down to 1/64 of the range between allocated and reserved
_LAST_SHARE: Final = 0.85  # arbitrary: share of the time after which only jobs run that need the card for themselves
_PORTION: Final = 2000  # arbitrary: jobs drawn at a time, about a second


@dataclass(frozen=True, slots=True)
class CampaignLimits:
    """The part of the list to run, and the way to run it.

    Attributes:
        seed: Seed of the list.
        first: Index of the first job.
        count: Number of jobs; None: until the time is used up.
        budget_s: Time limit of the whole campaign.
        workers: Number of jobs on the card at the same time.
        job_timeout_s: Time limit of each job.
        sample_ms: Requested time between two samples of NVML.
    """

    seed: int = 1
    first: int = 0
    count: int | None = None
    budget_s: float = 1500.0
    workers: int = 1
    job_timeout_s: float = 300.0
    sample_ms: float = 5.0


@dataclass(slots=True)
class Summary:
    """The result of a campaign.

    Attributes:
        by_status: Runs written, including capped ones and repeats.
        skipped: Jobs that cannot run here, by reason.
        already: Number of jobs that had a line before.
        next_index: Index of the first job of the next shard.
    """

    by_status: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    already: int = 0
    next_index: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {"runs": sum(self.by_status.values()), **to_plain(self), "seconds": round(self.seconds, 1)}


@dataclass(frozen=True, slots=True)
class CampaignJob:
    """One job of the list. `alone`: it needs the card for itself."""

    index: int
    id: str
    workload: Workload
    alone: bool = False


class Campaign:
    """A run of the list.

    Args:
        out: Folder of the files, which no other campaign may be writing.
        limits: The part of the list, and the way to run it.
        machine: Makes a machine for each worker.
        say: Called with lines of progress.
    Raises:
        DatasetError: The folder cannot be written, or holds runs of another machine.
        CannotEstimate: There is no GPU here.
    """

    def __init__(
        self, out: Path, limits: CampaignLimits, machine: MakeMachine, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._out, self._limits, self._make_machine, self._say = out, limits, machine, say
        self.summary = Summary()
        self._lock = threading.Lock()
        self._alone: queue.SimpleQueue[CampaignJob] = queue.SimpleQueue()
        self._idle: list[Machine] = []
        self._open: set[int] = set()  # jobs that were begun and have no line yet
        self._reached = limits.first
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> Summary:
        """Measure until the list or the time is used up, and return a summary."""
        started = time.perf_counter()
        self._end = started + self._limits.budget_s
        self._late = started + _LAST_SHARE * self._limits.budget_s
        with Journal(self._out / "runs.jsonl") as runs, Journal(self._out / "histories.jsonl") as histories:
            self._runs, self._histories = runs, histories
            self._done = {run.id for run in read_runs(self._out / "runs.jsonl").runs}
            try:
                self._facts = self._passport()
                self._check_same_machine()
                with self._sampling() as self._sampler:
                    self._tasks = self._list()
                    self._work_all(self._limits.workers, self._next_shared)
                    self._work_all(1, self._next_alone)
            finally:
                for machine in self._idle:
                    machine.close()
        left = sum(1 for _ in iter(self._next_alone, None))
        if left:
            self.summary.skipped["no time was left to run it alone on the card"] += left
        if self._failure is not None:
            raise self._failure
        self.summary.next_index = min([*self._open, self._reached])
        self.summary.seconds = time.perf_counter() - started
        return self.summary

    # ------------------------------------------------------------------------------------------- the machine
    def _passport(self) -> dict[str, Any]:
        machine = self._machine()
        self._idle.append(machine)  # it measures jobs too; `run` closes it
        facts: dict[str, Any] = machine.run(PASSPORT, None, self._limits.job_timeout_s)
        if "absent" in facts:
            raise CannotEstimate(
                f"{facts['absent']}: nothing can be measured. Run this on a machine with a GPU, or test "
                "the list on the null GPU with --dry-run h200."
            )
        facts["passport"]["measured_by"] = machine.measured_by
        return facts

    def _machine(self) -> Machine:
        """Return an idle machine, or a new one."""
        with self._lock:
            return self._idle.pop() if self._idle else self._make_machine()

    def _check_same_machine(self) -> None:
        """Write the passport's file, or compare this machine with the one in it."""
        path = self._out / "passport.json"
        if not path.exists():
            with atomic_write(path, raises=DatasetError) as file:
                file.write(json.dumps(self._facts, indent=1).encode())
            return
        try:
            before = dict(json.loads(path.read_text())["passport"])
        except (OSError, ValueError, KeyError, TypeError):
            raise DatasetError(
                f"'{path}' is damaged: move the files of the folder elsewhere, or choose another --out."
            ) from None
        now = self._facts["passport"]
        for name in ("measured_by", "gpu", "gpu_total_bytes", "driver", "cuda", "cudnn", "torch", "libraries"):
            if before.get(name) != now[name]:
                raise DatasetError(
                    f"'{path}' is from a machine with {name} {before.get(name)!r}, but here it is {now[name]!r}: choose "
                    "another --out."
                )

    def _sampling(self) -> Any:
        if self._facts["passport"]["measured_by"] == DRY_RUN:
            return nullcontext(None)  # a card in this machine is not the one of a dry run
        return sampling(self._facts["uuid"], self._limits.sample_ms, self._say)

    # ------------------------------------------------------------------------------------------- the list
    def _list(self) -> Iterator[CampaignJob]:
        limits = self._limits
        available = self._facts["passport"]["libraries"]
        for id_, workload in self._drawn():
            index = int(id_.rpartition("-")[2])
            self._reached = index + 1
            package = {"hf": "transformers"}.get(workload.family or "", workload.family)
            if package in ("torchvision", "timm", "transformers") and package not in available:
                self.summary.skipped[f"{package} is not installed"] += 1
            elif id_ in self._done:
                self.summary.already += 1
            else:
                self._open.add(index)
                yield CampaignJob(index, id_, workload, alone=limits.workers == 1)

    def _drawn(self) -> Iterator[tuple[str, Workload]]:
        at, end = self._limits.first, None if self._limits.count is None else self._limits.first + self._limits.count
        while end is None or at < end:
            portion = _PORTION if end is None else min(_PORTION, end - at)
            yield from workload_list.workloads(self._limits.seed, at, portion)
            at += portion

    def _next_shared(self) -> CampaignJob | None:
        with self._lock:
            # Jobs that must run alone come last, and get their share of the time.
            if self._limits.workers > 1 and time.perf_counter() > self._late:
                return None
            return next(self._tasks, None)

    def _next_alone(self) -> CampaignJob | None:
        with suppress(queue.Empty):
            return self._alone.get_nowait()
        return None

    # ------------------------------------------------------------------------------------------- the work
    def _work_all(self, workers: int, following: Callable[[], CampaignJob | None]) -> None:
        threads = [threading.Thread(target=self._work, args=(following,)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, following: Callable[[], CampaignJob | None]) -> None:
        machine = self._machine()
        try:
            while not self._stop.is_set() and time.perf_counter() < self._end and (task := following()) is not None:
                self._measure(machine, task)
        except BaseException as error:  # a full disk ends the campaign, in every thread
            self._failure = self._failure or error
            self._stop.set()
        finally:
            with self._lock:
                self._idle.append(machine)

    def _measure(self, machine: Machine, task: CampaignJob) -> None:
        run, history = self._one(machine, task, task.id, task.workload)
        if run is None:
            return
        measured = run.measurement
        if not task.alone and (measured.status in ("oom", "killed") or measured.retries):
            # Other jobs filled the card: the need of this one only shows if it has the card for itself.
            self._alone.put(replace(task, alone=True))
            return
        self._write(run, history)
        self._open.discard(task.index)
        if measured.status == "ok" and workload_list.is_repeated(task.index):
            again, _ = self._one(machine, task, f"{task.id}/repeat", task.workload, recorded=False)
            if again is not None:
                self._write(replace(again, measurement=replace(again.measurement, repeat_of=task.id)), {})
        if measured.status == "ok" and workload_list.is_capped(task.index):
            self._measure_smallest_card(machine, task, measured)

    def _measure_smallest_card(self, machine: Machine, task: CampaignJob, free: Measurement) -> None:
        """Run the job with a capped allocator, by bisection between its allocated and its reserved peak."""
        low, high = free.allocated_bytes, free.reserved_bytes
        if low is None or high is None:
            return
        for number in range(_CAP_RUNS):
            # spec: a small segment, the smallest request of the allocator
            if time.perf_counter() >= self._end or high - low <= 2 << 20:
                return
            cap = (low + high) // 2
            workload = replace(task.workload, cap_bytes=cap)
            run, _ = self._one(machine, task, f"{task.id}/cap{number}", workload, recorded=False)
            if run is None or run.measurement.status not in ("ok", "oom"):
                return
            self._write(run, {})
            low, high = (low, cap) if run.measurement.status == "ok" else (cap, high)

    def _one(
        self, machine: Machine, task: CampaignJob, id_: str, workload: Workload, *, recorded: bool = True
    ) -> tuple[Run | None, dict[str, str]]:
        """Run one job; return None if the campaign's time ended it."""
        left = self._end - time.perf_counter()
        limit = min(self._limits.job_timeout_s, left)
        if limit <= 0:
            return None, {}
        sampler: Sampler | None = self._sampler
        window = sampler.open() if sampler else None
        started = time.perf_counter()
        try:
            answer: MeasuredFacts = machine.run(
                CHILD, MeasureRequest(workload, recorded, task.alone and sampler is not None, self._facts["uuid"]), limit
            )
        except TimeLimit as error:
            if limit < self._limits.job_timeout_s:
                return None, {}
            answer = MeasuredFacts(0, "timeout", str(error))
        except WorkerError as error:
            answer = MeasuredFacts(0, "killed", str(error)[:500])
        finally:
            if sampler and window:
                sampler.close(window)
        seconds = time.perf_counter() - started
        seen, how = observed(window, answer.pid, alone=task.alone)
        measurement = Measurement(
            answer.status,
            censored=answer.status in ("oom", "killed", "timeout"),
            steps=answer.steps,
            step_ms=tuple(answer.step_ms),
            workers=1 if task.alone else self._limits.workers,
            workspaces=tuple(answer.workspaces),
            seconds=round(seconds, 3),
            message=answer.message,
            **seen,
            **answer.counters,
        )
        known = replace(workload, model_sha256=answer.model_sha256, features=answer.features)
        stamp = Passport(**self._facts["passport"], how=how, period_ms=sampler.period_ms if sampler else None)
        return Run(id_, known, stamp, measurement), answer.history

    def _write(self, run: Run, history: dict[str, str]) -> None:
        with self._lock:
            # Write the history first: a run's line means that all its data is there.
            if history:
                self._histories.append({"id": run.id, **history})
            self._runs.append(run.to_dict())
            self.summary.by_status[run.measurement.status] += 1
            count = sum(self.summary.by_status.values())
        peak = run.measurement.reserved_bytes
        left = max(0.0, self._end - time.perf_counter())
        what = f"{run.workload.name} {run.measurement.status}{f', reserved {gib(peak)}' if peak else ''}"
        self._say(f"{count} runs, {left:.0f} s left; {run.id} {what}")


def say_on_stderr(interval_s: float = 10.0) -> Callable[[str], None]:
    """Return a `say` that shows at most one line per `interval_s` seconds."""
    last = -interval_s

    def say(line: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= interval_s:
            last = now
            print(line, file=sys.stderr, flush=True)

    return say
