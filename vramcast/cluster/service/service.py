"""Answers to questions: cached ones first, equal questions joined, workers for the rest; and observations.

Requests at the service's level are kept calibrated by class of jobs (`vramcast.estimates.adaptive_level`): each observed
job moves the level for the next job of its class, each client within its weight. An observation is compared with the
request that was answered for its job.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from vramcast.cluster.service.clients import WEIGHT, Client
from vramcast.cluster.service.requests import Question, ReportedResult
from vramcast.cluster.service.responses import VerdictResponse, Words
from vramcast.cluster.service.store import GroupState, Store
from vramcast.cluster.service.workers import Workers
from vramcast.core.errors import OutputError, Overloaded, TimeLimit, UsageError, VramcastError, WorkerError
from vramcast.core.text import shorten
from vramcast.core.units import MIB
from vramcast.estimates.adaptive_level import HIGHEST, RATE, Online
from vramcast.learner.conformal import AdaptiveConformal
from vramcast.learner.residual_tree import CAUSES

_IN_MEMORY: Final = 10_000  # arbitrary: answers; about 4 kB each
_IN_MEMORY_BYTES: Final = 256 << 20  # arbitrary: all answers together
_FAILURES: Final = 1_000  # arbitrary
LASTING: Final = "cannot_estimate"  # caused by the job itself; it would fail again
_TRANSIENT: Final = "worker"  # may succeed at another time
# arbitrary: the lowest level to which observations move a request; below it a bound is little more than the point estimate
_LOWEST: Final = 0.9
_ROUNDED_BYTES: Final = MIB  # spec: the unit of Slurm and Kubernetes: a job may have been given this much less than the request
_MOST_OVER: Final = 100.0  # arbitrary: a job that took a hundredth of its request counts like one that took nothing
NO_CAUSE: Final = "no known cause"
_LONGEST_NAME: Final = 200  # arbitrary: characters of a target in the log
_LOG: Final = logging.getLogger(__name__)


def error_of(error: VramcastError) -> dict[str, Any]:
    """Return the reason for a missing answer as JSON values."""
    kinds: dict[type[VramcastError], str] = {Overloaded: "overloaded", TimeLimit: "timeout", WorkerError: _TRANSIENT}
    kind = next((kind for cls, kind in kinds.items() if isinstance(error, cls)), LASTING)
    retry = {"retry_after_s": error.retry_after_s} if isinstance(error, Overloaded) else {}
    return {"error": {"kind": kind, "message": str(error), **retry}}


@dataclass(frozen=True)
class CachedAnswer:
    """A cached answer.

    Attributes:
        id: Id of the question.
        text: The estimate's JSON, and its bound at several levels, ascending.
        is_kept: Whether it survives a restart.
    """

    id: str
    text: bytes
    is_kept: bool = True

    @cached_property
    def _found(self) -> dict[str, Any]:
        return json.loads(self.text)  # type: ignore[no-any-return]

    @property
    def estimate(self) -> dict[str, Any]:
        """The documented JSON of the estimate."""
        return self._found["estimate"]  # type: ignore[no-any-return]

    @property
    def verdict(self) -> VerdictResponse:
        """The verdict on whether the job fits on its card."""
        return VerdictResponse(**self.estimate["verdict"])

    @property
    def words(self) -> Words:
        """The answer in words; only the verdict's reason if an earlier version answered."""
        found = self._found.get("words")
        return Words(headline=self.verdict.reason, lines={}, sentences=[], assumed=[]) if found is None else Words(**found)

    @cached_property
    def levels(self) -> Mapping[float, int]:
        """Bytes by level, ascending."""
        return {float(level): size for level, size in self._found["levels"].items()}

    @property
    def card_bytes(self) -> int:
        """Memory of the job's card."""
        return int(self.estimate["memory_bytes"])

    @property
    def group(self) -> str:
        """The class of the job: the causes that widen its residuals."""
        traits = self.estimate["traits"]
        return ", ".join(f"{trait} {value}" for trait, value in CAUSES if traits.get(trait) == value) or NO_CAUSE

    def bound_at(self, level: float) -> int:
        """Return the bound of the process peak at a level: that of the next higher stored level, or of the last."""
        known = list(self.levels)
        return self.levels[known[min(bisect.bisect_left(known, level), len(known) - 1)]]


class Service:
    """Answers to questions, each computed once.

    Args:
        store: The persistent data.
        workers: Workers for models.
        sandboxes: Workers for clients' code; None: code is not run.
        answered_by: Digest of the versions and the artifact that decide answers.
        level: Confidence level of requests.
        weights: Influence of each client's observations; 0 for clients that are not listed.
    """

    def __init__(
        self,
        store: Store,
        workers: Workers,
        answered_by: str,
        level: float = 0.99,
        sandboxes: Workers | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._store = store
        self._workers = workers
        self._sandboxes = sandboxes
        self._answered_by = answered_by
        self._kept: OrderedDict[str, CachedAnswer] = OrderedDict()
        self._kept_bytes = 0
        self._requests: OrderedDict[str, list[int]] = OrderedDict()  # requests answered for an estimate, the latest last
        self.failures: OrderedDict[str, dict[str, Any]] = OrderedDict()  # reasons for missing answers, by id
        self._untold: OrderedDict[str, str] = OrderedDict()  # clients that did not wait for a failure, by id
        self.asking: dict[str, asyncio.Task[dict[str, Any]]] = {}  # questions in work or in the queue
        self.began: dict[str, float] = {}  # when, on the monotonic clock
        self._observing = asyncio.Lock()
        self.level = level
        self._weights = {"": WEIGHT} if weights is None else weights
        self.groups = store.groups()
        self.from_cache = 0
        self.joined = 0

    @property
    def trouble(self) -> str:
        """Data that cannot be stored at present, and the reason; "": there is none."""
        return self._store.trouble

    @property
    def waiting(self) -> int:
        """The number of questions about models that wait for a worker."""
        return self._workers.waiting

    def kept(self, id_: str) -> CachedAnswer | None:
        """Return the cached answer to a question."""
        if (answer := self._kept.get(id_)) is not None:
            self._kept.move_to_end(id_)
        elif (text := self._store.answer(id_)) is not None:
            answer = CachedAnswer(id_, text)
            self._remember_answer(answer)
        return answer

    def knows(self, question: Question) -> bool:
        """Return whether a question was asked before, so that it takes no more work."""
        id_ = question.key(self._answered_by)
        return id_ in self.asking or id_ in self.failures or self.kept(id_) is not None

    async def answer(self, question: Question, asker: str = "") -> tuple[str, CachedAnswer | dict[str, Any] | None]:
        """Return the question's id and its answer: an estimate, an error, or None if the client's waiting time is over.

        Args:
            question: The question.
            asker: Queue share of the client.
        """
        id_ = question.key(self._answered_by)
        if (answer := self.kept(id_)) is not None:
            self.from_cache += 1
            return id_, answer
        if (failure := self.failures.get(id_)) is not None and self._is_answer(failure, id_, question, asker):
            return id_, failure
        task = self.asking.get(id_)
        if task is None:
            task = asyncio.create_task(self._ask(id_, question, asker))
            self.asking[id_] = task
            task.add_done_callback(lambda _: (self.asking.pop(id_, None), self.began.pop(id_, None)))
        else:
            self.joined += 1
        done, _ = await asyncio.wait({task}, timeout=question.wait_s)
        if not done:
            return id_, None
        found = task.result()
        self._untold.pop(id_, None)
        return id_, found if "error" in found else self.kept(id_)

    def _is_answer(self, failure: dict[str, Any], id_: str, question: Question, asker: str) -> bool:
        """Return whether a failure answers an equal question: once if its client did not wait, always if it would recur.

        The machine may have caused a failure of code: its message does not reveal that.
        """
        if self._untold.get(id_) == asker:
            del self._untold[id_]
            return True
        return failure["error"]["kind"] == LASTING and not question.is_code

    async def _ask(self, id_: str, question: Question, asker: str) -> dict[str, Any]:
        """Return the answer or the reason for its absence, and store either for clients that come back for it."""
        self.failures.pop(id_, None)
        began = self.began[id_] = time.monotonic()
        try:
            pool = self._workers if not question.is_code else self._sandboxes
            if pool is None:
                raise UsageError(f"A {question.kind} is code, and this service does not run code.")
            found = await pool.ask(question.values, asker)
        except VramcastError as error:
            found = error_of(error)
        outcome = found["error"]["message"] if "error" in found else found["estimate"]["verdict"]["value"]
        about = shorten(question.values["target"] or question.kind, _LONGEST_NAME)
        _LOG.info("estimate %s of %s after %.1f s: %s", id_, about, time.monotonic() - began, outcome)
        if "error" in found:
            self._remember(self.failures, id_, found, _FAILURES)
            self._remember(self._untold, id_, asker, _FAILURES)
            return found
        answer = CachedAnswer(id_, json.dumps(found).encode())
        try:
            await asyncio.to_thread(self._store.keep, id_, answer.text)
        except OutputError as error:
            _LOG.warning("estimate %s is not stored: %s", id_, error)
            answer = replace(answer, is_kept=False)
        self._remember_answer(answer)
        return found

    async def read_script(self, values: dict[str, Any], asker: str = "") -> dict[str, Any]:
        """Return a batch script's plan, read in a sandbox (`script_plans.py`), or the reason why there is none."""
        if self._sandboxes is None:
            return error_of(UsageError("A script is code, and this service does not run code."))
        try:
            return await self._sandboxes.ask(values, asker)
        except VramcastError as error:
            return error_of(error)

    def _remember_answer(self, answer: CachedAnswer) -> None:
        if (before := self._kept.pop(answer.id, None)) is not None:
            self._kept_bytes -= len(before.text)
        self._kept[answer.id] = answer
        self._kept_bytes += len(answer.text)
        while len(self._kept) > _IN_MEMORY or self._kept_bytes > _IN_MEMORY_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1].text)

    @staticmethod
    def _remember(where: OrderedDict[str, Any], id_: str, value: Any, most: int) -> None:
        where[id_] = value
        where.move_to_end(id_)
        while len(where) > most:
            where.popitem(last=False)

    # ------------------------------------------------------------------------------------------ requests and observations
    def asked(self, group: str) -> float:
        """Return the level for the next job of a group, moved by each client within its weight."""
        moved = (self._within(client, state.asked) - self.level for client, state in self.groups.get(group, {}).items())
        return min(max(self.level + sum(moved), self._lowest), HIGHEST)

    @property
    def _lowest(self) -> float:
        return min(self.level, _LOWEST)

    def _within(self, client: str, asked: float) -> float:
        most = self._weights.get(client, 0.0) * (HIGHEST - self._lowest)
        return min(max(asked, self.level - most), self.level + most)

    async def request_bytes(self, answer: CachedAnswer) -> int:
        """Return the memory to request for a job now, and remember it."""
        request_bytes = self._request_now(answer)
        known = self._answered(answer.id)
        if request_bytes not in known[-1:]:
            known[:] = [*(one for one in known if one != request_bytes), request_bytes]
            try:
                await asyncio.to_thread(self._store.request, answer.id, request_bytes)
            except OutputError as error:
                _LOG.warning("the request of estimate %s is not stored: %s", answer.id, error)
        return request_bytes

    def _request_now(self, answer: CachedAnswer) -> int:
        """Return the memory to request: at the present level of the job's class, or the whole card if there is no bound."""
        if answer.estimate["doubts"]:
            return answer.card_bytes
        return Online(self.level, asked=self.asked(answer.group)).request(answer)

    def _answered(self, id_: str) -> list[int]:
        """Return the requests answered for an estimate, the latest last; the list itself is kept."""
        if id_ not in self._requests:
            self._remember(self._requests, id_, self._store.requests(id_), _IN_MEMORY)
        return self._requests[id_]

    async def observe(self, observed: ReportedResult, client: Client) -> tuple[str, bool]:
        """Store an observation; return its id, and whether it is new.

        Raises:
            UsageError: Its estimate is unknown, or the job was not given the request in an answer.
            OutputError: It cannot be stored.
        """
        async with self._observing:
            job = (client.name, observed.estimate_id, observed.job_id or "")
            if (known := self._store.observation(*job)) is not None:
                return known, False
            answer = self.kept(observed.estimate_id)
            if answer is None:
                raise UsageError(f"estimate_id {observed.estimate_id} is unknown here: request the estimate first.")
            state = self._judged(answer, observed, client.name)
            id_ = await asyncio.to_thread(self._store.observe, client.name, observed.model_dump(), answer.group, state)
            self.groups.setdefault(answer.group, {})[client.name] = state
            _LOG.info("observation %s of estimate %s: %s", id_, observed.estimate_id, observed.outcome)
            return id_, True

    def _judged(self, answer: CachedAnswer, observed: ReportedResult, client: str) -> GroupState:
        """Return the state of a job's group by a client after an observation."""
        before = self.groups.get(answer.group, {}).get(client, GroupState(self.level))
        judge = AdaptiveConformal(self.level, RATE, before.asked)
        request_bytes = self._requested(answer, observed.request_bytes)
        died = observed.outcome == "out_of_memory"
        measured_bytes = observed.process_bytes
        if measured_bytes is None and observed.reserved_bytes is not None:
            measured_bytes = observed.reserved_bytes + int(answer.estimate["context_bytes"] or 0)
        covered = not died and measured_bytes is not None and measured_bytes <= request_bytes
        asked = self._within(client, judge.observe(covered=covered))
        over = min(request_bytes / measured_bytes - 1, _MOST_OVER) if measured_bytes else 0.0
        return GroupState(asked, before.observed + 1, before.covered + covered, before.over + over)

    def _requested(self, answer: CachedAnswer, given_bytes: int | None) -> int:
        """Return the answered request that a job was given: the largest one that fits into its memory.

        Raises:
            UsageError: All answered requests are larger, or the card is smaller.
        """
        known = self._answered(answer.id) or list(answer.levels.values())
        if given_bytes is None:
            return (
                known[-1] if self._answered(answer.id) else Online(self.level, asked=self.asked(answer.group)).request(answer)
            )
        least_bytes = min(known) - _ROUNDED_BYTES
        if not least_bytes < given_bytes <= answer.card_bytes:
            raise UsageError(
                f"request_bytes is {given_bytes}, but must be between {min(known)}, the smallest request answered for this "
                f"estimate, and {answer.card_bytes}, its card. Send the memory that the job was given, or leave it out."
            )
        return max(one for one in known if one - _ROUNDED_BYTES < given_bytes)
