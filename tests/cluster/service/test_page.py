"""The page of the service: the form, its addresses, answers, progress and errors, with workers that answer at once."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")
from tests.cluster.service.doubles import GIB, Instant, client, estimate, known  # after the line above
from vramcast.cluster.service import page_reply
from vramcast.cluster.service.clients import Client
from vramcast.cluster.service.page_form import cleaned, fields, link, read, suggestions
from vramcast.cluster.service.requests import read_question
from vramcast.cluster.service.responses import Words
from vramcast.core.errors import UsageError

JOB = {"target": "torchvision:resnet18", "device": "a100-40gb"}


class Sized(Instant):
    """Workers for whom a job's peak is a GiB for each sample of its batch, of a card with 40 GiB; a batch of one is refused."""

    async def ask(self, values: dict[str, Any], asker: str = "") -> dict[str, Any]:
        size = values["batch_size"] or 8
        self.asked.append(str(size))
        if size == 1:
            return {"error": {"kind": "cannot_estimate", "message": "a batch of one"}}
        if size == 40 and self.is_broken:
            return {"error": {"kind": "timeout", "message": "it took too long"}}
        verdict = {"value": "fits" if size <= 40 else "uncertain", "exit_code": 0, "reason": "x"}
        return estimate(size * GIB, verdict=verdict)

    is_broken = False


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page wait for its answers on a busy machine too."""
    monkeypatch.setattr(page_reply, "_WAIT_S", 30.0)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every answer take longer than a page waits for it."""
    monkeypatch.setattr(page_reply, "_WAIT_S", 0.0)


def page(http: Any, **address: str) -> Any:
    return http.get(link({**JOB, **address}), follow_redirects=False)


# ------------------------------------------------------------------------------------------------ the form
def test_form_has_each_field_and_suggestions(http: Any) -> None:
    found = http.get("/")
    assert found.status_code == 200
    assert re.findall(r'<(?:input|select)[^>]* name="(\w+)"', found.text) == [one.name for one in fields()]
    assert {"hf:openai-community/gpt2", "torchvision:resnet50", "timm:resnet50"} <= set(suggestions())
    assert found.text.count("<option value=") > len(suggestions())


def test_page_needs_no_script_and_nothing_from_elsewhere(http: Any) -> None:
    for found in (http.get("/"), page(http), page(http, target="resnt18")):
        assert "<script" not in found.text
        assert re.findall(r'(?:src|href|action)="(?!/|data:,)', found.text) == []
        policy = found.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert found.headers["cache-control"] == "no-store"


def test_form_repeats_the_question(http: Any) -> None:
    text = page(http, batch_size="4", optimizer="adamw:fused=true", checkpointing="on").text
    assert 'name="target" value="torchvision:resnet18"' in text
    assert 'name="batch_size" value="4"' in text
    assert '<option value="a100-40gb" selected>' in text
    assert '<option value="adamw:fused=true" selected>' in text  # no choice of the form
    assert 'value="on" checked' in text


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, {"target": "torchvision:resnet18"}),
        ({"target": "GPT2"}, {"target": "hf:gpt2"}),
        ({"target": "Qwen/Qwen2.5-0.5B"}, {"target": "hf:Qwen/Qwen2.5-0.5B"}),
        ({"target": "timm:resnet18"}, {"target": "timm:resnet18"}),
        ({"batch_size": "4", "seq": "512", "image_size": "224"}, {"batch_size": 4, "seq": 512, "image_size": 224}),
        ({"task": "infer"}, {"mode": "infer"}),
        ({"target": "gpt2", "task": "lora"}, {"target": "hf:gpt2", "lora": "r=16"}),
        ({"target": "gpt2", "task": "qlora", "rank": "64"}, {"target": "hf:gpt2", "qlora": "r=64"}),
        ({"precision": "amp-bf16", "optimizer": "adamw"}, {"precision": "amp-bf16", "optimizer": "adamw"}),
        ({"checkpointing": "on"}, {"checkpointing": True}),
        ({"cards": "8"}, {"parallel": "ddp", "world_size": 8}),
        ({"cards": "8", "parallel": "fsdp"}, {"parallel": "fsdp", "world_size": 8}),
    ],
)
def test_fields_become_request_of_api(given: dict[str, str], asked: dict[str, Any]) -> None:
    job = read(cleaned({**JOB, **given})).job
    rest = {"target": job["target"], "device": "a100-40gb", "level": None}
    assert job == {**rest, **asked}
    assert not read_question(json.dumps(job).encode()).is_code


def test_address_keeps_only_what_matters(http: Any) -> None:
    given = {**JOB, "cards": "1", "parallel": "fsdp", "task": "train", "rank": "8", "batch_size": " 4 ", "seq": ""}
    found = http.get(f"/?{urlencode(given)}", follow_redirects=False)
    assert (found.status_code, found.headers["location"]) == (303, link({**JOB, "batch_size": "4"}))
    assert http.get("/?target=&seq=", follow_redirects=False).headers["location"] == "/"


@given(st.dictionaries(st.sampled_from([*(one.name for one in fields()), "x"]), st.text(), max_size=6))
def test_cleaned_address_stays_as_it_is(address: dict[str, str]) -> None:
    once = cleaned(address)
    assert cleaned(once) == once
    with_utf8 = {name: value.encode(errors="replace").decode() for name, value in once.items()}
    assert dict(parse_qsl(link(with_utf8)[2:], keep_blank_values=True)) == with_utf8


# ------------------------------------------------------------------------------------------------ answers
def test_answer_is_complete(http: Any, workers: Instant) -> None:
    text = page(http, batch_size="4", optimizer="adamw").text
    assert "Fits: at most 6.00 GiB" in text
    assert "<b>peak</b> 3.00 GiB" in text
    assert 'class="card-bar"' in text
    assert "What holds the memory" in text
    assert '<a href="/?target=torchvision%3Aresnet18&amp;device=l40s&amp;batch_size=4&amp;optimizer=adamw">L40S</a>' in text
    assert "vramcast estimate torchvision:resnet18 --batch-size 4 --optimizer adamw --on a100-40gb" in text
    assert "print(vramcast.estimate(&#39;torchvision:resnet18&#39;, batch_size=4, optimizer=&#39;adamw&#39;" in text
    assert (
        'href="/?target=torchvision%3Aresnet18&amp;device=a100-40gb&amp;batch_size=4&amp;optimizer=adamw&amp;largest=on"'
        in text
    )
    assert "<li>a &lt;b&gt;bold&lt;/b&gt; one</li>" in text
    assert workers.asked == ["resnet18"]


def test_page_and_api_share_answers(http: Any, workers: Instant) -> None:
    page(http, seq="8")
    body = {"target": "torchvision:resnet18", "device": "a100-40gb", "seq": 8, "level": None}
    assert http.post("/v1/estimates", json=body).json()["words"]["headline"] == "Fits: at most 6.00 GiB"
    assert workers.asked == ["resnet18"]


def test_answer_without_words_shows_reason(http: Any) -> None:
    found = estimate()
    del found["words"]
    answer = page_reply.CachedAnswer("0", json.dumps(found).encode())
    assert answer.words == Words(headline=found["estimate"]["verdict"]["reason"], lines={}, sentences=[], assumed=[])


def test_page_shows_progress_and_reloads_until_the_answer(http: Any, workers: Instant, slow: None) -> None:
    workers.gate.clear()
    for _ in range(3):
        found = page(http)
        assert "Tracing torchvision:resnet18" in found.text
        assert "0 s. Waiting questions of all clients: 0." in found.text
        assert found.headers["refresh"] == str(page_reply.RELOAD_S)
    http.portal.call(workers.gate.set)
    found = page(http)
    assert "Fits: at most" in found.text
    assert "refresh" not in found.headers
    assert workers.asked == ["resnet18"]


def test_late_error_replaces_progress(http: Any, workers: Instant, slow: None) -> None:
    workers.gate.clear()
    assert "refresh" in page(http, target="torchvision:resnet34").headers
    http.portal.call(workers.gate.set)
    found = page(http, target="torchvision:resnet34")
    assert found.status_code == 422
    assert 'role="alert">it raised<' in found.text
    assert "refresh" not in found.headers


def test_largest_batch_is_found(tmp_path: Path, patient: None) -> None:
    workers = Sized()
    with client(tmp_path, workers) as http:
        text = page(http, largest="on", batch_size="3").text
    assert "Largest batch that fits: 40" in text
    assert [int(size) for size in re.findall(r'<th scope="row">(\d+)</th>', text)] == sorted(map(int, workers.asked))
    assert "a batch of one" in text
    assert "vramcast sweep torchvision:resnet18 --on a100-40gb --max-batch" in text
    assert 'href="/?target=torchvision%3Aresnet18&amp;device=a100-40gb&amp;batch_size=40"' in text


def test_search_stops_where_a_size_has_no_answer(tmp_path: Path, patient: None) -> None:
    workers = Sized()
    workers.is_broken = True
    with client(tmp_path, workers) as http:
        text = page(http, largest="on").text
    assert "it took too long" in text
    assert "Largest batch that fits" not in text


# ------------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ({"target": "resnt18"}, "This service knows no model &#39;resnt18&#39;: choose one of those below."),
        ({"target": "resnet18"}, "2 models have the name &#39;resnet18&#39;: choose one of those below."),
        ({"target": "qqqqqq"}, "write torchvision:NAME"),
        ({"target": "os:system"}, "This service knows no model &#39;os:system&#39;"),
        ({"target": "model.py:make"}, "This service knows no model"),
        ({"target": "hf:org/unknown"}, "This service knows no model"),
        ({"target": "hf:/etc/passwd"}, "This service knows no model"),
        ({"target": "x" * 2000}, "target has 2000 characters"),
        ({"target": ""}, "The model is missing"),
        ({"device": ""}, "The card is missing"),
        ({"device": "h900"}, "h900"),
        ({"device": "/etc/card.toml"}, "the service opens no files"),
        ({"batch_size": "-1"}, "Batch size is &#39;-1&#39;: give a whole number"),
        ({"seq": "1e3"}, "Sequence length is"),
        ({"image_size": "１２"}, "Image size is"),
        ({"batch_size": "9" * 30}, "Batch size is"),
        ({"cards": "0"}, "Number of cards is"),
        ({"cards": "2", "parallel": "pipeline"}, "On several cards is &#39;pipeline&#39;: choose one of ddp, fsdp."),
        ({"task": "prune"}, "Task is &#39;prune&#39;: choose one of train, lora, qlora, infer."),
        ({"task": "lora", "rank": "x"}, "Rank of the adapters is"),
        ({"task": "lora"}, "--lora is for hf: targets"),
        ({"checkpointing": "false"}, "checkpointing is &#39;false&#39;"),
        ({"largest": "x" * 2000}, "largest has 2000 characters"),
        ({"precision": "fp4"}, "precision"),
        ({"optimizer": "os:System"}, "Optimizer is &#39;os:System&#39;, which is code: choose one of adam,"),
        ({"colour": "red"}, "The address has &#39;colour&#39;: use target, device"),
    ],
)
def test_wrong_question_gets_reason_and_form(http: Any, workers: Instant, address: dict[str, str], said: str) -> None:
    found = page(http, **address)
    assert found.status_code == 400
    assert said in re.search(r'role="alert">(.*?)</p>', found.text, re.DOTALL)[1]  # type: ignore[index]
    assert "<details open>" in found.text
    assert workers.asked == []


def test_unknown_model_links_to_similar_ones(http: Any) -> None:
    text = page(http, target="resnt18", seq="7").text
    assert '<a href="/?target=torchvision%3Aresnet18&amp;device=a100-40gb&amp;seq=7">torchvision:resnet18</a>' in text


@pytest.mark.parametrize(
    ("model", "status", "can_retry"), [("resnet34", 422, False), ("resnet50", 422, True), ("resnet101", 429, True)]
)
def test_failure_has_status_of_api(http: Any, model: str, status: int, can_retry: bool) -> None:
    found = page(http, target=f"torchvision:{model}")
    assert (found.status_code, "Ask again" in found.text) == (status, can_retry)
    assert found.headers.get("retry-after") == ("7" if model == "resnet101" else None)


HOSTILE = "\"'><script>alert(1)</script>{{7*7}}\r\nX-Y: z\x00\u202e"


@pytest.mark.parametrize("name", [*(one.name for one in fields()), "largest"])
def test_hostile_text_stays_text(http: Any, name: str) -> None:
    found = page(http, **{"task": "lora", "cards": "2", name: HOSTILE})
    assert "<script" not in found.text
    assert "49" not in found.text.partition("</style>")[2].partition("<form")[0]
    assert "x-y" not in found.headers
    assert "\x00" not in found.text


def test_other_site_cannot_embed_page(http: Any, workers: Instant) -> None:
    found = http.get(link(JOB), headers={"Sec-Fetch-Dest": "image"})
    assert (found.status_code, workers.asked) == (403, [])


# ------------------------------------------------------------------------------------------------ tokens and limits
def basic(token: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'any:{token}'.encode()).decode()}"}


def test_token_is_the_password(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers, clients=[known("alice")]) as http:
        for headers in ({}, basic("other"), {"Authorization": "Basic !"}, {"Authorization": "Bearer secret"}):
            for address in ("/", link(JOB)):
                found = http.get(address, headers=headers)
                assert found.status_code == 401
                assert found.headers["www-authenticate"] == 'Basic realm="vramcast"'
                assert "secret" not in found.text
        assert workers.asked == []
        assert http.get(link(JOB), headers=basic("secret")).status_code == 200
        assert workers.askers == ["alice"]


def test_rate_limits_pages_and_searches(tmp_path: Path) -> None:
    limited = known("alice", rate=2.0)
    with client(tmp_path, Sized(), clients=[limited]) as http:
        assert [http.get("/", headers=basic("secret")).status_code for _ in range(3)] == [200, 200, 429]
        reloads = -1
        while "refresh" in (found := search(http, limited)).headers:
            reloads += 1
    assert "Largest batch that fits: 40" in found.text
    assert reloads >= 3  # each has room for one size after the page itself


def search(http: Any, limited: Client) -> Any:
    limited._at -= 1.0  # as if it had passed
    return http.get(link({**JOB, "largest": "on"}), headers=basic("secret"))


def test_address_is_read_without_job() -> None:
    with pytest.raises(UsageError, match="model is missing"):
        read({})
