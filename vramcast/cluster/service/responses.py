"""Response bodies of the service, described in its OpenAPI. The estimate has the form of vramcast/schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, RootModel

_SCHEMAS: Final = Path(__file__).parents[2] / "schema"
# spec: HTTP status codes, by the kind of failure
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
EstimateId = Annotated[
    str, Field(pattern=r"^[0-9a-f]{64}$", description="identifies a job, its card, and the version of the service")
]
Bytes = Annotated[int, Field(ge=0)]
ExitCode: TypeAlias = Literal[0, 1, 4]
# spec: the documented exit codes


def _published(schema: dict[str, Any]) -> None:
    """Replace pydantic's schema of an estimate by the published JSON Schema."""
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


class EstimateResponse(RootModel[dict[str, Any]]):
    """The JSON of `vramcast estimate --json`."""

    model_config = ConfigDict(json_schema_extra=_published)


class VerdictResponse(BaseModel):
    """The verdict on whether the job fits on its card, as in `vramcast check`."""

    value: Literal["fits", "does not fit", "uncertain"]
    exit_code: ExitCode = Field(description="the exit code of `vramcast check`")
    reason: str


Kept: TypeAlias = Annotated[bool, Field(description="false: it could not be written to disk, and is lost at a restart")]


class Words(BaseModel):
    """The estimate in words, as the terminal and the report have them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    headline: str = Field(description="the verdict with its deciding fact")
    lines: dict[str, str] = Field(description="the lines below it: peak, bound, what holds the memory, and so on")
    sentences: list[str] = Field(description="explanations of the verdict")
    assumed: list[str] = Field(description="warnings and assumptions")


class EstimateAnswer(BaseModel):
    """An estimate that was requested."""

    id: EstimateId
    state: Literal["done"] = "done"
    kept: Kept = True
    estimate: EstimateResponse
    levels: dict[str, Bytes] = Field(description="the bound on the process peak in bytes, by level")
    words: Words | None = Field(None, description="absent from answers of earlier versions")


class CheckAnswer(BaseModel):
    """The verdict on whether the job fits on its card, and the memory to request for it."""

    id: EstimateId
    state: Literal["done"] = "done"
    kept: Kept = True
    verdict: VerdictResponse
    request_bytes: Bytes = Field(description="the memory to request from the scheduler")
    process_bytes: Bytes = Field(description="the point estimate of the process peak")
    capacity_bytes: Bytes = Field(description="the card")
    group: str = Field(description="the class of the job, whose observations adjust its request")
    holds_for: str = Field("", description="the share of jobs like it below the bound, and its evidence, in words")


class RunningResponse(BaseModel):
    """The answer is not ready yet: get it by its id later."""

    id: EstimateId
    state: Literal["running"] = "running"


class ObservedResponse(BaseModel):
    """The observation is stored."""

    id: str = Field(description="id of the observation")


class Health(BaseModel):
    """The state of the service."""

    status: Literal["ok", "degraded"] = "ok"
    reason: str | None = Field(None, description="data that is not stored, and the reason")


class Problem(BaseModel):
    """A problem, and how to solve it."""

    kind: Literal[tuple(STATUS)]  # type: ignore[valid-type]
    message: str


class Failure(BaseModel):
    """The reason for a missing answer."""

    id: EstimateId | None = Field(None, description="id of the estimate, if one was requested")
    error: Problem
