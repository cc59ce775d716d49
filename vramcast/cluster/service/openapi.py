"""Description of the API in FastAPI's OpenAPI: bodies that routes read themselves, and their further responses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from vramcast.cluster.service.responses import STATUS, Failure

_SCHEMA: Final = "#/components/schemas/{model}"
_RETRY_AFTER: Final = {"Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 0}}}


class DescribedRoute(APIRoute):
    """A route whose endpoint and dependencies take only the request.

    FastAPI describes it; resolving its parameters for each request would take longer than a cached answer.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        needed = [one.dependency for one in self.dependencies if one.dependency]

        async def handle(request: Request) -> Response:
            for dependency in needed:
                await dependency(request)
            answered: Response = await self.endpoint(request)
            return answered

        return handle


class DescribedApp(FastAPI):
    """A FastAPI application that also describes the bodies that its routes read with their own limits (`reads`)."""

    bodies: tuple[type[BaseModel], ...] = ()

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, created at the first call."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        document = super().openapi()
        _, schemas = models_json_schema([(model, "validation") for model in self.bodies], ref_template=_SCHEMA)
        document["components"]["schemas"] |= schemas["$defs"]
        return document


def reads(model: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a body that a route reads itself; the model is in the application's `bodies`."""
    content = {"application/json": {"schema": {"$ref": _SCHEMA.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def answers(models: dict[int, type[BaseModel]], *failures: str) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of a route's responses by status, including those of its kinds of failure."""
    described: dict[int | str, dict[str, Any]] = {status: {"model": model} for status, model in models.items()}
    for kind in (*failures, "internal"):
        headers = {"headers": _RETRY_AFTER} if kind in ("overloaded", "not_kept") else {}
        described[STATUS[kind]] = {"model": Failure, **headers}
    return described
