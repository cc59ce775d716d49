"""The HTTP interface of the service: its routes, and errors as JSON. FastAPI describes them in `/openapi.json`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, TypeAlias, get_args

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from vramcast._version import __version__
from vramcast.cluster import answer as schedulers
from vramcast.cluster.kubernetes.mutation import Ask, Mode, mutate, validate
from vramcast.cluster.kubernetes.review import AdmissionRequest, AdmissionReview, ReviewedAdmission, read
from vramcast.cluster.service.access import RefusedRequest, Rules, Token, asker_of, client_of, read_body
from vramcast.cluster.service.openapi import DescribedApp, DescribedRoute, answers, reads
from vramcast.cluster.service.page import page_routes
from vramcast.cluster.service.prometheus import Metrics, ResponseCounter
from vramcast.cluster.service.requests import JobRequest, Question, ReportedResult, read_observation, read_question
from vramcast.cluster.service.responses import (
    STATUS,
    CheckAnswer,
    EstimateAnswer,
    EstimateId,
    Failure,
    Health,
    ObservedResponse,
    Problem,
    RunningResponse,
)
from vramcast.cluster.service.script_requests import ScriptAnswer, ScriptRequest, ScriptRunning, Scripts, read_script_request
from vramcast.cluster.service.service import CachedAnswer, Service
from vramcast.cluster.service.workers import Workers
from vramcast.core.errors import NoAnswer, OutputError, UsageError

_JSON: Final = "application/json"
_REVIEW_BYTES: Final = 3 << 20  # spec: etcd's limit on a request is 1.5 MiB; a review holds the object at most twice
_REVIEW_S: Final = 5.0  # arbitrary: a webhook has ten seconds by default, and a user waits for kubectl
_WEBHOOK: Final = "admission reviews"  # the queue share of a webhook's requests
_RETRY_S: Final = 60  # arbitrary: time for an operator to free disk space
_UNKNOWN: Final = "no estimate has this id: it was never requested, or by another version"
_ASKED: Final = ("usage", "unauthorized", "forbidden", "too_large", "cannot_estimate", "overloaded")

_Decide: TypeAlias = Callable[[AdmissionRequest, Ask, Mode], Awaitable[dict[str, Any]]]


def create_app(service: Service, pools: Sequence[Workers], rules: Rules) -> DescribedApp:
    """Return the application, which starts and stops the workers."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        for pool in pools:
            await pool.start()
        try:
            yield
        finally:
            for pool in pools:
                await pool.stop()

    async def question(request: Request) -> Question:
        return _question(await read_body(request, rules.body_bytes), rules)

    app = DescribedApp(
        title="vramcast",
        version=__version__,
        description="How much GPU memory a PyTorch training job needs.",
        lifespan=lifespan,
        swagger_ui_oauth2_redirect_url=None,
        generate_unique_id_function=lambda route: route.name,
        exception_handlers=dict.fromkeys(_ERRORS, _failed),
    )
    app.state.service = service
    app.bodies = (JobRequest, ReportedResult, ScriptRequest)
    metrics = Metrics(service, pools)
    app.add_middleware(ResponseCounter, metrics=metrics)
    app.router.route_class = DescribedRoute
    shows_token = [Depends(Token(rules.clients))]
    asked: dict[str, Any] = {"tags": ["estimates"], "dependencies": shows_token, "openapi_extra": reads(JobRequest)}
    others = APIRouter()  # FastAPI resolves these

    @app.post(
        "/v1/checks",
        summary="Check whether a job fits on its card, and how much memory to request",
        **asked,
        responses=answers({200: CheckAnswer, 202: RunningResponse}, *_ASKED),
    )
    async def check(request: Request) -> Response:
        asked = await question(request)
        if not asked.names_card:
            raise UsageError("A check needs a card: give device or capacity_bytes.")
        id_, found = await service.answer(asked, asker_of(request))
        return _json(await _checked(found, service)) if isinstance(found, CachedAnswer) else _answered(id_, found)

    @app.post(
        "/v1/estimates",
        summary="Estimate a job",
        **asked,
        responses=answers({200: EstimateAnswer, 202: RunningResponse}, *_ASKED),
    )
    async def estimate(request: Request) -> Response:
        return _answered(*await service.answer(await question(request), asker_of(request)))

    scripts = Scripts(service, lambda answer: _checked(answer, service))

    @app.post(
        "/v1/scripts",
        tags=["estimates"],
        dependencies=shows_token,
        summary="Check whether the training in a batch script fits on its card, and how much memory to request",
        openapi_extra=reads(ScriptRequest),
        responses=answers({200: ScriptAnswer, 202: ScriptRunning}, *_ASKED),
    )
    async def check_script(request: Request) -> Response:
        asked = read_script_request(await read_body(request, rules.body_bytes))
        if not rules.allows_code:
            raise RefusedRequest(
                "forbidden", "A script is code, and this service does not run code (--allow-code): name a model instead."
            )
        found = await scripts.answer(asked, asker_of(request))
        if isinstance(found, dict):
            return _refused(found["error"])
        return _json(found, 202 if isinstance(found, ScriptRunning) else 200)

    @others.get(
        "/v1/estimates/{id}",
        tags=["estimates"],
        dependencies=shows_token,
        summary="Get an estimate requested earlier",
        responses=answers(
            {200: EstimateAnswer, 202: RunningResponse}, "usage", "unauthorized", "not_found", "cannot_estimate", "overloaded"
        ),
    )
    async def find_estimate(id: Annotated[EstimateId, Path()]) -> Response:
        found = service.kept(id) or service.failures.get(id)
        if found is None and id not in service.asking:
            raise RefusedRequest("not_found", _UNKNOWN)
        return _answered(id, found)

    @app.post(
        "/v1/observations",
        tags=["observations"],
        dependencies=shows_token,
        summary="Report how a job went",
        openapi_extra=reads(ReportedResult),
        responses=answers(
            {200: ObservedResponse, 201: ObservedResponse}, "usage", "unauthorized", "too_large", "overloaded", "not_kept"
        ),
    )
    async def observe(request: Request) -> Response:
        observed = read_observation(await read_body(request, rules.body_bytes))
        id_, is_new = await service.observe(observed, client_of(request))
        return _json(ObservedResponse(id=id_), 201 if is_new else 200)

    if rules.admits:
        app.bodies += (AdmissionReview,)
        app.include_router(_admission(_asker(service)))

    @others.get(
        "/healthz",
        tags=["operation"],
        summary="Get the state of the service, and any failure",
        response_model_exclude_none=True,
    )
    async def health() -> Health:
        return Health(status="degraded" if service.trouble else "ok", reason=service.trouble or None)

    @others.get("/metrics", tags=["operation"], summary="Get metrics for Prometheus", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    app.include_router(others)
    app.include_router(page_routes(service, rules))
    return app


def _question(body: bytes, rules: Rules) -> Question:
    """Return the question in a body, if the service answers its kind."""
    question = read_question(body)
    if question.is_code and not rules.allows_code:
        raise RefusedRequest(
            "forbidden", f"A {question.kind} is code, and this service does not run code (--allow-code): name a model instead."
        )
    return question


def _admission(ask: Ask) -> APIRouter:
    """Return Kubernetes' admission webhook: POST /admission/MODE/mutate and /admission/MODE/validate."""
    router = APIRouter(prefix="/admission", tags=["kubernetes"])

    def add(mode: Mode, what: str, decide: _Decide, summary: str) -> None:
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
        add(mode, "mutate", mutate, "Add requests to pods that name their model")
        add(mode, "validate", validate, "Reject pods that cannot run")
    return router


def _asker(service: Service) -> Ask:
    """Return a function that asks the service for a webhook: only about models by name, whatever the rules allow clients."""

    async def ask(asked: dict[str, Any]) -> schedulers.Answer:
        question = read_question(json.dumps({**asked, "wait_s": _REVIEW_S}).encode())
        if question.is_code or question.kind != "target":
            raise UsageError("the job of a pod must be given by a model's name")
        _, found = await service.answer(question, _WEBHOOK)
        if found is None:
            raise NoAnswer("the estimate is not ready yet")
        if isinstance(found, dict):
            raise NoAnswer(str(found["error"]["message"]))
        return schedulers.Answer.of((await _checked(found, service)).model_dump())

    return ask


async def _checked(answer: CachedAnswer, service: Service) -> CheckAnswer:
    """Return whether a job fits, and the memory to request."""
    return CheckAnswer(
        id=answer.id,
        kept=answer.is_kept,
        verdict=answer.verdict,
        request_bytes=await service.request_bytes(answer),
        process_bytes=answer.estimate["peaks"]["process"],
        capacity_bytes=answer.card_bytes,
        group=answer.group,
        holds_for=answer.words.lines.get("bound", "").partition(" for ")[2] if not answer.estimate["doubts"] else "",
    )


def _answered(id_: str, found: CachedAnswer | dict[str, Any] | None) -> Response:
    """Return an answer as an HTTP response: the estimate, an error, or that it is not ready yet."""
    if found is None:
        return _json(RunningResponse(id=id_), 202)
    if isinstance(found, dict):
        return _refused(found["error"], id_)
    begin = f'{{"id": "{id_}", "state": "done", "kept": {str(found.is_kept).lower()}, '.encode()
    # passed on unparsed: parsing it would take longer than everything else
    return Response(begin + found.text[1:], media_type=_JSON)


def _refused(error: dict[str, Any], id_: str | None = None) -> Response:
    """Return the reason for a missing answer."""
    headers = {"Retry-After": str(error["retry_after_s"])} if "retry_after_s" in error else None
    return _failure(error["kind"], error["message"], headers, id_)


async def _failed(_: Request, error: Exception) -> Response:
    """Return a response for an error in a route; details of an unexpected one go only to the operator's log."""
    match error:
        case RefusedRequest():
            return _failure(error.kind, str(error), error.headers)
        case UsageError():
            return _failure("usage", str(error))
        case OutputError():
            return _failure(
                "not_kept", f"The service cannot store data at present ({error}): retry later.", {"Retry-After": str(_RETRY_S)}
            )
        case HTTPException():  # an unknown route, or a method that the route lacks
            kinds = {status: kind for kind, status in STATUS.items()}
            return _failure(kinds.get(error.status_code, "usage"), str(error.detail), dict(error.headers or {}))
        case RequestValidationError():  # a part of the path: FastAPI does not read bodies
            wrong = [f"{one['loc'][-1]}: {one['msg']}" for one in error.errors()]
            return _failure("not_found", f"Nothing was found: {'; '.join(wrong)}.")
    return _failure("internal", "The service failed: ask its operator to read its log.")


_ERRORS: Final = (RefusedRequest, UsageError, OutputError, HTTPException, RequestValidationError, Exception)


def _failure(kind: str, message: str, headers: dict[str, str] | None = None, id_: str | None = None) -> Response:
    return _json(Failure(id=id_, error=Problem(kind=kind, message=message)), STATUS[kind], headers)


def _json(content: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(content.model_dump_json(exclude_none=True), status, headers, _JSON)
