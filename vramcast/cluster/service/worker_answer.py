"""Validation of a worker's answer by the published form: a process that runs a client's code is not trusted."""

from __future__ import annotations

import functools
import json
from typing import Annotated, Any, Final, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError as SchemaError
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, model_validator

from vramcast.cluster.service.responses import EstimateResponse, VerdictResponse, Words
from vramcast.cluster.shell.plan import ScriptStep, from_plain
from vramcast.core.errors import UsageError, WorkerError

LONGEST: Final = 2 << 20  # arbitrary: bytes; a thousand ranks take about 1 MiB
_LARGEST: Final = 1 << 53  # spec: JSON, RFC 8259: all readers agree on integers up to here
_Bytes = Annotated[int, Field(ge=0, le=_LARGEST)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Estimated(_Strict):
    """An estimate, its bound at several levels, and the answer in words."""

    estimate: dict[str, Any]
    levels: dict[Annotated[str, Field(pattern=r"^0\.\d{1,9}$")], _Bytes] = Field(min_length=1, max_length=100)
    words: Words

    @model_validator(mode="after")
    def _rises(self) -> _Estimated:
        """Raise ValueError if a higher level has a lower bound: requests rely on their order."""
        sizes = list(self.levels.values())
        if sorted(self.levels, key=float) != list(self.levels) or sizes != sorted(sizes):
            raise ValueError("levels do not ascend")
        return self


class _Error(_Strict):
    kind: Literal["usage", "cannot_estimate", "worker"]
    message: str = Field(max_length=2_000)


class _Failed(_Strict):
    """The reason for a missing estimate."""

    error: _Error
    traceback: str | None = Field(None, max_length=100_000)


class _Step(_Strict):
    """One training command of a batch script."""

    command: list[str] = Field(min_length=1)
    environment: dict[str, str]
    folder: str
    world_size: int | None = Field(ge=1)
    nproc_per_node: int | None = Field(ge=1)
    copies: int = Field(ge=1, le=_LARGEST)


class _Planned(_Strict):
    """The training commands of a batch script."""

    steps: list[_Step] = Field(min_length=1, max_length=100)
    plan: dict[str, Any]
    is_doubtful: bool
    steps_ask_for_cards: bool

    @model_validator(mode="after")
    def _is_a_plan(self) -> _Planned:
        """Raise ValueError if the plan does not refer to these steps."""
        from_plain(self.plan, [ScriptStep((str(number),)) for number in range(len(self.steps))])
        return self


class _Answer(RootModel[_Estimated | _Planned | _Failed]):
    pass


@functools.cache
def _schema() -> Draft202012Validator:
    return Draft202012Validator(EstimateResponse.model_json_schema())


def read_answer(line: bytes) -> dict[str, Any]:
    """Return a worker's answer.

    Raises:
        WorkerError: It is invalid.
    """
    try:
        found = json.loads(line, parse_constant=_refuse)
        _Answer.model_validate(found)
        if "estimate" in found:
            _schema().validate(found["estimate"])
            if not found["estimate"].keys() <= _schema().schema["properties"].keys():
                raise ValueError("a field that is not in the schema")
            VerdictResponse.model_validate(found["estimate"]["verdict"])
            check_numbers(found["estimate"])
    except (ValidationError, SchemaError, ValueError, RecursionError) as error:
        raise WorkerError(f"The job's process returned an invalid answer ({_short(error)}).") from None
    answer: dict[str, Any] = found
    return answer


def check_numbers(part: Any) -> None:
    """Raise UsageError if a number is not one for all JSON readers."""
    if isinstance(part, dict | list):
        for one in part.values() if isinstance(part, dict) else part:
            check_numbers(one)
    elif isinstance(part, int) and abs(part) > _LARGEST:
        raise UsageError(f"The number {part} is too large: at most {_LARGEST} (2^53) is possible.")


def _short(error: Exception) -> str:
    """Return a description of an error without text from the job."""
    if isinstance(error, ValidationError):
        return "; ".join(one["type"] for one in error.errors(include_input=False, include_url=False)[:3])
    return f"{error.validator} of its schema" if isinstance(error, SchemaError) else type(error).__name__


def _refuse(name: str) -> None:
    raise ValueError(name)
