"""LoRA and QLoRA on small models: what is trained, in which type, and how many bytes the 4-bit weights take."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramcast.core.errors import UsageError  # noqa: E402
from vramcast.estimates.estimator import Estimator  # noqa: E402
from vramcast.hardware.cards import device  # noqa: E402
from vramcast.jobs.adapters import parse  # noqa: E402
from vramcast.jobs.job import Command, Job, Training  # noqa: E402
from vramcast.jobs.text import JobText  # noqa: E402
from vramcast.tracer.nullgpu.client import NullGpuTracer  # noqa: E402
from vramcast.tracer.program import adapters, model_program  # noqa: E402

pytestmark = pytest.mark.integration  # importing peft takes longer than a unit test may

MakeJob = Callable[..., Job]
Need = Callable[[str], Any]
SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "vocab_size": 1024, "dtype": "bfloat16",
}  # fmt: skip
LLAMA = f"hf:llama?{json.dumps(SIZES)}"
LINEAR = 2 * (4 * 256 * 256 + 3 * 256 * 512)  # weights of the blocks' linear layers


def trained(model: Any) -> dict[str, Any]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def test_trains_only_adapters_in_float32(make_job: MakeJob, need: Need) -> None:
    need("peft")
    model = model_program.build_model(make_job(target=LLAMA, adapter=parse("r=4", None)))
    weights = trained(model)
    assert all("lora_" in name and weight.dtype == torch.float32 for name, weight in weights.items())
    assert {name.split(".")[-4] for name in weights} == {"q_proj", "v_proj"}  # peft's own choice for this type
    assert sum(weight.numel() for weight in weights.values()) == 2 * 2 * 4 * (256 + 256)
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16


def test_named_modules_replace_default_ones(make_job: MakeJob, need: Need) -> None:
    need("peft")
    for target, names in (("up_proj", {"up_proj"}), ("all-linear", {*"qkvo", "gate", "up", "down"})):
        model = model_program.build_model(make_job(target=LLAMA, adapter=parse(f"r=4,target={target}", None)))
        assert {name.split(".")[-4].removesuffix("_proj") for name in trained(model)} == {
            n.removesuffix("_proj") for n in names
        }


def test_unknown_module_gets_suggestion(make_job: MakeJob, need: Need) -> None:
    need("peft")
    with pytest.raises(UsageError, match=r"--lora target=q_prj does not fit LlamaForCausalLM.*did you mean target=q_proj\?"):
        model_program.build_model(make_job(target=LLAMA, adapter=parse("target=q_prj", None)))


def test_checkpointing_gives_adapters_gradients(make_job: MakeJob, need: Need) -> None:
    need("peft")
    model = model_program.build_model(make_job(target=LLAMA, adapter=parse("r=4", None), checkpointing=True))
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert all(weight.grad is not None for weight in trained(model).values())


def test_says_what_peft_chose(make_job: MakeJob, need: Need) -> None:
    need("peft")
    asked = parse("r=4", None)
    assert asked is not None
    made = adapters.adapted_of(model_program.build_model(make_job(target=LLAMA, adapter=asked)), asked)
    assert made.words == "LoRA r=4 on q_proj, v_proj trains 8,192 parameters"
    assert made.to_dict() == {
        "kind": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target": ["q_proj", "v_proj"], "trainable_parameters": 8192,
        "unquantized_parameters": None,
    }  # fmt: skip


def test_counts_fused_experts_that_4_bits_leave_out(make_job: MakeJob, need: Need) -> None:
    need("peft")
    need("bitsandbytes")
    asked = parse(None, "r=4")
    assert asked is not None
    mixtral = f"hf:mixtral?{json.dumps(SIZES | {'num_local_experts': 4})}"
    model = model_program.build_model(make_job(target=mixtral, adapter=asked, precision="bf16"))
    assert adapters.adapted_of(model, asked).whole == 2 * 4 * 3 * 256 * 512


def test_missing_package_says_how_to_install(make_job: MakeJob, need: Need, monkeypatch: pytest.MonkeyPatch) -> None:
    need("transformers")
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(UsageError, match=r"--qlora needs the package bitsandbytes.*pip install peft bitsandbytes accelerate"):
        model_program.build_model(make_job(target=LLAMA, adapter=parse(None, "r=4")))


def test_quantized_weights_take_half_a_byte(need: Need, needs_null_gpu: None) -> None:
    need("peft")
    need("bitsandbytes")
    card = device("rtx4090")
    job = JobText(target=LLAMA, batch_size=2, seq=16, qlora="r=4", training=Training(optimizer="adamw")).job(card)
    estimate = Estimator(card, "nullgpu").uncorrected(job)
    norms, embeddings, adapters = 5 * 256 * 4, 2 * 1024 * 256 * 4, 2 * 2 * 4 * (256 + 256) * 4
    exact = LINEAR // 2 + LINEAR // 64 + norms + embeddings + adapters  # a byte of statistics for 64 weights
    assert exact <= estimate.breakdown["parameters"] <= exact * 1.03  # blocks of 512 bytes, and the second quantization


def test_quantizes_after_a_job_that_imported_the_trainer(need: Need, needs_null_gpu: None, tmp_path: Path) -> None:
    """The worker imports the trainer for the next job, and with it peft and bitsandbytes, which asks for the card."""
    need("peft")
    need("bitsandbytes")
    script, card = tmp_path / "trains.py", device("rtx4090")
    script.write_text("import transformers.trainer, torch\ntorch.ones(3).cuda()\n")
    with closing(NullGpuTracer()) as tracer:
        tracer.trace(Job(card, command=Command((str(script),)), search_path=tuple(sys.path)))
        job = JobText(target=LLAMA, batch_size=2, seq=16, qlora="r=4").job(card)
        assert Estimator(card, tracer).uncorrected(job).breakdown["parameters"] > LINEAR // 2


@pytest.mark.parametrize(("precision", "kept"), [("bf16", torch.bfloat16), ("amp-bf16", torch.float32)])
def test_precision_decides_type_of_unquantized_weights(
    make_job: MakeJob, need: Need, precision: str, kept: torch.dtype
) -> None:
    need("peft")
    need("bitsandbytes")
    model: Any = model_program.build_model(make_job(target=LLAMA, adapter=parse(None, "r=4"), precision=precision))
    assert model.get_input_embeddings().weight.dtype == kept
    assert all("lora_" in name for name in trained(model))
