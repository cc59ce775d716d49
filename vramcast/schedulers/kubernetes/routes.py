"""The webhook's routes: POST /admission/MODE/mutate and /admission/MODE/validate."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, get_args

from fastapi import APIRouter, Request, Response

from vramcast.core.errors import UsageError
from vramcast.schedulers.kubernetes import review as reviews
from vramcast.schedulers.kubernetes.mutation import Ask, Mode, mutate, validate


def admission(ask: Ask, body_of: Callable[[Request], Awaitable[bytes]]) -> APIRouter:
    """Return the routes.

    Args:
        ask: Asks the service about one job.
        body_of: Reads a request's body, within the service's limits.
    """
    router = APIRouter(prefix="/admission")

    def add(path: str, decide: Callable[[reviews.Review, Ask, Mode], Awaitable[dict[str, Any]]], summary: str) -> None:
        async def handle(mode: str, request: Request) -> Response:
            if mode not in get_args(Mode):
                return _json({"error": {"kind": "not_found", "message": f"modes are {', '.join(get_args(Mode))}"}}, 404)
            try:
                review = reviews.read(await body_of(request))
            except UsageError as error:
                return _json({"error": {"kind": "usage", "message": str(error)}}, 400)
            return _json(await decide(review, ask, mode))  # type: ignore[arg-type]

        router.add_api_route(path, handle, methods=["POST"], summary=summary, name=summary)

    add("/{mode}/mutate", mutate, "Fill the requests of pods which name their model")
    add("/{mode}/validate", validate, "Refuse pods which cannot run")
    return router


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(content), status, media_type="application/json")
