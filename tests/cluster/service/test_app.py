"""The HTTP interface of the service, with workers that answer at once."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from tests.cluster.service.doubles import GIB, Instant, client, known  # after the lines above
from vramcast.cluster.service.requests import read_question
from vramcast.cluster.service.service import Service
from vramcast.cluster.service.store import Store

JOB = {"target": "torchvision:resnet18", "batch": ["8x3x224x224"], "labels": "8:int64<1000", "device": "a100"}


def named(model: str) -> dict[str, Any]:
    return {**JOB, "target": f"torchvision:{model}"}


def test_computes_estimate_once(http: Any, workers: Instant) -> None:
    first, second = (http.post("/v1/estimates", json=JOB) for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()
    assert first.json()["state"] == "done"
    assert first.json()["estimate"]["peaks"]["process"] == 3 * GIB
    assert workers.asked == ["resnet18"]
    assert http.get(f"/v1/estimates/{first.json()['id']}").json() == first.json()


def test_unknown_id_is_not_found(http: Any) -> None:
    assert http.get(f"/v1/estimates/{'0' * 64}").status_code == 404


def test_client_can_fetch_answer_later(http: Any, workers: Instant) -> None:
    workers.gate.clear()
    early = http.post("/v1/estimates", json={**JOB, "wait_s": 0.01})
    assert (early.status_code, early.json()["state"]) == (202, "running")
    assert http.get(f"/v1/estimates/{early.json()['id']}").status_code == 202
    http.portal.call(workers.gate.set)
    assert http.post("/v1/estimates", json=JOB).json()["state"] == "done"
    assert workers.asked == ["resnet18"]


def test_check_returns_request(http: Any) -> None:
    said = http.post("/v1/checks", json=JOB).json()
    assert said["verdict"] == http.post("/v1/estimates", json=JOB).json()["estimate"]["verdict"]
    assert (said["verdict"]["value"], said["verdict"]["exit_code"]) == ("fits", 0)
    assert (said["process_bytes"], said["request_bytes"], said["capacity_bytes"]) == (3 * GIB, 6 * GIB, 40 * GIB)
    assert said["holds_for"] == "98 of 100 jobs like it (58 measured models)"


def test_check_needs_a_card(http: Any) -> None:
    job = {name: value for name, value in JOB.items() if name not in ("device", "capacity_bytes")}
    found = http.post("/v1/checks", json=job)
    assert (found.status_code, "A check needs a card" in found.json()["error"]["message"]) == (400, True)
    assert http.post("/v1/checks", json={**job, "capacity_bytes": 8 * GIB}).status_code == 200


@pytest.mark.parametrize(
    ("model", "status", "kind"),
    [("resnet34", 422, "cannot_estimate"), ("resnet50", 422, "worker"), ("resnet101", 429, "overloaded")],
)
def test_failures_have_status_and_reason(http: Any, model: str, status: int, kind: str) -> None:
    found = http.post("/v1/checks", json=named(model))
    assert (found.status_code, found.json()["error"]["kind"]) == (status, kind)
    assert found.json()["error"]["message"]


def test_overload_returns_retry_after(http: Any) -> None:
    assert http.post("/v1/estimates", json=named("resnet101")).headers["retry-after"] == "7"


def test_retries_only_after_worker_died(http: Any, workers: Instant) -> None:
    for model in ("resnet34", "resnet34", "resnet50", "resnet50"):
        http.post("/v1/estimates", json=named(model))
    assert workers.asked == ["resnet34", "resnet50", "resnet50"]


@pytest.mark.parametrize("asked", [{"command": ["train.py"]}, {"target": "os:system"}, {"target": "timm:local-dir:/etc"}])
def test_rejects_code(http: Any, workers: Instant, asked: dict[str, Any]) -> None:
    for path in ("/v1/estimates", "/v1/checks"):
        found = http.post(path, json=asked)
        assert (found.status_code, found.json()["error"]["kind"]) == (403, "forbidden")
    assert workers.asked == []


def test_rejects_large_body(http: Any) -> None:
    assert http.post("/v1/estimates", json={**JOB, "labels": "x" * 20_000}).status_code == 413
    assert http.post("/v1/estimates", content=(b"x" * 5_000 for _ in range(9))).status_code == 413


def test_rejects_wrong_token_without_showing_it(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers, clients=[known()]) as http:
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


def test_observation_counts_once(http: Any) -> None:
    first, second = observed(http, job_id="17"), observed(http, job_id="17")
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert [observed(http).status_code, observed(http, process_bytes=GIB).status_code] == [201, 200]  # nor one without a name


def test_rejects_observation_of_unknown_estimate(http: Any) -> None:
    assert observed(http, estimate_id="f" * 64).status_code == 400


def test_failed_jobs_raise_request_across_restart(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers) as http:
        before = http.post("/v1/checks", json=JOB).json()["request_bytes"]
        for name in "ab":
            observed(http, outcome="out_of_memory", process_bytes=None, job_id=name)
        after = http.post("/v1/checks", json=JOB).json()["request_bytes"]
        assert before == 6 * GIB < after
    with client(tmp_path, workers) as http:
        assert http.post("/v1/checks", json=JOB).json()["request_bytes"] == after
        assert workers.asked == ["resnet18"]


def test_metrics_show_coverage(http: Any) -> None:
    observed(http)
    observed(http, process_bytes=7 * GIB, job_id="a")
    observed(http, process_bytes=None, reserved_bytes=2 * GIB, job_id="b")  # and a context of one
    text = http.get("/metrics").text
    group = '{group="share much"}'
    assert f"vramcast_observed_jobs_total{group} 3.0" in text
    assert f"vramcast_coverage{group} {2 / 3}" in text
    assert 'vramcast_requests_total{route="/v1/observations",status="201"} 3.0' in text


def test_late_client_gets_reason(http: Any, workers: Instant) -> None:
    workers.gate.clear()
    id_ = http.post("/v1/estimates", json={**named("resnet50"), "wait_s": 0.01}).json()["id"]
    http.portal.call(workers.gate.set)
    for _ in range(100):
        found = http.get(f"/v1/estimates/{id_}")
        if found.status_code != 202:
            break
    assert (found.status_code, found.json()["error"]["kind"]) == (422, "worker")


def test_returning_client_gets_reason_once(http: Any, workers: Instant) -> None:
    body = {**named("resnet50"), "wait_s": 0.01}
    workers.gate.clear()
    assert http.post("/v1/checks", json=body).status_code == 202
    http.portal.call(workers.gate.set)
    while http.get("/metrics").text.count("vramcast_questions_in_flight 1.0"):
        pass
    found = [http.post("/v1/checks", json={**body, "wait_s": 5.0}) for _ in range(2)]
    assert [one.json()["error"]["kind"] for one in found] == ["worker", "worker"]
    assert workers.asked == ["resnet50", "resnet50"]  # the second request starts it anew


def test_failure_of_code_is_not_cached(tmp_path: Path, workers: Instant) -> None:
    body = json.dumps({"target": "mine.py:resnet34", "batch": ["8x3"], "files": {"mine.py": ""}}).encode()

    async def asked() -> None:
        with closing(Store(tmp_path)) as store:
            service = Service(store, workers, "v1", sandboxes=workers)  # type: ignore[arg-type]
            for _ in range(2):
                _, found = await service.answer(read_question(body), "alice")
                assert isinstance(found, dict)

    asyncio.run(asked())
    assert workers.asked == ["resnet34", "resnet34"]


def test_compares_observation_with_request(http: Any) -> None:
    assert observed(http, request_bytes=3 * GIB).status_code == 201  # of a peak of four
    group = '{group="share much"}'
    assert f"vramcast_coverage{group} 0.0" in http.get("/metrics").text


def test_compares_job_with_largest_fitting_request(http: Any) -> None:
    http.post("/v1/checks", json=JOB)  # the request was six
    group = '{group="share much"}'
    assert observed(http, request_bytes=6 * GIB - 1000, process_bytes=5 * GIB).status_code == 201  # in whole MiB
    assert observed(http, request_bytes=9 * GIB, process_bytes=7 * GIB, job_id="a").status_code == 201  # after it was requeued
    assert f"vramcast_coverage{group} 0.5" in http.get("/metrics").text


@pytest.mark.parametrize("given", [1, 5 * GIB, 41 * GIB, 1 << 50])
def test_rejects_request_never_answered(http: Any, given: int) -> None:
    http.post("/v1/checks", json=JOB)
    found = observed(http, request_bytes=given)
    assert (found.status_code, found.json()["error"]["kind"]) == (400, "usage")
    assert str(given) in found.json()["error"]["message"]


def test_restart_keeps_answered_requests(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers) as http:
        http.post("/v1/checks", json=JOB)
    with client(tmp_path, workers) as http:
        assert observed(http, request_bytes=5 * GIB).status_code == 400


def test_false_reports_move_request_within_bounds(tmp_path: Path, workers: Instant) -> None:
    """Ten reports do not reach the whole card, nor do 120 of 0.0002 each reach the point: the lowest level is 0.98."""
    with client(tmp_path, workers) as http:
        for number in range(10):
            observed(http, outcome="out_of_memory", process_bytes=None, job_id=f"a{number}")
        raised = http.post("/v1/checks", json=JOB).json()["request_bytes"]
        for number in range(120):
            observed(http, process_bytes=1, job_id=f"b{number}")
        lowered = http.post("/v1/checks", json=JOB).json()["request_bytes"]
    assert 9 * GIB <= raised < 9.1 * GIB  # the bound at 0.9999; the card has 40
    assert lowered == 6 * GIB  # the bound at 0.99


def test_weight_decides_influence_of_client(tmp_path: Path, workers: Instant) -> None:
    epilog, submit = known("epilog", "e", weight=1.0), known("submit", "s")
    shows = {name: {"Authorization": f"Bearer {name}"} for name in "es"}

    def requested(http: Any) -> int:
        return int(http.post("/v1/checks", json=JOB, headers=shows["s"]).json()["request_bytes"])

    with client(tmp_path, workers, clients=[epilog, submit]) as http:
        id_ = http.post("/v1/checks", json=JOB, headers=shows["s"]).json()["id"]
        for number in range(7):
            died = {"estimate_id": id_, "outcome": "out_of_memory", "job_id": str(number)}
            assert http.post("/v1/observations", json=died, headers=shows["s"]).status_code == 201  # and it blocks no one:
            assert http.post("/v1/observations", json=died, headers=shows["e"]).status_code == 201
        assert requested(http) == 40 * GIB
    with client(tmp_path, workers, clients=[submit]) as http:
        assert requested(http) < 9.1 * GIB


def test_passes_queue_share_to_pool(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers) as http:
        http.post("/v1/checks", json=JOB)
    with client(tmp_path / "other", workers, clients=[known("alice")]) as http:
        http.post("/v1/checks", json=JOB, headers={"Authorization": "Bearer secret"})
    assert workers.askers == ["testclient", "alice"]


def test_rate_limit_returns_retry_after(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers, clients=[known("alice", rate=1.0)]) as http:
        found = [http.post("/v1/checks", json=JOB, headers={"Authorization": "Bearer secret"}) for _ in range(3)]
    assert {one.status_code for one in found} == {200, 429}
    assert found[-1].headers["retry-after"] == "1"


# ------------------------------------------------------------------------------------------------ a full disk
def test_full_disk_answers_and_reports_loss(http: Any, workers: Instant) -> None:
    store = http.app.state.service._store
    store._file.execute("PRAGMA query_only = 1")  # a full disk gives the same error: see test_kept.py
    found = http.post("/v1/checks", json=JOB)
    assert (found.status_code, found.json()["verdict"]["value"], found.json()["kept"]) == (200, "fits", False)
    assert http.post("/v1/estimates", json=JOB).json()["kept"] is False
    lost = observed(http)
    assert (lost.status_code, lost.json()["error"]["kind"], lost.headers["retry-after"]) == (503, "not_kept", "60")
    assert "not stored: attempt to write" in lost.json()["error"]["message"]
    health = http.get("/healthz")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    assert "not stored: attempt to write" in health.json()["reason"]
    store._file.execute("PRAGMA query_only = 0")
    assert observed(http).status_code == 201
    assert http.get("/healthz").json() == {"status": "ok"}
    assert workers.asked == ["resnet18"]


def test_rejects_level_out_of_range(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers, level=1.5) as http:
        found = [http.post("/v1/checks", json=JOB), observed(http), observed(http, request_bytes=3 * GIB)]
    assert [(one.status_code, one.json()["error"]["kind"]) for one in found] == [(400, "usage")] * 3
    assert "level is 1.5" in found[-1].json()["error"]["message"]


def test_errors_have_one_form(http: Any) -> None:
    for method, path, status, kind in (
        ("GET", "/v2/estimates", 404, "not_found"),
        ("GET", "/v1/estimates/x", 404, "not_found"),
        ("DELETE", "/v1/checks", 405, "method_not_allowed"),
    ):
        found = http.request(method, path)
        assert (found.status_code, found.json()["error"]["kind"]) == (status, kind)
    assert http.delete("/v1/checks").headers["allow"] == "POST"


def test_disconnected_client_is_no_service_error(http: Any) -> None:
    sent: list[Any] = []
    scope = {"type": "http", "method": "POST", "path": "/v1/checks", "query_string": b"", "headers": [], "app": http.app}

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    http.portal.call(http.app, scope, receive, send)
    assert sent[0]["status"] == 400
