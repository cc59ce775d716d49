"""Prompts of `generate` with another length: which arguments change, and what limits them; a traced one is as long as asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from vramcast.core.errors import TraceFileError
from vramcast.jobs.job import Command
from vramcast.tracer.changes import prompts
from vramcast.tracer.changes.prompts import with_length
from vramcast.tracer.format.applied_change import AppliedChange, applied_change
from vramcast.tracer.format.trace import CHANGES, Trace
from vramcast.tracer.protocol.job_result import Result

PROMPTED = 48
SCRIPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, vocab_size=4096,
                     max_position_embeddings=4096)
model = LlamaForCausalLM(config).cuda().bfloat16().eval()
prompt = torch.randint(1, 4096, (2, {tokens}), device="cuda")
model.generate({argument}prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False,
               eos_token_id=None, pad_token_id=0)
"""


class Model:
    """A model with a known number of positions, whose `generate` keeps what it gets."""

    def __init__(self, positions: int | None = 1024, *, is_encoder_decoder: bool = False, **defaults: Any) -> None:
        text = SimpleNamespace(max_position_embeddings=positions)
        self.config = SimpleNamespace(is_encoder_decoder=is_encoder_decoder, get_text_config=lambda: text)
        self.generation_config = SimpleNamespace(**{"max_new_tokens": None, "max_length": 20, **defaults})
        self.calls: list[dict[str, Any]] = []

    def generate(self, inputs: Any = None, generation_config: Any = None, processors: Any = None, **kwargs: Any) -> None:
        given = {"inputs": inputs, "generation_config": generation_config, "processors": processors, **kwargs}
        self.calls.append({name: one for name, one in given.items() if one is not None})
        if kwargs.pop("asks_assistant", False):
            self.generate(torch.ones(1, 3))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `Model` stand for the class of transformers."""
    module = ModuleType("transformers.generation.utils")
    vars(module)["GenerationMixin"] = Model
    monkeypatch.setitem(sys.modules, module.__name__, module)


def generated(model: Model, tokens: int | None, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the facts about a call of `generate`."""
    facts: dict[str, Any] = {}
    with prompts.installed(tokens, facts):
        model.generate(*args, **kwargs)
    return facts


# ------------------------------------------------------------------------------------------------ another length
def test_last_token_is_repeated_and_first_ones_are_dropped() -> None:
    rows = torch.tensor([[0, 7, 8], [5, 6, 9]])
    assert with_length(rows, 5).tolist() == [[0, 7, 8, 8, 8], [5, 6, 9, 9, 9]]
    assert with_length(rows, 2).tolist() == [[7, 8], [6, 9]]
    assert with_length(torch.ones(2, 3, 4), 7).shape == (2, 7, 4)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["positional", "inputs", "input_ids"])
def test_prompt_and_its_mask_change_however_they_are_passed(name: str) -> None:
    model, ids = Model(), torch.ones(2, 3, dtype=torch.int64)
    args, named = ((ids, None, "mine"), {}) if name == "positional" else ((), {name: ids, "processors": "mine"})
    pictures = torch.ones(2, 3, 4)
    assert generated(model, 8, *args, **named, attention_mask=ids, pixel_values=pictures)["value"] == 3
    call = model.calls[0]
    assert call["inputs" if name == "positional" else name].shape == call["attention_mask"].shape == (2, 8)
    assert (call["pixel_values"] is pictures, call["processors"]) == (True, "mine")


@pytest.mark.usefixtures("library")
def test_own_prompt_and_those_of_inner_calls_stay() -> None:
    model, ids = Model(), torch.ones(1, 4)
    assert generated(model, None, ids)["value"] == 4
    assert model.calls[0]["inputs"] is ids
    assert generated(model, 9, ids, asks_assistant=True)["value"] == 4
    assert [call["inputs"].shape[1] for call in model.calls[1:]] == [9, 3]


# ------------------------------------------------------------------------------------------------ its limit
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("model", "given", "most", "limit"),
    [
        (Model(), {"max_new_tokens": 24}, 1000, "the model's 1,024 positions, 24 of them new"),
        (Model(max_new_tokens=4), {}, 1020, "the model's 1,024 positions, 4 of them new"),
        (Model(), {"max_length": 200}, 199, "max_length=200 of the call"),
        (Model(max_length=4096), {}, 1023, "the model's 1,024 positions, 1 of them new"),
        (Model(is_encoder_decoder=True), {"max_new_tokens": 24}, 1024, "the model's 1,024 positions"),
        (Model(None), {"max_new_tokens": 24}, None, None),
    ],
)
def test_limit_of_prompt(model: Model, given: dict[str, int], most: int | None, limit: str | None) -> None:
    facts = generated(model, None, torch.ones(1, 3), **given)
    assert (facts.get("most"), facts.get("limit")) == (most, limit)


@pytest.mark.usefixtures("library")
def test_call_without_prompt_has_no_facts() -> None:
    assert generated(Model(), 8) == generated(Model(), 8, input_features=torch.ones(1, 80, 30)) == {}


# ------------------------------------------------------------------------------------------------ in a trace
@pytest.mark.integration
@pytest.mark.parametrize("argument", ["", "input_ids="])
def test_lengthened_prompt_takes_memory_of_long_one(
    tmp_path: Path, trace: Callable[..., Result], need: Callable[[str], Any], argument: str
) -> None:
    need("transformers")

    def run(tokens: int, instead: int) -> Any:
        script = tmp_path / f"generate{tokens}.py"
        script.write_text(SCRIPT.format(tokens=tokens, argument=argument))
        return trace(command=Command((str(script),)), changes=(("prompt", instead),) if instead else ()).trace

    long, lengthened, plain = run(1024, 0), run(PROMPTED, 1024), run(PROMPTED, 0)
    limit = "the model's 4,096 positions, 5 of them new"
    assert applied_change(plain, "prompt") == AppliedChange(PROMPTED, None, 4091, limit)
    assert (applied_change(lengthened, "prompt").value, applied_change(lengthened, "prompt").now) == (PROMPTED, 1024)
    held = 3 * 2 * PROMPTED * 8  # the script's own prompt and its mask, and a copy
    allocated = [one.header["peaks"]["allocated"] for one in (plain, lengthened, long)]
    assert allocated[0] < allocated[2] <= allocated[1] <= allocated[2] + held + 3 * 512


@pytest.mark.parametrize("said", [{"value": "many"}, [3], 7])
def test_damaged_change_is_rejected(said: Any) -> None:
    with pytest.raises(TraceFileError, match="changes are damaged"):
        applied_change(Trace.build({"action": [], "size_bytes": [], "block": []}, header={CHANGES: {"prompt": said}}), "prompt")
