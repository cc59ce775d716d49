"""Requests about a batch script, and their answers: its commands together, as they follow one another or overlap."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from vramcast.cluster.service.requests import check_files, read_model, read_question
from vramcast.cluster.service.responses import Bytes, CheckAnswer, EstimateId, VerdictResponse
from vramcast.cluster.service.script_plans import files_below
from vramcast.cluster.service.service import CachedAnswer, Service
from vramcast.cluster.shell.plan import Plan, ScriptStep, from_plain, peak_bytes
from vramcast.core.units import gib
from vramcast.estimates.verdict import EXIT_CODES, Value

_SCRIPT_CHARACTERS: Final = 1 << 20  # arbitrary: the grammar accepts 256 KiB, and reports a longer script itself
_MOST_WORDS: Final = 1_000  # arbitrary
_MOST_TASKS: Final = 100_000  # arbitrary: processes of a job
_KEPT: Final = 1_000  # arbitrary: plans in memory; a few kB each


class ScriptRequest(BaseModel):
    """A batch script as submitted. It is read, and its training commands run in a sandbox; only with --allow-code."""

    model_config = ConfigDict(extra="forbid", strict=True)

    script: str = Field(max_length=_SCRIPT_CHARACTERS)
    arguments: list[str] = Field(default_factory=list, max_length=_MOST_WORDS)
    folder: str = Field(pattern="^/", max_length=4096, description="folder in which the job runs")
    environment: dict[str, str | None] = Field(
        default_factory=dict, description="environment variables of the job; null: set to a value that is not given"
    )
    files: dict[str, str] = Field(default_factory=dict, description="files of the job: text by relative path")
    tasks: int = Field(1, ge=1, le=_MOST_TASKS, description="number of processes that `srun` starts")
    nodes: int = Field(1, ge=1, le=_MOST_TASKS)
    cards: int = Field(1, ge=0, le=_MOST_TASKS, description="whole cards of the job; 0: part of one")
    device: str = Field("h200", max_length=100, description="the card")
    level: float = Field(0.99, gt=0, lt=1, description="confidence level of the upper bound")
    wait_s: float = Field(30.0, ge=0, le=600, description="how long the client waits for the answer")


class ScriptAnswer(BaseModel):
    """The verdict on whether the training in a script fits on the card, and the memory to request for it."""

    id: EstimateId | None = Field(None, description="id of the command with the largest need; absent: several that overlap")
    state: Literal["done"] = "done"
    verdict: VerdictResponse
    request_bytes: Bytes = Field(description="the memory to request from the scheduler")
    process_bytes: Bytes = Field(description="the point estimate of the largest sum of processes")
    capacity_bytes: Bytes = Field(description="the card")
    commands: int = Field(ge=1, description="training commands of the script")
    holds_for: str = Field("", description="as of a check, if one command decides")
    steps_ask_for_cards: bool = Field(description="whether an `srun` of the script requests whole cards itself")


class ScriptRunning(BaseModel):
    """The answer is not ready yet: send the request again."""

    state: Literal["running"] = "running"


def read_script_request(body: bytes) -> ScriptRequest:
    """Return the request in a body.

    Raises:
        UsageError: The body is not such a request.
    """
    found: ScriptRequest = read_model(ScriptRequest, body)
    check_files(found.files)
    return found


class Scripts:
    """Answers to requests about scripts: each script is read once, and its commands are answered like other questions.

    Args:
        service: Answers the commands.
        check: Makes the answer of one command.
    """

    def __init__(self, service: Service, check: Callable[[CachedAnswer], Awaitable[CheckAnswer]]) -> None:
        self._service, self._check = service, check
        self._plans: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._reading: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def answer(self, asked: ScriptRequest, asker: str = "") -> ScriptAnswer | ScriptRunning | dict[str, Any]:
        """Return the answer, or an error in the form of `service.error_of`.

        Args:
            asked: The script.
            asker: Queue share of the client.
        """
        latest = time.monotonic() + asked.wait_s
        plan = await self._plan(asked, asker)
        if plan is None:
            return ScriptRunning()
        if "error" in plan:
            return plan
        files = {folder: files_below(asked.files, folder) for folder in {step["folder"] for step in plan["steps"]}}
        found = await asyncio.gather(*(self._one(step, asked, files, latest, asker) for step in plan["steps"]))
        checks: list[CheckAnswer] = []
        for one in found:
            if isinstance(one, dict):
                return one
            if one is None:
                return ScriptRunning()
            checks.append(await self._check(one))
        return together(plan, checks, asked.cards)

    async def _one(
        self, step: dict[str, Any], asked: ScriptRequest, files: dict[str, dict[str, str]], latest: float, asker: str
    ) -> CachedAnswer | dict[str, Any] | None:
        """Return the answer for one command."""
        body = {name: step[name] for name in ("command", "environment", "world_size", "nproc_per_node")}
        body |= {"files": files[step["folder"]], "device": asked.device, "level": asked.level}
        wait_s = max(0.0, latest - time.monotonic())
        return (await self._service.answer(read_question(json.dumps({**body, "wait_s": wait_s}).encode()), asker))[1]

    async def _plan(self, asked: ScriptRequest, asker: str) -> dict[str, Any] | None:
        """Return a worker's plan of a script; None: the client's waiting time is over."""
        values = asked.model_dump(exclude={"wait_s", "device", "level"})
        key = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        if (kept := self._plans.get(key)) is not None:
            self._plans.move_to_end(key)
            return kept
        if (task := self._reading.get(key)) is None:
            self._reading[key] = task = asyncio.create_task(self._service.read_script(values, asker))
            task.add_done_callback(lambda done: self._keep(key, done))
        done, _ = await asyncio.wait({task}, timeout=asked.wait_s)
        return task.result() if done else None

    def _keep(self, key: str, done: asyncio.Task[dict[str, Any]]) -> None:
        del self._reading[key]
        if not done.cancelled() and not done.exception() and _is_lasting(done.result()):
            self._plans[key] = done.result()
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)


def _is_lasting(plan: dict[str, Any]) -> bool:
    """Return whether the plan depends only on the script, and not on the machine's state."""
    return "error" not in plan or plan["error"]["kind"] == "cannot_estimate"


def together(found: dict[str, Any], checks: list[CheckAnswer], cards: int) -> ScriptAnswer:
    """Return the answer for a script, given the answers for its commands.

    Args:
        found: The plan of the script, from a worker.
        checks: Answers by command.
        cards: Cards of the job. With several, commands that overlap may each have one, so that their sum does not decide.
    """
    steps = [ScriptStep((str(number),), copies=step["copies"]) for number, step in enumerate(found["steps"])]
    plan: Plan = from_plain(found["plan"], steps)

    def peak(sizes: list[int]) -> int:
        return peak_bytes(plan, dict(zip(steps, sizes, strict=True)))

    capacity_bytes = checks[0].capacity_bytes
    request_bytes, process_bytes = peak([one.request_bytes for one in checks]), peak([one.process_bytes for one in checks])
    largest = max(checks, key=lambda one: one.request_bytes)
    is_alone = request_bytes <= largest.request_bytes and process_bytes <= max(one.process_bytes for one in checks)
    refused, unsure = (_first(checks, value) for value in ("does not fit", "uncertain"))
    value: Value = "fits"
    reason = largest.verdict.reason
    if not is_alone:
        reason = f"commands overlap: together they need {gib(process_bytes)}, at most {gib(request_bytes)}"
    if refused is not None:
        value, reason = "does not fit", refused.reason
    elif process_bytes > capacity_bytes:
        value = "does not fit" if cards <= 1 else "uncertain"
    elif unsure is not None or request_bytes > capacity_bytes:
        value, reason = "uncertain", unsure.reason if unsure is not None else reason
    if value == "does not fit" and found["is_doubtful"]:
        value, reason = "uncertain", f"{reason}; whether that part of the script runs is only known at run time"
    return ScriptAnswer(
        id=largest.id if is_alone else None,
        verdict=VerdictResponse(value=value, exit_code=EXIT_CODES[value], reason=reason),  # type: ignore[arg-type]
        request_bytes=request_bytes,
        process_bytes=process_bytes,
        holds_for=largest.holds_for if is_alone else "",
        capacity_bytes=capacity_bytes,
        commands=len(steps),
        steps_ask_for_cards=found["steps_ask_for_cards"],
    )


def _first(checks: list[CheckAnswer], value: str) -> VerdictResponse | None:
    return next((one.verdict for one in checks if one.verdict.value == value), None)
