"""What the service does with a question: kept answers first, equal questions joined, workers for the others; and observations.

Requests at the service's level are kept true per class of jobs (`vramcast.estimates.adaptive_level`): each observed job moves
the level which is asked of the next one of its class.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from vramcast.core.errors import Overloaded, TimeLimit, UsageError, VramcastError, WorkerError
from vramcast.core.text import shorten
from vramcast.estimates.adaptive_level import RATE, Online
from vramcast.hardware.cards import device
from vramcast.learner.conformal import Adaptive
from vramcast.learner.residual_tree import CAUSES
from vramcast.service.requests import Observation, Question
from vramcast.service.responses import Verdict
from vramcast.service.store import GroupState, Store
from vramcast.service.workers import Workers

_IN_MEMORY: Final = 10_000  # arbitrary: answers; some 4 kB each
_FAILURES: Final = 1_000  # arbitrary
LASTING: Final = "cannot_estimate"  # what the job itself is the reason for; it fails again
_TRANSIENT: Final = "worker"  # another time it may go well
NO_CAUSE: Final = "no known cause"
_LONGEST_NAME: Final = 200  # arbitrary: characters of a target in the log
_LOG: Final = logging.getLogger(__name__)


def error_of(error: VramcastError) -> dict[str, Any]:
    """Return why a question has no answer, as JSON has it."""
    kinds: dict[type[VramcastError], str] = {Overloaded: "overloaded", TimeLimit: "timeout", WorkerError: _TRANSIENT}
    kind = next((kind for cls, kind in kinds.items() if isinstance(error, cls)), LASTING)
    retry = {"retry_after_s": error.retry_after_s} if isinstance(error, Overloaded) else {}
    return {"error": {"kind": kind, "message": str(error), **retry}}


@dataclass(frozen=True)
class Answer:
    """An answer as it is kept.

    Attributes:
        id: Of the question.
        text: The estimate's JSON, and its bound at several levels, ascending.
    """

    id: str
    text: bytes

    @cached_property
    def _found(self) -> dict[str, Any]:
        return json.loads(self.text)  # type: ignore[no-any-return]

    @property
    def estimate(self) -> dict[str, Any]:
        """The contract's JSON."""
        return self._found["estimate"]  # type: ignore[no-any-return]

    @property
    def verdict(self) -> Verdict:
        """Whether the job fits its card."""
        return Verdict(**self.estimate["verdict"])

    @cached_property
    def levels(self) -> Mapping[float, int]:
        """Bytes by level, ascending."""
        return {float(level): size for level, size in self._found["levels"].items()}

    @property
    def card_bytes(self) -> int:
        """The size of the job's card."""
        return int(self.estimate["memory_bytes"])

    @property
    def group(self) -> str:
        """The class of the job: its causes of wide residuals."""
        traits = self.estimate["traits"]
        return ", ".join(f"{trait} {value}" for trait, value in CAUSES if traits.get(trait) == value) or NO_CAUSE

    def quantile(self, level: float) -> int:
        """Return the process peak's quantile: that of the next kept level, or of the last."""
        known = list(self.levels)
        return self.levels[known[min(bisect.bisect_left(known, level), len(known) - 1)]]


class Service:
    """Answers questions, each once.

    Args:
        store: What is kept.
        workers: Who answers.
        sandboxes: Who answers what its client wrote; None: nobody.
        answered_by: What decides answers besides the questions: versions and the artifact.
        level: Of requests.
    """

    def __init__(
        self, store: Store, workers: Workers, answered_by: str, level: float = 0.99, sandboxes: Workers | None = None
    ) -> None:
        self._store = store
        self._workers = workers
        self._sandboxes = sandboxes
        self._answered_by = answered_by
        self._kept: OrderedDict[str, Answer] = OrderedDict()
        self.failures: OrderedDict[str, dict[str, Any]] = OrderedDict()  # why questions have no answer, by id
        self.asking: dict[str, asyncio.Task[dict[str, Any]]] = {}  # questions which are being answered, or wait for it
        self._observing = asyncio.Lock()
        self.level = level
        self.groups = store.groups()
        self.from_cache = 0
        self.joined = 0

    def kept(self, id_: str) -> Answer | None:
        """Return the kept answer to a question."""
        if (answer := self._kept.get(id_)) is not None:
            self._kept.move_to_end(id_)
        elif (text := self._store.answer(id_)) is not None:
            answer = Answer(id_, text)
            self._remember(self._kept, answer.id, answer, _IN_MEMORY)
        return answer

    async def answer(self, question: Question) -> tuple[str, Answer | dict[str, Any] | None]:
        """Return the question's id, and its answer: an estimate, an error, or None if its client must go before."""
        id_ = question.key(self._answered_by)
        if (answer := self.kept(id_)) is not None:
            self.from_cache += 1
            return id_, answer
        if (failure := self.failures.get(id_)) is not None and failure["error"]["kind"] == LASTING:
            return id_, failure
        task = self.asking.get(id_)
        if task is None:
            task = asyncio.create_task(self._ask(id_, question))
            self.asking[id_] = task
            task.add_done_callback(lambda _: self.asking.pop(id_, None))
        else:
            self.joined += 1
        done, _ = await asyncio.wait({task}, timeout=question.wait_s)
        if not done:
            return id_, None
        found = task.result()
        return id_, found if "error" in found else self.kept(id_)

    async def _ask(self, id_: str, question: Question) -> dict[str, Any]:
        """Return the answer, or why there is none, and keep either: who does not wait comes back for it."""
        self.failures.pop(id_, None)
        began = time.monotonic()
        try:
            pool = self._workers if not question.is_code else self._sandboxes
            if pool is None:
                raise UsageError(f"The {question.kind} is code, and nobody runs it here.")
            found = await pool.ask(question.values)
        except VramcastError as error:
            found = error_of(error)
        outcome = found["error"]["message"] if "error" in found else found["estimate"]["verdict"]["value"]
        about = shorten(question.values["target"] or question.kind, _LONGEST_NAME)
        _LOG.info("estimate %s of %s after %.1f s: %s", id_, about, time.monotonic() - began, outcome)
        if "error" in found:
            self._remember(self.failures, id_, found, _FAILURES)
            return found
        text = json.dumps(found).encode()
        await asyncio.to_thread(self._store.keep, id_, text)
        self._remember(self._kept, id_, Answer(id_, text), _IN_MEMORY)
        return found

    @staticmethod
    def _remember(where: OrderedDict[str, Any], id_: str, value: Any, most: int) -> None:
        where[id_] = value
        where.move_to_end(id_)
        while len(where) > most:
            where.popitem(last=False)

    # -------------------------------------------------------------------------------------------- requests and how jobs went
    def request_bytes(self, answer: Answer) -> int:
        """Return what to ask of the card: at the level that jobs of its class ask for now, or all where no bound holds."""
        if answer.estimate["doubts"]:
            return answer.card_bytes
        state = self.groups.get(answer.group)
        return Online(self.level, asked=None if state is None else state.asked).request(answer)

    async def observe(self, observed: Observation) -> tuple[str, bool]:
        """Take in how a job went; return the observation's id, and whether it is new.

        Raises:
            UsageError: its estimate is not known, or its card is not.
        """
        async with self._observing:
            if observed.job_id is not None and (known := self._store.observation(observed.job_id)) is not None:
                return known, False
            answer = self.kept(observed.estimate_id)
            if answer is None:
                raise UsageError(f"estimate_id {observed.estimate_id} is not known here: ask for the estimate first.")
            if observed.device is not None:
                device(observed.device)
            state = self._judged(answer, observed)
            id_ = await asyncio.to_thread(self._store.observe, observed.model_dump(), answer.group, state)
            self.groups[answer.group] = state
            _LOG.info("observation %s of estimate %s: %s", id_, observed.estimate_id, observed.outcome)
            return id_, True

    def _judged(self, answer: Answer, observed: Observation) -> GroupState:
        """Return where a job's group stands after it."""
        before = self.groups.get(answer.group, GroupState(self.level))
        request_bytes = observed.request_bytes or self.request_bytes(answer)
        died = observed.outcome == "out_of_memory"
        measured_bytes = observed.process_bytes
        if measured_bytes is None and observed.reserved_bytes is not None:
            measured_bytes = observed.reserved_bytes + int(answer.estimate["context_bytes"] or 0)
        covered = not died and measured_bytes is not None and measured_bytes <= request_bytes
        asked = Adaptive(self.level, RATE, before.asked).observe(covered=covered)
        over = request_bytes / measured_bytes - 1 if measured_bytes else 0.0
        return GroupState(asked, before.observed + 1, before.covered + covered, before.over + over)
