"""LoRA and QLoRA as text."""

from __future__ import annotations

import pytest

from vramcast.core.errors import UsageError
from vramcast.hardware.cards import device
from vramcast.jobs.adapters import Adapter, parse
from vramcast.jobs.job import Job
from vramcast.jobs.text import JobText

CARD = device("rtx4090")


def test_parses_settings_and_leaves_others_to_peft() -> None:
    assert parse(None, None) is None
    assert parse("r=16", None) == Adapter(r=16)
    full = parse(None, "r=8,alpha=32,dropout=0.05,target=q_proj+v_proj")
    assert full == Adapter(is_quantized=True, r=8, alpha=32, dropout=0.05, target=("q_proj", "v_proj"))
    assert parse("target=all-linear", None) == Adapter(target=("all-linear",))


@pytest.mark.parametrize("text", ["r=16", "r=8,alpha=32,dropout=0.05,target=q_proj+v_proj", "target=all-linear"])
def test_text_of_adapter_parses_back(text: str) -> None:
    assert str(parse(text, None)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("16", "for key=value: write, for example, r=16"),
        ("rank=16", "did you mean r?"),
        ("lora_alpha=16", "did you mean alpha?"),
        ("targets=q_proj", "did you mean target?"),
        ("zzz=1", "use r, alpha, dropout, target"),
        ("r=sixteen", "invalid literal"),
        ("r=0", "r of --lora"),
        ("r=8,r=16", "gives r twice"),
        ("dropout=1", "a probability below 1"),
        ("target=q*", "give module names"),
        ("target=all-linear+q_proj", "only target=all-linear"),
    ],
)
def test_wrong_text_names_next_step(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text, None)
    assert message in str(error.value)


def test_refuses_both_methods() -> None:
    with pytest.raises(UsageError, match="--lora and --qlora are both given"):
        parse("r=8", "r=8")


def test_is_for_models_of_transformers() -> None:
    assert JobText(target="hf:gpt2", lora="r=8").job(CARD).adapter == Adapter(r=8)
    with pytest.raises(UsageError, match="--lora is for hf: targets, not for timm:vit"):
        JobText(target="timm:vit", lora="r=8").job(CARD)
    with pytest.raises(UsageError, match="--lora: this describes a model"):
        JobText(command=("train.py",), lora="r=8").job(CARD)
    with pytest.raises(UsageError, match="--lora is for hf: targets, not for a model object"):
        Job(CARD, model=b"", adapter=Adapter())


def test_4_bit_weights_are_not_sharded() -> None:
    with pytest.raises(UsageError, match="--qlora with parallel"):
        JobText(target="hf:gpt2", qlora="r=8", parallel="fsdp", world_size=2).job(CARD)
    assert JobText(target="hf:gpt2", qlora="r=8", parallel="ddp", world_size=2).job(CARD).parallel is not None
