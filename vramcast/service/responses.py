"""What the service answers: the bodies that its OpenAPI describes. The estimate's own form is that of vramcast/schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, RootModel

_SCHEMAS: Final = Path(__file__).parents[1] / "schema"
# spec: HTTP's status codes, by what went wrong
STATUS: Final = {
    "usage": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "too_large": 413,
    "cannot_estimate": 422,
    "timeout": 422,
    "worker": 422,
    "overloaded": 429,
    "internal": 500,
    "not_kept": 503,
}
EstimateId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="names a job, its card, and what answered it")]
Bytes = Annotated[int, Field(ge=0)]
ExitCode: TypeAlias = Literal[0, 1, 4]
# spec: the contract's exit codes


def _published(schema: dict[str, Any]) -> None:
    """Put the published JSON Schema of an estimate in the place of pydantic's."""
    found = json.loads((_SCHEMAS / "estimate.schema.json").read_text(encoding="utf-8"))
    shared = found.pop("$defs")

    def resolved(part: Any) -> Any:
        if isinstance(part, list):
            return [resolved(one) for one in part]
        if not isinstance(part, dict):
            return part
        reference = part.get("$ref", "").rpartition("/")[2]
        own = {name: resolved(one) for name, one in part.items() if name not in ("$ref", "$id", "$schema")}
        return {**shared[reference], **own} if reference else own

    schema.clear()
    schema.update(resolved(found))


class Estimate(RootModel[dict[str, Any]]):
    """The JSON of `vramcast estimate --json`."""

    model_config = ConfigDict(json_schema_extra=_published)


class Verdict(BaseModel):
    """Whether the job fits its card, as `vramcast check` says it."""

    value: Literal["fits", "does not fit", "uncertain"]
    exit_code: ExitCode = Field(description="how `vramcast check` ends")
    reason: str


Kept: TypeAlias = Annotated[bool, Field(description="false: the disk did not take it, and a restart forgets it")]


class EstimateAnswer(BaseModel):
    """An estimate that was asked for."""

    id: EstimateId
    state: Literal["done"] = "done"
    kept: Kept = True
    estimate: Estimate
    levels: dict[str, Bytes] = Field(description="the bound of the process peak in bytes, by level")


class CheckAnswer(BaseModel):
    """Whether a job fits its card, and what to request for it."""

    id: EstimateId
    state: Literal["done"] = "done"
    kept: Kept = True
    verdict: Verdict
    request_bytes: Bytes = Field(description="what to ask the scheduler for")
    process_bytes: Bytes = Field(description="the point estimate of the process peak")
    capacity_bytes: Bytes = Field(description="the card")
    group: str = Field(description="the class of the job, by whose observations its request moves")


class Running(BaseModel):
    """The answer is not there yet: ask for it by its id."""

    id: EstimateId
    state: Literal["running"] = "running"


class Observed(BaseModel):
    """The observation is kept."""

    id: str = Field(description="of the observation")


class Health(BaseModel):
    """How the service is."""

    status: Literal["ok", "degraded"] = "ok"
    reason: str | None = Field(None, description="what is not kept, and why")


class Problem(BaseModel):
    """What went wrong, and what to do about it."""

    kind: Literal[tuple(STATUS)]  # type: ignore[valid-type]
    message: str


class Failure(BaseModel):
    """Why there is no answer."""

    id: EstimateId | None = Field(None, description="of the estimate, where one was asked for")
    error: Problem
