"""Requests that a client may send: one job, given by name, trace, measured run or command, and its card and options."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from vramcast.cluster.service.worker_answer import check_numbers
from vramcast.core.errors import DatasetError, UsageError
from vramcast.core.files import digest, sha256_of
from vramcast.datasets.run import Run
from vramcast.estimates.bounds.learned import SHIPPED, chosen, named
from vramcast.estimates.run_examples import decides_all
from vramcast.estimates.run_examples import job_of as job_of_run
from vramcast.hardware.cards import ENDING, device
from vramcast.jobs.job import Job, Training
from vramcast.jobs.optimizers import is_code
from vramcast.jobs.targets import refusal
from vramcast.jobs.text import JobText

KINDS: Final = ("target", "trace", "run", "command")
_OF_ALL: Final = frozenset({*KINDS, "level", "wait_s"})
# The learning rate does not affect memory, the card has `capacity_bytes`, and a command is followed as usual.
_NOT_ASKED: Final = ("training", "lr", "memory", "ranks", "until", "budget_s", "precise_values")
_OF_A_COMMAND: Final = ("command", "steps", "world_size", "nproc_per_node", "stack", "device", "capacity_bytes")
# Fields allowed with a kind of job that sets all others itself; a target sets only its name.
_BESIDE: Final = {"run": (), "trace": ("device", "capacity_bytes"), "command": (*_OF_A_COMMAND, "files", "environment")}
_OURS: Final = "VRAMCAST_"  # settings of the service, which a client cannot set
# JSON forms that replace a field's own type; an optimizer is a name, never a pickle.
_FORMS: Final = {"optimizer": str, "command": list[str] | None, "batch": list[str], "stack": str | None, "alloc_conf": str}
_LIMITS: Final[dict[str, dict[str, Any]]] = {
    "target": {
        "max_length": 10_000,
        "description": "torchvision:NAME, timm:NAME, hf:ORG/NAME of the built-in table, or hf:MODEL_TYPE",
    },
    "command": {"min_length": 1, "description": "a training command; only with --allow-code"},
    "batch": {"default": [], "max_length": 100},
    "alloc_conf": {"default": "", "max_length": 1000, "description": "PYTORCH_CUDA_ALLOC_CONF of the job"},
    "stack": {"max_length": 200},
    "world_size": {"ge": 1},
    "nproc_per_node": {"ge": 1},
    "steps": {"ge": 1, "le": 20},  # arbitrary: peaks settle in the second step; more would only take the service's time
}
_SHOWN_ERRORS: Final = 3  # arbitrary
_SHORT_BYTES: Final = 10_000  # arbitrary: longer requests, with traces and runs, are rarely repeated


class _Asked(BaseModel):
    """The fields of every request; strict: a wrong type or an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)

    trace: str | None = Field(None, description="a recorded trace or memory history, base64")
    run: dict[str, Any] | None = Field(None, description="a measured run, in the format of `vramcast measure`")
    files: dict[str, str] = Field(default_factory=dict, description="files of the command: text by relative path")
    environment: dict[str, str] = Field(default_factory=dict, description="environment variables of the command")
    device: str = Field("h200", max_length=100, description="the card")
    capacity_bytes: int | None = Field(None, gt=0, description="the card's memory, if it differs from the device's")
    level: float | None = Field(
        0.99, gt=0, lt=1, description="confidence level of the bound; null: what the job's class supports"
    )
    wait_s: float = Field(30.0, ge=0, le=600, description="how long the client waits for the answer")


def _options(job: type) -> dict[str, Any]:
    """Return the fields of a job's text for pydantic, with the help of the command line as their descriptions."""
    hints = {**get_type_hints(job), **_FORMS}
    asked = [one for one in fields(job) if one.name not in _NOT_ASKED]
    about = {
        one.name: {"default": one.default, "description": one.metadata.get("help"), **_LIMITS.get(one.name, {})}
        for one in asked
    }
    return {name: (hints[name], Field(**said)) for name, said in about.items()}


JobRequest = create_model("JobRequest", __base__=_Asked, **_options(JobText), **_options(Training))
JobRequest.__doc__ = "One job: exactly one of target, trace, run and command, with the options of the command line."


class ReportedResult(BaseModel):
    """The result of a job that an estimate was requested for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    estimate_id: str = Field(pattern=r"^[0-9a-f]{64}$")
    outcome: str = Field(pattern="^(finished|out_of_memory)$")
    request_bytes: int | None = Field(
        None, gt=0, le=1 << 50, description="the memory that the job was given; default: the request in the answer"
    )
    process_bytes: int | None = Field(None, gt=0, le=1 << 50, description="the process peak, as reported by NVML")
    reserved_bytes: int | None = Field(None, gt=0, le=1 << 50, description="torch.cuda.max_memory_reserved()")
    job_id: str | None = Field(
        None,
        max_length=200,
        description="the scheduler's id of the job; one observation per client and id counts, and one without an id",
    )
    device: str | None = Field(None, max_length=100, description="the card's name")


@dataclass(frozen=True)
class Question:
    """A checked request in the form that a worker process gets.

    Attributes:
        values: The request without the client's waiting time.
        wait_s: The client's waiting time.
        names_card: Whether it gives a card, by name or size.
    """

    values: dict[str, Any]
    wait_s: float
    names_card: bool = True

    @property
    def kind(self) -> str:
        """The kind of job description: one of `KINDS`."""
        return next(kind for kind in KINDS if self.values[kind] is not None)

    @property
    def is_code(self) -> bool:
        """Return whether an answer runs code from its client."""
        if self.kind == "target" and is_code(self.values.get("optimizer") or ""):
            return True
        return self.kind == "command" or (self.kind == "target" and bool(_refusal(self.values["target"])))

    def key(self, answered_by: str) -> str:
        """Return the id of the answer: the same for equal jobs, cards and levels, while the same program answers."""
        return hashlib.sha256(f"{answered_by} {self._text}".encode()).hexdigest()

    @functools.cached_property
    def _text(self) -> str:
        return json.dumps(self.values, sort_keys=True)


def answered_by(artifact: str | None) -> str:
    """Return a digest of everything besides the question that decides an answer: settings, versions, code, artifact.

    Raises:
        UsageError: The artifact is invalid.
    """
    path = (chosen(artifact) or named(SHIPPED)) / "artifact.json"
    return digest(*decides_all(), str(artifact), sha256_of(path), digits=64)


def read_question(body: bytes) -> Question:
    """Return the question in a body; do not change its values. The caller decides whether the service runs code.

    Raises:
        UsageError: The body is not a request, or its job is wrong.
    """
    return _remembered(body) if len(body) <= _SHORT_BYTES else _question(body)


@functools.lru_cache(maxsize=10_000)  # a scheduler often repeats a request: parsing it takes most of the time
def _remembered(body: bytes) -> Question:
    return _question(body)


def _question(body: bytes) -> Question:
    asked = read_model(JobRequest, body)
    values = asked.model_dump()
    check_numbers(values)
    given = [kind for kind in KINDS if values[kind] is not None]
    if len(given) != 1:
        raise UsageError(f"The request has {' and '.join(given) or 'no job'}: give exactly one of {', '.join(KINDS)}.")
    if values["command"] is None and values["environment"]:
        raise UsageError("The request has an environment, which only a command can have: add a command, or leave it out.")
    _check_beside(given[0], asked)
    if wrong := [name for name in values["environment"] if name.startswith(_OURS) or "=" in name or "\0" in name or not name]:
        raise UsageError(
            f"environment has '{wrong[0][:200]}': give only valid variable names that do not start with VRAMCAST_."
        )
    check_files(values["files"])
    values["device"] = device(_named(values["device"])).key
    names_card = given[0] == "run" or bool({"device", "capacity_bytes"} & asked.model_fields_set)
    question = Question(values, values.pop("wait_s"), names_card)
    if question.kind in ("target", "run") and not question.is_code:
        if values["files"]:
            raise UsageError("The request has files, which only a command can have, or a target inside them: leave them out.")
        job = job_of_question(values)  # an error in it is reported before it waits for a worker
        values["device"], values["capacity_bytes"] = job.device.key, job.total_bytes
    return question


def _check_beside(kind: str, asked: BaseModel) -> None:
    """Raise UsageError if a request has a field that has no effect for a job of its kind."""
    if (read := _BESIDE.get(kind)) is None:
        return
    defaults = {name: about.get_default(call_default_factory=True) for name, about in type(asked).model_fields.items()}
    others = sorted(asked.model_fields_set - _OF_ALL - {*read})
    if ignored := [name for name in others if kind == "run" or getattr(asked, name) != defaults[name]]:
        raise UsageError(
            f"The request has a {kind} and {', '.join(ignored)}: leave out the latter, because a {kind} sets "
            "its training options itself."
        )


def read_observation(body: bytes) -> ReportedResult:
    """Return the observation in a body.

    Raises:
        UsageError: The body is not an observation, or lacks the peak of a job that finished.
    """
    found: ReportedResult = read_model(ReportedResult, body)
    if found.outcome == "finished" and found.process_bytes is None and found.reserved_bytes is None:
        raise UsageError("The job finished, but its peak is missing: give process_bytes or reserved_bytes.")
    if found.device is not None:
        device(_named(found.device))
    return found


def _named(card: str) -> str:
    """Return a card's name; raise UsageError if it is a file's name."""
    if card.endswith(ENDING):
        raise UsageError(f"device is '{card}': give the name of a card, because the service opens no files.")
    return card


@functools.lru_cache(maxsize=10_000)
def _refusal(target: str) -> str:
    return refusal(target)


def job_of_question(values: dict[str, Any]) -> Job:
    """Return the job of a question that names a model, a measured run or a command.

    Raises:
        UsageError: It is wrong.
    """
    if values["run"] is not None:
        try:
            job = job_of_run(Run.from_dict(values["run"]))
        except DatasetError as error:
            raise UsageError(str(error)) from None
        if isinstance(job, str):
            raise UsageError(f"The run cannot be estimated: {job}.")
        return job
    if values["command"] is not None:
        values = {name: values[name] for name in _OF_A_COMMAND}
    return JobText.of({**values, "memory": values["capacity_bytes"]}).job(device(values["device"]))


def check_files(names: Iterable[str]) -> None:
    """Raise UsageError if a file of a request lies outside the job's folder."""
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name or not name:
            raise UsageError(f"files has '{name[:200]}': give paths within the job's folder.")


def read_model(model: Any, body: bytes) -> Any:
    """Return a body as an instance of a model.

    Raises:
        UsageError: The body does not match the model.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        said = [f"{'.'.join(map(str, one['loc'])) or 'the body'}: {one['msg']}" for one in error.errors(include_input=False)]
        raise UsageError(f"The request is invalid: {'; '.join(said[:_SHOWN_ERRORS])}.") from None
    except RecursionError:
        raise UsageError("The request is nested too deeply.") from None
