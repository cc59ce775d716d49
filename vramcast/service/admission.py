"""Kubernetes' admission webhook as routes of the service: POST /admission/MODE/mutate and /admission/MODE/validate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vramcast.schedulers.kubernetes.mutation import Ask, Mode, mutate, validate
from vramcast.schedulers.kubernetes.review import AdmissionRequest, AdmissionReview, ReviewedAdmission, read
from vramcast.service.access import read_body
from vramcast.service.openapi import answers, reads

_REVIEW_BYTES: Final = 3 << 20  # spec: etcd's limit on a request is 1.5 MiB; a review has the object twice at most

Decide: TypeAlias = Callable[[AdmissionRequest, Ask, Mode], Awaitable[dict[str, Any]]]


def admission(ask: Ask) -> APIRouter:
    """Return the webhook's routes; `ask` asks the service about one job."""
    router = APIRouter(prefix="/admission", tags=["kubernetes"])

    def add(mode: Mode, what: str, decide: Decide, summary: str) -> None:
        async def handle(request: Request) -> Response:
            return JSONResponse(await decide(read(await read_body(request, _REVIEW_BYTES)), ask, mode))

        router.add_api_route(
            f"/{mode}/{what}",
            handle,
            methods=["POST"],
            name=f"{what}_in_mode_{mode}",
            summary=summary,
            openapi_extra=reads(AdmissionReview),
            responses=answers({200: ReviewedAdmission}, "usage", "too_large"),
        )

    for mode in get_args(Mode):
        add(mode, "mutate", mutate, "Fill the requests of pods that name their model")
        add(mode, "validate", validate, "Refuse pods that cannot run")
    return router
