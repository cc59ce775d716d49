"""How the API is described: what routes read themselves, and what else they may answer, in FastAPI's OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from vramcast.service.responses import STATUS, Failure

_SCHEMA: Final = "#/components/schemas/{model}"
_RETRY_AFTER: Final = {"Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 0}}}


class DescribedRoute(APIRoute):
    """A route whose endpoint and dependencies take the request alone.

    FastAPI describes it; resolving its parameters anew for each request would take longer than a kept answer.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        needed = [one.dependency for one in self.dependencies if one.dependency]

        async def handle(request: Request) -> Response:
            for dependency in needed:
                await dependency(request)
            answered: Response = await self.endpoint(request)
            return answered

        return handle


class DescribedApp(FastAPI):
    """FastAPI that also describes the bodies that its routes read within their own limits (`reads`)."""

    bodies: tuple[type[BaseModel], ...] = ()

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, made at the first call."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        document = super().openapi()
        _, schemas = models_json_schema([(model, "validation") for model in self.bodies], ref_template=_SCHEMA)
        document["components"]["schemas"] |= schemas["$defs"]
        return document


def reads(model: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a body that a route reads itself; the application's `bodies` has the model."""
    content = {"application/json": {"schema": {"$ref": _SCHEMA.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def answers(models: dict[int, type[BaseModel]], *failures: str) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of a route's answers by status, and of the kinds of failure that it may have."""
    described: dict[int | str, dict[str, Any]] = {status: {"model": model} for status, model in models.items()}
    for kind in (*failures, "internal"):
        headers = {"headers": _RETRY_AFTER} if kind in ("overloaded", "not_kept") else {}
        described[STATUS[kind]] = {"model": Failure, **headers}
    return described
