"""The OpenAPI of the service: valid, complete, and matched by its responses to any request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")
from tests.cluster.service.doubles import Instant, known  # after the line above
from vramcast.cluster.service.access import Rules
from vramcast.cluster.service.app import create_app
from vramcast.cluster.service.clients import Clients
from vramcast.cluster.service.service import Service
from vramcast.cluster.service.store import Store
from vramcast.jobs.job import Training

JOB = {"target": "torchvision:resnet18", "batch": ["8x3x224x224"], "labels": "8:int64<1000", "device": "a100"}
FAILURE = {"$ref": "#/components/schemas/Failure"}
STATUSES = {
    ("post", "/v1/estimates"): {200, 202, 400, 401, 403, 413, 422, 429, 500},
    ("post", "/v1/checks"): {200, 202, 400, 401, 403, 413, 422, 429, 500},
    ("post", "/v1/scripts"): {200, 202, 400, 401, 403, 413, 422, 429, 500},
    ("get", "/v1/estimates/{id}"): {200, 202, 400, 401, 404, 422, 429, 500},
    ("post", "/v1/observations"): {200, 201, 400, 401, 413, 429, 500, 503},
    ("post", "/admission/fill/mutate"): {200, 400, 413, 500},
    ("post", "/admission/enforce/validate"): {200, 400, 413, 500},
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a service whose workers answer at once, with a token and the webhook."""
    with closing(Store(tmp_path_factory.mktemp("service"))) as store:
        workers: Any = Instant()
        yield create_app(Service(store, workers, "v1"), [workers], Rules(Clients([known()]), body_bytes=10_000, admits=True))


def test_is_valid(app: Any) -> None:
    pytest.importorskip("openapi_spec_validator").validate(app.openapi())


def test_routes_list_statuses_and_one_failure_form(app: Any) -> None:
    paths = app.openapi()["paths"]
    for (method, path), statuses in STATUSES.items():
        responses = paths[path][method]["responses"]
        assert {int(status) for status in responses} == statuses
        for status, response in responses.items():
            schema = response["content"]["application/json"]["schema"]
            assert (schema == FAILURE) == (int(status) >= 400)


def test_covers_all_options_and_fields(app: Any) -> None:
    schemas = app.openapi()["components"]["schemas"]
    asked = schemas["JobRequest"]
    assert {"target", "batch", "device", *Training.__dataclass_fields__} - {"lr"} <= asked["properties"].keys()
    assert asked["properties"]["precision"]["enum"] == ["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"]
    assert asked["additionalProperties"] is False
    assert {"peaks", "upper_bound", "breakdown"} <= schemas["EstimateResponse"]["properties"].keys()


def test_operations_have_names_and_security(app: Any) -> None:
    document = app.openapi()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))
    assert {"estimate", "find_estimate", "check", "observe", "health"} <= set(names)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert bool(operation.get("security")) == path.startswith("/v1/")
            assert operation["tags"]


def conforms(case: Any, **headers: str) -> Any:
    """Send the request of a case, validate the response, and return it."""
    from schemathesis.specs.openapi.checks import positive_data_acceptance  # a schema cannot express that a target exists

    return case.call_and_validate(
        headers={"Authorization": "Bearer secret", **headers}, excluded_checks=[positive_data_acceptance]
    )


@pytest.fixture(scope="module")
def operations(app: Any) -> dict[str, Any]:
    """Return every operation of the API by its name, in schemathesis's form."""
    schema = pytest.importorskip("schemathesis").openapi.from_asgi("/openapi.json", app)
    found = [result.ok() for result in schema.get_all_operations()]
    return {one.definition.raw["operationId"]: one for one in found}


@pytest.mark.integration
def test_matches_responses_to_any_request(operations: dict[str, Any]) -> None:
    for operation in operations.values():

        @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(), token=st.sampled_from(["secret", "secret", "other"]))
        def holds(case: Any, token: str) -> None:
            conforms(case, Authorization=f"Bearer {token}")

        holds()
    assert len(operations) == 13


@pytest.mark.integration
@pytest.mark.parametrize("name", ["estimate", "check"])
@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 200),
        ({"target": "torchvision:resnet34"}, 422),
        ({"target": "torchvision:resnet50"}, 422),
        ({"target": "torchvision:resnet101"}, 429),
        ({"target": "os:system"}, 403),
        ({"device": "h900"}, 400),
        ({"labels": "x" * 20_000}, 413),
    ],
)
def test_matches_each_status(operations: dict[str, Any], name: str, asked: dict[str, Any], status: int) -> None:
    case = operations[name].Case(body={**JOB, **asked}, media_type="application/json")
    assert conforms(case).status_code == status


@pytest.mark.integration
def test_matches_estimate_and_observation(operations: dict[str, Any]) -> None:
    id_ = conforms(operations["estimate"].Case(body=JOB, media_type="application/json")).json()["id"]
    assert conforms(operations["find_estimate"].Case(path_parameters={"id": id_})).status_code == 200
    assert conforms(operations["find_estimate"].Case(path_parameters={"id": "0" * 64})).status_code == 404
    observed = {"estimate_id": id_, "outcome": "finished", "process_bytes": 5, "job_id": "17"}
    for status in (201, 200):
        case = operations["observe"].Case(body=observed, media_type="application/json")
        assert conforms(case).status_code == status
