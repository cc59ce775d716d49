"""The service's HTTP, with workers which answer at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from tests.service.doubles import GIB, Instant, client  # after the lines above

JOB = {"target": "torchvision:resnet18", "batch": ["8x3x224x224"], "labels": "8:int64<1000", "device": "a100"}


@pytest.fixture
def workers() -> Instant:
    return Instant()


@pytest.fixture
def http(tmp_path: Path, workers: Instant) -> Iterator[Any]:
    with client(tmp_path, workers) as found:
        yield found


def named(model: str) -> dict[str, Any]:
    return {**JOB, "target": f"torchvision:{model}"}


def test_an_estimate_is_made_once(http: Any, workers: Instant) -> None:
    first, second = (http.post("/v1/estimates", json=JOB) for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()
    assert first.json()["state"] == "done"
    assert first.json()["estimate"]["peaks"]["process"] == 3 * GIB
    assert workers.asked == ["resnet18"]
    assert http.get(f"/v1/estimates/{first.json()['id']}").json() == first.json()


def test_an_id_which_nobody_asked_for_is_not_found(http: Any) -> None:
    assert http.get(f"/v1/estimates/{'0' * 64}").status_code == 404


def test_who_does_not_wait_comes_back(http: Any, workers: Instant) -> None:
    workers.gate.clear()
    early = http.post("/v1/estimates", json={**JOB, "wait_s": 0.01})
    assert (early.status_code, early.json()["state"]) == (202, "running")
    assert http.get(f"/v1/estimates/{early.json()['id']}").status_code == 202
    http.portal.call(workers.gate.set)
    assert http.post("/v1/estimates", json=JOB).json()["state"] == "done"
    assert workers.asked == ["resnet18"]


def test_a_check_says_what_to_request(http: Any) -> None:
    said = http.post("/v1/checks", json=JOB).json()
    assert said["verdict"] == http.post("/v1/estimates", json=JOB).json()["estimate"]["verdict"]
    assert (said["verdict"]["value"], said["verdict"]["exit_code"]) == ("fits", 0)
    assert (said["process_bytes"], said["request_bytes"], said["capacity_bytes"]) == (3 * GIB, 6 * GIB, 40 * GIB)


@pytest.mark.parametrize(
    ("model", "status", "kind"),
    [("resnet34", 422, "cannot_estimate"), ("resnet50", 422, "worker"), ("resnet101", 429, "overloaded")],
)
def test_what_goes_wrong_has_a_status_and_a_reason(http: Any, model: str, status: int, kind: str) -> None:
    found = http.post("/v1/checks", json=named(model))
    assert (found.status_code, found.json()["error"]["kind"]) == (status, kind)
    assert found.json()["error"]["message"]


def test_overload_says_when_to_ask_again(http: Any) -> None:
    assert http.post("/v1/estimates", json=named("resnet101")).headers["retry-after"] == "7"


def test_a_job_which_fails_is_not_traced_again_and_one_whose_worker_died_is(http: Any, workers: Instant) -> None:
    for model in ("resnet34", "resnet34", "resnet50", "resnet50"):
        http.post("/v1/estimates", json=named(model))
    assert workers.asked == ["resnet34", "resnet50", "resnet50"]


@pytest.mark.parametrize("asked", [{"command": ["train.py"]}, {"target": "os:system"}, {"target": "timm:local-dir:/etc"}])
def test_code_is_not_run(http: Any, workers: Instant, asked: dict[str, Any]) -> None:
    for path in ("/v1/estimates", "/v1/checks"):
        found = http.post(path, json=asked)
        assert (found.status_code, found.json()["error"]["kind"]) == (403, "forbidden")
    assert workers.asked == []


def test_a_large_body_is_not_read(http: Any) -> None:
    assert http.post("/v1/estimates", json={**JOB, "labels": "x" * 20_000}).status_code == 413
    assert http.post("/v1/estimates", content=(b"x" * 5_000 for _ in range(9))).status_code == 413


def test_another_token_is_refused_and_never_shown(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers, token="secret") as http:
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}, {"Authorization": "Bearer sécret"}):
            found = http.post("/v1/estimates", json=JOB, headers={k: v.encode() for k, v in headers.items()})
            assert found.status_code == 401
            assert "secret" not in found.text
        assert http.post("/v1/estimates", json=JOB, headers={"Authorization": "Bearer secret"}).status_code == 200
        assert http.get("/healthz").status_code == 200


# ------------------------------------------------------------------------------------------------ observations
def observed(http: Any, **changes: Any) -> Any:
    id_ = http.post("/v1/estimates", json=JOB).json()["id"]
    said = {"estimate_id": id_, "outcome": "finished", "process_bytes": 4 * GIB, **changes}
    return http.post("/v1/observations", json={name: value for name, value in said.items() if value is not None})


def test_an_observation_of_a_job_counts_once(http: Any) -> None:
    first, second = observed(http, job_id="17"), observed(http, job_id="17")
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert observed(http).status_code == observed(http).status_code == 201


def test_of_an_estimate_which_is_not_known_nothing_is_observed(http: Any) -> None:
    assert observed(http, estimate_id="f" * 64).status_code == 400


def test_jobs_which_die_raise_what_is_requested_and_a_restart_knows_it(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers) as http:
        before = http.post("/v1/checks", json=JOB).json()["request_bytes"]
        for _ in range(2):
            observed(http, outcome="out_of_memory", process_bytes=None)
        after = http.post("/v1/checks", json=JOB).json()["request_bytes"]
        assert before == 6 * GIB < after
    with client(tmp_path, workers) as http:
        assert http.post("/v1/checks", json=JOB).json()["request_bytes"] == after
        assert workers.asked == ["resnet18"]


def test_prometheus_is_told_how_often_requests_held(http: Any) -> None:
    observed(http)
    observed(http, process_bytes=7 * GIB)
    observed(http, process_bytes=None, reserved_bytes=2 * GIB)  # and a context of one
    text = http.get("/metrics").text
    group = '{group="operators convolution"}'
    assert f"vramcast_observed_jobs_total{group} 3.0" in text
    assert f"vramcast_coverage{group} {2 / 3}" in text
    assert 'vramcast_requests_total{route="/v1/observations",status="201"} 3.0' in text


def test_who_came_back_too_late_is_told_why_there_is_no_answer(http: Any, workers: Instant) -> None:
    workers.gate.clear()
    id_ = http.post("/v1/estimates", json={**named("resnet50"), "wait_s": 0.01}).json()["id"]
    http.portal.call(workers.gate.set)
    for _ in range(100):
        found = http.get(f"/v1/estimates/{id_}")
        if found.status_code != 202:
            break
    assert (found.status_code, found.json()["error"]["kind"]) == (422, "worker")


def test_an_observation_is_held_against_what_was_requested(http: Any) -> None:
    assert observed(http, request_bytes=3 * GIB).status_code == 201  # of a peak of four
    group = '{group="operators convolution"}'
    assert f"vramcast_coverage{group} 0.0" in http.get("/metrics").text


def test_a_level_out_of_range_is_wrong_usage_whatever_was_requested(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers, level=1.5) as http:
        found = [http.post("/v1/checks", json=JOB), observed(http), observed(http, request_bytes=3 * GIB)]
    assert [(one.status_code, one.json()["error"]["kind"]) for one in found] == [(400, "usage")] * 3
    assert "level is 1.5" in found[-1].json()["error"]["message"]


def test_every_error_has_one_form(http: Any) -> None:
    for method, path, status, kind in (
        ("GET", "/v2/estimates", 404, "not_found"),
        ("GET", "/v1/estimates/x", 404, "not_found"),
        ("DELETE", "/v1/checks", 405, "method_not_allowed"),
    ):
        found = http.request(method, path)
        assert (found.status_code, found.json()["error"]["kind"]) == (status, kind)
    assert http.delete("/v1/checks").headers["allow"] == "POST"


def test_a_client_that_leaves_before_its_request_is_complete_is_no_error_of_the_service(http: Any) -> None:
    sent: list[Any] = []
    scope = {"type": "http", "method": "POST", "path": "/v1/checks", "query_string": b"", "headers": [], "app": http.app}

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    http.portal.call(http.app, scope, receive, send)
    assert sent[0]["status"] == 400
