"""What a client may ask: one job, by name, trace, measured run or command, for which card; what else decides an answer."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from vramcast.core.errors import DatasetError, UsageError
from vramcast.core.files import digest, sha256_of
from vramcast.datasets.run import Run
from vramcast.estimates.bounds.learned import SHIPPED, chosen, named
from vramcast.estimates.run_examples import decides_all
from vramcast.estimates.run_examples import job_of as job_of_run
from vramcast.hardware.cards import ENDING, device
from vramcast.jobs.job import Job, Training
from vramcast.jobs.targets import refusal
from vramcast.jobs.text import JobText

KINDS: Final = ("target", "trace", "run", "command")
_OF_ALL: Final = frozenset({*KINDS, "level", "wait_s"})
# A learning rate moves no memory, the card has `capacity_bytes`, and a command is followed as usual.
_NOT_ASKED: Final = ("training", "lr", "memory", "ranks", "until", "budget_s")
_OF_A_COMMAND: Final = ("command", "steps", "world_size", "nproc_per_node", "stack", "device", "capacity_bytes")
# What is read beside a job of a kind that says the rest itself; a target says only its name.
_BESIDE: Final = {"run": (), "trace": ("device", "capacity_bytes"), "command": (*_OF_A_COMMAND, "files", "environment")}
_OURS: Final = "VRAMCAST_"  # settings of whoever answers: a client has none of them
# What JSON has in place of a field's own type; an optimizer is a name, never a pickle.
_FORMS: Final = {"optimizer": str, "command": list[str] | None, "batch": list[str], "stack": str | None, "alloc_conf": str}
_LIMITS: Final[dict[str, dict[str, Any]]] = {
    "target": {"max_length": 10_000, "description": "torchvision:NAME, timm:NAME or hf:MODEL_TYPE"},
    "command": {"min_length": 1, "description": "a training command; only with --allow-code"},
    "batch": {"default": [], "max_length": 100},
    "alloc_conf": {"default": "", "max_length": 1000, "description": "PYTORCH_CUDA_ALLOC_CONF of the job"},
    "stack": {"max_length": 200},
    "world_size": {"ge": 1},
    "nproc_per_node": {"ge": 1},
    "steps": {"ge": 1, "le": 20},  # arbitrary: peaks settle in the second step; more is somebody else's time
}
_SHOWN_ERRORS: Final = 3  # arbitrary
_SHORT_BYTES: Final = 10_000  # arbitrary: longer ones, with traces and runs, are rarely sent twice


class _Asked(BaseModel):
    """What every request may have; strict: a wrong type or an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)

    trace: str | None = Field(None, description="a recorded trace or memory history, base64")
    run: dict[str, Any] | None = Field(None, description="a measured run, as `vramcast measure` writes it")
    files: dict[str, str] = Field(default_factory=dict, description="the command's files, text by relative path")
    environment: dict[str, str] = Field(default_factory=dict, description="the command's variables")
    device: str = Field("h200", max_length=100, description="the card")
    capacity_bytes: int | None = Field(None, gt=0, description="the card's memory, where it is not the device's own")
    level: float = Field(0.99, gt=0, lt=1, description="of the upper bound")
    wait_s: float = Field(30.0, ge=0, le=600, description="how long the client waits for the answer")


def _options(job: type) -> dict[str, Any]:
    """Return the fields of a job's text as pydantic has them, with the help of the command line as their descriptions."""
    hints = {**get_type_hints(job), **_FORMS}
    asked = [one for one in fields(job) if one.name not in _NOT_ASKED]
    about = {
        one.name: {"default": one.default, "description": one.metadata.get("help"), **_LIMITS.get(one.name, {})}
        for one in asked
    }
    return {name: (hints[name], Field(**said)) for name, said in about.items()}


JobRequest = create_model("JobRequest", __base__=_Asked, **_options(JobText), **_options(Training))
JobRequest.__doc__ = "One job: exactly one of target, trace, run and command, and what the command line has as options."


class Observation(BaseModel):
    """How a job went that was asked about."""

    model_config = ConfigDict(extra="forbid", strict=True)

    estimate_id: str = Field(pattern=r"^[0-9a-f]{64}$")
    outcome: str = Field(pattern="^(finished|out_of_memory)$")
    request_bytes: int | None = Field(None, gt=0, le=1 << 50, description="what the job was given; default: what was answered")
    process_bytes: int | None = Field(None, gt=0, le=1 << 50, description="the process peak, as NVML says")
    reserved_bytes: int | None = Field(None, gt=0, le=1 << 50, description="torch.cuda.max_memory_reserved()")
    job_id: str | None = Field(
        None,
        max_length=200,
        description="the scheduler's own; of a client's observations of it, and of those without, one counts",
    )
    device: str | None = Field(None, max_length=100, description="the card's name")


@dataclass(frozen=True)
class Question:
    """One request, checked, as a worker process gets it.

    Attributes:
        values: The request without how long its client waits.
        wait_s: How long it does.
        names_card: Whether it says which card is meant, by its name or its size.
    """

    values: dict[str, Any]
    wait_s: float
    names_card: bool = True

    @property
    def kind(self) -> str:
        """How the job is given: one of `KINDS`."""
        return next(kind for kind in KINDS if self.values[kind] is not None)

    @property
    def is_code(self) -> bool:
        """Whether an answer runs what its client wrote."""
        return self.kind == "command" or (self.kind == "target" and bool(_refusal(self.values["target"])))

    def key(self, answered_by: str) -> str:
        """Return the id of the answer: the same for equal jobs, cards and levels, as long as the same program answers."""
        return hashlib.sha256(f"{answered_by} {self._text}".encode()).hexdigest()

    @functools.cached_property
    def _text(self) -> str:
        return json.dumps(self.values, sort_keys=True)


def answered_by(artifact: str | None) -> str:
    """Return a digest of what decides an answer besides its question: settings, versions, our own code, and the artifact.

    Raises:
        UsageError: the artifact is none.
    """
    path = (chosen(artifact) or named(SHIPPED)) / "artifact.json"
    return digest(*decides_all(), str(artifact), sha256_of(path), digits=64)


def read_question(body: bytes) -> Question:
    """Return what a body asks; its values are not to be changed. Whether code is answered is the service's to say.

    Raises:
        UsageError: it is no request, or of a job which is not named.
    """
    return _remembered(body) if len(body) <= _SHORT_BYTES else _question(body)


@functools.lru_cache(maxsize=10_000)  # a scheduler asks for the same job again: reading it takes most of the time
def _remembered(body: bytes) -> Question:
    return _question(body)


def _question(body: bytes) -> Question:
    asked = read_model(JobRequest, body)
    values = asked.model_dump()
    given = [kind for kind in KINDS if values[kind] is not None]
    if len(given) != 1:
        raise UsageError(f"The request has {' and '.join(given) or 'no job'}: give exactly one of {', '.join(KINDS)}.")
    if values["command"] is None and values["environment"]:
        raise UsageError("The request has an environment: it belongs to a command.")
    _check_beside(given[0], asked)
    if wrong := [name for name in values["environment"] if name.startswith(_OURS) or "=" in name or "\0" in name or not name]:
        raise UsageError(f"environment has '{wrong[0][:200]}': give variables of the command's own.")
    check_files(values["files"])
    values["device"] = device(_named(values["device"])).key
    names_card = given[0] == "run" or bool({"device", "capacity_bytes"} & asked.model_fields_set)
    question = Question(values, values.pop("wait_s"), names_card)
    if question.kind in ("target", "run") and not question.is_code:
        if values["files"]:
            raise UsageError("The request has files: they belong to a command, or to a target which is in them.")
        job = job_of_question(values)  # an error in it is reported before it waits for a worker
        values["device"], values["capacity_bytes"] = job.device.key, job.total_bytes
    return question


def _check_beside(kind: str, asked: BaseModel) -> None:
    """Raise UsageError where a request has a field which nothing would read beside a job of its kind."""
    if (read := _BESIDE.get(kind)) is None:
        return
    defaults = {name: about.get_default(call_default_factory=True) for name, about in type(asked).model_fields.items()}
    others = sorted(asked.model_fields_set - _OF_ALL - {*read})
    if ignored := [name for name in others if kind == "run" or getattr(asked, name) != defaults[name]]:
        raise UsageError(f"The request has a {kind} and {', '.join(ignored)}: a {kind} says itself how it trains, and on what.")


def read_observation(body: bytes) -> Observation:
    """Return what a body observed.

    Raises:
        UsageError: it is no observation, or says no peak of a job which finished.
    """
    found: Observation = read_model(Observation, body)
    if found.outcome == "finished" and found.process_bytes is None and found.reserved_bytes is None:
        raise UsageError("The job finished: give its process_bytes, or its reserved_bytes.")
    if found.device is not None:
        device(_named(found.device))
    return found


def _named(card: str) -> str:
    """Return a card's name; raise UsageError where it is a file's."""
    if card.endswith(ENDING):
        raise UsageError(f"device is '{card}': give a card's name; the service opens no file.")
    return card


@functools.lru_cache(maxsize=10_000)
def _refusal(target: str) -> str:
    return refusal(target)


def job_of_question(values: dict[str, Any]) -> Job:
    """Return the job of a question which names a model, a measured run or a command.

    Raises:
        UsageError: it is wrong.
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
    """Raise UsageError where a file that comes with a request lies outside of the job's folder."""
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name or not name:
            raise UsageError(f"files has '{name[:200]}': give paths within the job's folder.")


def read_model(model: Any, body: bytes) -> Any:
    """Return what a body says, as a model has it.

    Raises:
        UsageError: it is no such body.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        said = [f"{'.'.join(map(str, one['loc'])) or 'the body'}: {one['msg']}" for one in error.errors(include_input=False)]
        raise UsageError(f"The request is not understood: {'; '.join(said[:_SHOWN_ERRORS])}.") from None
    except RecursionError:
        raise UsageError("The request is nested too deeply.") from None
