"""The published JSON Schemas: valid, complete, and followed by the command line. `call` checks every answer against them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

Call = Callable[..., tuple[int, str, str]]
SCHEMAS = sorted((resources.files("vramcast") / "schema").iterdir(), key=lambda path: path.name)


def described(schema: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each property with its path."""
    for name, part in schema.get("properties", {}).items():
        yield f"{place}.{name}", part
        yield from described(part, f"{place}.{name}")
    if "items" in schema:
        yield from described(schema["items"], f"{place}[]")


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_schemas_are_valid_and_identified(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    assert schema["$id"].endswith(path.name)
    assert schema["title"]
    assert schema["description"]
    top = {place: part for place, part in described(schema) if place.count(".") == 1}
    assert [place for place, part in top.items() if not part.get("description")] == []


def test_rejects_undescribed_fields(require_schema: Callable[[str, str], None]) -> None:
    answer = {"schema": 1, "error": "JobError", "message": "no"}
    require_schema("error", json.dumps(answer))
    for wrong in ({**answer, "more": 1}, {**answer, "schema": 2}, {"schema": 1, "error": "JobError"}):
        with pytest.raises(AssertionError, match=r"error\.schema\.json"):
            require_schema("error", json.dumps(wrong))


@pytest.mark.usefixtures("auto_tracer")
@pytest.mark.parametrize(
    "more", [["--advise"], ["--what-if", "common", "--cards", "12GiB,48MiB", "--fragmentation"], ["--memory", "600MiB"]]
)
def test_estimate_follows_schema(call: Call, tiny_models: Path, more: list[str]) -> None:
    job = [f"{tiny_models}:wide", "--batch", "64x1024", "--labels", "64x1024", "--device", "a100-40gb"]
    code, out, err = call("estimate", *job, *more, "--json")
    assert (code, "peaks" in json.loads(out)) == (int("--memory" in more), True), err
    assert call("check", *job, "--json")[0] == 0


@pytest.mark.integration
@pytest.mark.usefixtures("needs_null_gpu")
def test_answer_names_adapter_and_follows_schema(call: Call) -> None:
    pytest.importorskip("peft")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    job = [f"hf:llama?{json.dumps(sizes)}", "--lora", "r=4", "--batch-size", "2", "--seq", "16", "--on", "t4"]
    code, out, err = call("check", *job, "--json")
    assert (code, json.loads(out)["adapter"]["trainable_parameters"]) == (0, 2 * 4 * (64 + 64)), err
    assert "2 x 16 tokens, LoRA r=4" in call("check", *job)[1]
    assert "LoRA r=4 on q_proj, v_proj trains 1,024 parameters" in call("check", *job, "--details")[1]


@pytest.mark.usefixtures("needs_null_gpu")
def test_command_follows_schema(call: Call, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(64, 64).cuda()\noptimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(4):\n    model(torch.zeros(8, 64, device='cuda')).sum().backward()\n    optimizer.step()\n"
    )
    code, out, _ = call("run", "--device", "t4", "--json", "--", str(script))
    assert (code, [phase["name"] for phase in json.loads(out)["phases"]][:2]) == (0, ["build", "training"])


@pytest.mark.usefixtures("needs_null_gpu")
def test_plan_follows_schema(call: Call, tiny_models: Path) -> None:
    job = [f"{tiny_models}:wide", "--batch", "64x1024", "--labels", "64x1024", "--device", "t4"]
    code, out, _ = call("plan", *job, "--pool", "--swap", "--json")
    assert (code, json.loads(out)["swap"]["feasible"]) == (0, True)
