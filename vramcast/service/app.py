"""The HTTP of the service: routes, limits on requests, errors as JSON, and metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from vramcast.core.errors import NoAnswer, UsageError
from vramcast.schedulers import answer as schedulers
from vramcast.schedulers.kubernetes.mutation import Ask
from vramcast.schedulers.kubernetes.routes import admission
from vramcast.service.prometheus import Metrics
from vramcast.service.requests import JobRequest, Observation, Question, read_observation, read_question
from vramcast.service.service import Answer, Service
from vramcast.service.workers import Workers

_JSON: Final = "application/json"
_BODY_S: Final = 10.0  # arbitrary: by then a body must be there
_REVIEW_S: Final = 5.0  # arbitrary: a webhook gets ten seconds by default, and nobody likes to wait for kubectl
_REVIEW_BYTES: Final = 3 << 20  # spec: etcd's limit on a request is 1.5 MiB; a review has the object twice at most
_UNKNOWN: Final = "no estimate has this id: it was never asked for, or by another version"
_BEARER: Final = "Bearer "
_VERDICTS: Final = {0: "fits", 1: "does_not_fit", 4: "uncertain"}  # spec: the contract's exit codes
# spec: HTTP's numbers by what went wrong
_STATUS: Final = {
    "usage": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "too_large": 413,
    "cannot_estimate": 422,
    "overloaded": 429,
    "timeout": 422,
    "worker": 422,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """Whom the service answers.

    Attributes:
        token: Which a client must show; "": none.
        allows_code: Whether what a client wrote is run, in a sandbox.
        body_bytes: No larger request is read.
        admits: Whether it answers Kubernetes' admission reviews, which show no token.
    """

    token: str = ""
    allows_code: bool = False
    body_bytes: int = 32 << 20
    admits: bool = False


class _Refused(Exception):
    """A request which gets an error; `kind` decides the status."""

    def __init__(self, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.headers = headers


def create_app(service: Service, pools: Sequence[Workers], rules: Rules) -> FastAPI:
    """Return the application; it starts and ends the workers."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for pool in pools:
            await pool.start()
        try:
            yield
        finally:
            for pool in pools:
                await pool.stop()

    app = FastAPI(title="vramcast", description="How much GPU memory a PyTorch training job will take.", lifespan=lifespan)
    metrics = Metrics(service, pools)

    def route(path: str, method: str, model: Any = None, **about: Any) -> Callable[[Any], Any]:
        """Register a handler which may raise: of a request and its body, or of its path."""

        def register(handler: Callable[[Request, bytes], Any]) -> Any:
            async def handle(request: Request) -> Response:
                began = time.perf_counter()
                try:
                    _authorize(request, rules)
                    body = await _body(request, rules) if method == "POST" else b""
                    answered: Response = await handler(request, body)
                except _Refused as refused:
                    answered = _error(refused.kind, str(refused), refused.headers)
                except UsageError as error:
                    answered = _error("usage", str(error))
                metrics.answered(path, answered.status_code, time.perf_counter() - began)
                return answered

            schema = (
                {"requestBody": {"content": {_JSON: {"schema": model.model_json_schema()}}, "required": True}} if model else {}
            )
            app.add_api_route(path, handle, methods=[method], openapi_extra=schema, name=handler.__name__, **about)
            return handler

        return register

    @route("/v1/estimates", "POST", JobRequest, summary="Estimate a job")
    async def estimates(_: Request, body: bytes) -> Response:
        id_, found = await service.answer(_question(body, rules))
        return _answered(id_, found)

    @route("/v1/estimates/{id}", "GET", summary="An estimate which was asked for")
    async def estimate(request: Request, _: bytes) -> Response:
        id_ = request.path_params["id"]
        found = service.kept(id_) or service.failure(id_)
        if found is None and not service.is_asked(id_):
            raise _Refused("not_found", _UNKNOWN)
        return _answered(id_, found)

    @route("/v1/checks", "POST", JobRequest, summary="Whether a job fits its card, and what to request")
    async def checks(_: Request, body: bytes) -> Response:
        id_, found = await service.answer(_question(body, rules))
        if not isinstance(found, bytes):
            return _answered(id_, found)
        return _json({"id": id_, "state": "done", **_verdict(service.read(id_, found), service)})

    @route("/v1/observations", "POST", Observation, summary="How a job went")
    async def observations(_: Request, body: bytes) -> Response:
        id_, is_new = await service.observe(read_observation(body))
        return _json({"id": id_}, 201 if is_new else 200)

    if rules.admits:
        app.include_router(admission(_asker(service), _reviewed))

    @app.get("/healthz", summary="Whether the service lives")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", summary="Prometheus")
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _question(body: bytes, rules: Rules) -> Question:
    """Return what a body asks, if the service answers such questions."""
    question = read_question(body)
    if question.is_code and not rules.allows_code:
        raise _Refused("forbidden", f"The {question.kind} is code, and this service runs none (--allow-code): name a model.")
    return question


def _asker(service: Service) -> Ask:
    """Return what asks the service for a webhook: about models by name alone, whatever its clients may ask."""

    async def ask(asked: dict[str, Any]) -> schedulers.Answer:
        question = read_question(json.dumps({**asked, "wait_s": _REVIEW_S}).encode())
        if question.is_code or question.kind != "target":
            raise UsageError("a pod's job is a model's name")
        id_, found = await service.answer(question)
        if found is None:
            raise NoAnswer("it is not ready yet")
        if isinstance(found, dict):
            raise NoAnswer(str(found["error"]["message"]))
        return schedulers.Answer.of({"id": id_, **_verdict(service.read(id_, found), service)})

    return ask


async def _reviewed(request: Request) -> bytes:
    """Return the body of an admission review."""
    try:
        return await _body(request, Rules(body_bytes=_REVIEW_BYTES))
    except _Refused as refused:
        raise UsageError(str(refused)) from None


def _verdict(answer: Answer, service: Service) -> dict[str, Any]:
    """Return whether a job fits, as `vramcast check --strict` says it, and what to request."""
    return {
        "verdict": _VERDICTS[answer.exit_code],
        "exit_code": answer.exit_code,
        "request_bytes": service.request_bytes(answer),
        "process_bytes": answer.estimate["peaks"]["process"],
        "capacity_bytes": answer.card_bytes,
        "reason": answer.reason,
        "group": answer.group,
    }


def _answered(id_: str, found: bytes | dict[str, Any] | None) -> Response:
    """Return an answer as HTTP: the estimate, an error, or that it is not there yet."""
    if found is None:
        return _json({"id": id_, "state": "running"}, 202)
    if isinstance(found, dict):
        error = found["error"]
        headers = {"Retry-After": str(error["retry_after_s"])} if "retry_after_s" in error else None
        return _error(error["kind"], error["message"], headers, id_=id_)
    begin = f'{{"id": "{id_}", "state": "done", '.encode()
    return Response(begin + found[1:], media_type=_JSON)  # as it is kept: parsing it would take longer than all the rest


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(content), status, media_type=_JSON)


def _error(kind: str, message: str, headers: dict[str, str] | None = None, *, id_: str | None = None) -> Response:
    error = {"error": {"kind": kind, "message": message}}
    return Response(json.dumps({"id": id_, **error} if id_ else error), _STATUS[kind], headers, _JSON)


def _authorize(request: Request, rules: Rules) -> None:
    """Raise where another token than the service's is shown, or none; the time it takes does not tell how alike they are."""
    if not rules.token:
        return
    shown = request.headers.get("authorization", "")
    given = shown.removeprefix(_BEARER) if shown.startswith(_BEARER) else ""
    if not hmac.compare_digest(given.encode(), rules.token.encode()):
        raise _Refused("unauthorized", "Show the service's token: Authorization: Bearer TOKEN.", {"WWW-Authenticate": "Bearer"})


async def _body(request: Request, rules: Rules) -> bytes:
    """Return a request's body, if it is not too large and does not take too long."""
    said = request.headers.get("content-length", "0")
    if said.isdecimal() and int(said) > rules.body_bytes:
        raise _Refused("too_large", f"The request has {said} bytes: at most {rules.body_bytes} are read.")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > rules.body_bytes:
                    raise _Refused("too_large", f"The request is larger than {rules.body_bytes} bytes.")
                parts.append(part)
    except TimeoutError:
        raise _Refused("usage", f"The request's body did not come within {_BODY_S:g} s.") from None
    return b"".join(parts)
